"""Pass on each line that user code printed once, although streams repeat lines.

A stream that begins with a new job leader repeats the lines that the leader still keeps. Lines
are numbered per attempt, so the numbers seen so far decide whether a line is new.
"""

from bisect import bisect_right

from hyperscale.client.messages import OutputLine

ATTEMPTS_REMEMBERED_MAX = 4096
SPANS_REMEMBERED_MAX = 64

_AttemptKey = tuple[str, str, int, int]
"""Worker, workflow, part and attempt: the lines of one key are numbered together."""
_Span = tuple[int, int]
"""The first and the last of consecutive numbers that were seen."""


class SeenOutput:
    """The numbers of the lines seen so far, bounded in attempts and in spans of each."""

    def __init__(self) -> None:
        self._spans: dict[_AttemptKey, list[_Span]] = {}  # the attempt seen last is last

    def new_lines(self, lines: list[OutputLine]) -> list[OutputLine]:
        """Return the lines not seen before, and remember them. Unnumbered lines are new."""
        return [line for line in lines if not line.number or self._is_new(line)]

    @property
    def attempts(self) -> int:
        """Return how many attempts are remembered."""
        return len(self._spans)

    @property
    def spans_max(self) -> int:
        """Return how many spans are remembered for the attempt that has most of them."""
        return max(map(len, self._spans.values()), default=0)

    def _is_new(self, line: OutputLine) -> bool:
        key = (line.worker, line.workflow, line.part, line.attempt)
        spans = self._spans.pop(key, [])
        self._spans[key] = spans
        if len(self._spans) > ATTEMPTS_REMEMBERED_MAX:
            del self._spans[next(iter(self._spans))]
        return _add(spans, line.number)


def _add(spans: list[_Span], number: int) -> bool:
    """Add a number to ordered spans; return False if it was in one of them.

    Lines arrive in order, except those that a former leader still has when it leads again, so
    there is nearly always a single span.
    """
    after = bisect_right(spans, number, key=lambda span: span[0])
    first = last = number
    at = after
    if after and spans[after - 1][1] >= number - 1:
        at -= 1
        first, end = spans[at]
        if end >= number:
            return False
    if after < len(spans) and spans[after][0] == number + 1:
        last = spans[after][1]
        after += 1
    spans[at:after] = [(first, last)]
    if len(spans) > SPANS_REMEMBERED_MAX:  # no leader keeps lines as old as the first gap
        spans[:2] = [(spans[0][0], spans[1][1])]
    return True
