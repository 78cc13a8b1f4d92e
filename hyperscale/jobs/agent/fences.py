"""Fences: which job leaders may command a worker, and which attempts may still begin on it.

The term authorises the sender: a term below the highest one seen of its group belongs to a
deposed job leader. The attempt number names what runs: an attempt below the highest one seen of
its part is superseded, and an attempt with a tombstone is over, even if its `PreparePart`
arrives later.
"""

from dataclasses import dataclass

from hyperscale.jobs.messages import AttemptId

REMEMBERED_S = 24 * 3600.0
"""Longer than any message can be delayed, and than job leaders retry."""
REMEMBERED_MAX = 100_000

PartOfJob = tuple[str, str, int]  # job, workflow, part


@dataclass(slots=True)
class _PartFence:
    attempt: int  # the highest seen
    is_over: bool  # it has a tombstone
    seen_s: float


class Fences:
    """The highest term of each group, and the highest attempt of each part."""

    def __init__(self) -> None:
        self._terms: dict[int, int] = {}
        self._parts: dict[PartOfJob, _PartFence] = {}  # the most recently seen come last

    def admit(self, group: int, term: int) -> bool:
        """Raise the term of a group; return False if a higher one was seen."""
        if term < self._terms.get(group, 0):
            return False
        self._terms[group] = term
        return True

    def term(self, group: int) -> int:
        """Return the highest term seen of a group."""
        return self._terms.get(group, 0)

    def attempt(self, attempt_id: AttemptId) -> int:
        """Return the highest attempt seen of the part."""
        fence = self._parts.get(part_of(attempt_id))
        return 0 if fence is None else fence.attempt

    def is_over(self, attempt_id: AttemptId) -> bool:
        """Return True if the attempt has a tombstone or is superseded."""
        fence = self._parts.get(part_of(attempt_id))
        if fence is None or attempt_id.attempt > fence.attempt:
            return False
        return attempt_id.attempt < fence.attempt or fence.is_over

    def begin(self, attempt_id: AttemptId, *, now_s: float) -> None:
        """Note that the attempt begins here."""
        self._see(attempt_id, is_over=False, now_s=now_s)

    def bury(self, attempt_id: AttemptId, *, now_s: float) -> None:
        """Leave a tombstone: neither this attempt nor an earlier one may begin again."""
        self._see(attempt_id, is_over=True, now_s=now_s)

    def forget_old(self, *, now_s: float) -> None:
        """Delete the oldest tombstones."""
        excess = len(self._parts) - REMEMBERED_MAX
        old: list[PartOfJob] = []
        for part, fence in self._parts.items():
            if now_s - fence.seen_s < REMEMBERED_S and len(old) >= excess:
                break
            if fence.is_over:  # attempts that are not over still run here, and are few
                old.append(part)
        for part in old:
            del self._parts[part]

    def _see(self, attempt_id: AttemptId, *, is_over: bool, now_s: float) -> None:
        part, number = part_of(attempt_id), attempt_id.attempt
        fence = self._parts.pop(part, None)
        if fence is None or number > fence.attempt:
            fence = _PartFence(number, is_over, now_s)
        elif number == fence.attempt:
            fence.is_over = fence.is_over or is_over
        fence.seen_s = now_s
        self._parts[part] = fence


def part_of(attempt_id: AttemptId) -> PartOfJob:
    """Return the part that an attempt belongs to."""
    return attempt_id.job, attempt_id.workflow, attempt_id.part
