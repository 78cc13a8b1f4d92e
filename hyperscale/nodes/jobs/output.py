"""What user code printed, as a manager keeps it for whoever watches: the last of it, in memory.

Bounded for each job and for all of them together; what was printed longest ago goes first.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice

from hyperscale.jobs.messages import ForwardOutput

LINES_MAX = 1_000
CHARACTERS_MAX = 64 * 1024 * 1024


class Output:
    """The last of what user code of one job printed, and how much there was in all."""

    def __init__(self) -> None:
        self.lines: deque[ForwardOutput] = deque()
        self.total = 0

    def since(self, seen: int) -> tuple[list[ForwardOutput], int]:
        """Those that are kept and were not among the first so many; and how many were before
        them."""
        first = max(seen, self.total - len(self.lines))
        return list(islice(self.lines, len(self.lines) - (self.total - first), None)), first


class Outputs:
    """That of all jobs."""

    def __init__(self) -> None:
        self._by_job: dict[str, Output] = {}  # who printed last is last
        self._characters = 0

    def get(self, job: str) -> Output | None:
        return self._by_job.get(job)

    def add(self, line: ForwardOutput) -> None:
        output = self._by_job.pop(line.attempt_id.job, None) or Output()
        self._by_job[line.attempt_id.job] = output
        output.lines.append(line)
        output.total += 1
        self._characters += len(line.text)
        if len(output.lines) > LINES_MAX:
            self._drop_line(output)
        for other in self._by_job.values():
            while other.lines and self._characters > CHARACTERS_MAX:
                self._drop_line(other)
            if self._characters <= CHARACTERS_MAX:
                break

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """Forgets all of every job that is not known any more."""
        for job in [job for job in self._by_job if not is_known(job)]:
            output = self._by_job.pop(job)
            while output.lines:
                self._drop_line(output)

    def _drop_line(self, output: Output) -> None:
        self._characters -= len(output.lines.popleft().text)
