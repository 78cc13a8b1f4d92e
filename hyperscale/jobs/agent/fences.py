"""Who may command a worker, and which runs may still begin on it.

The term authorises the sender: one below the highest seen of its group was deposed. The
attempt names the run: one below the highest seen of its part is superseded, and one with a
tombstone is over, though its dispatch may still be on the way. Pure; the caller says when.
"""

from dataclasses import dataclass

from hyperscale.jobs.messages import AttemptId

REMEMBERED_S = 24 * 3600.0
"""Longer than anything that was sent before can arrive, or a job can be asked for."""
REMEMBERED_MAX = 100_000


@dataclass(slots=True)
class _Seen:
    attempt: int
    is_over: bool
    at_s: float


class Fences:
    """Terms by group, attempts by part."""

    def __init__(self) -> None:
        self._terms: dict[int, int] = {}
        self._parts: dict[tuple[str, str, int], _Seen] = {}  # those touched last come last

    def admit(self, group: int, term: int) -> bool:
        """Whether a command of this term is obeyed; a higher one counts from here on."""
        if term < self._terms.get(group, 0):
            return False
        self._terms[group] = term
        return True

    def term(self, group: int) -> int:
        return self._terms.get(group, 0)

    def attempt(self, run: AttemptId) -> int:
        """The highest seen of the run's part."""
        seen = self._parts.get(_part(run))
        return 0 if seen is None else seen.attempt

    def may_begin(self, run: AttemptId) -> bool:
        """Whether the run is newer than everything seen of its part."""
        return run.attempt > self.attempt(run)

    def is_over(self, run: AttemptId) -> bool:
        """Whether the run has a tombstone, or a later attempt made it one."""
        seen = self._parts.get(_part(run))
        if seen is None or run.attempt > seen.attempt:
            return False
        return run.attempt < seen.attempt or seen.is_over

    def begin(self, run: AttemptId, *, now_s: float) -> None:
        self._note(run, is_over=False, now_s=now_s)

    def bury(self, run: AttemptId, *, now_s: float) -> None:
        """This run and those before it never begin again."""
        self._note(run, is_over=True, now_s=now_s)

    def forget_old(self, *, now_s: float) -> None:
        crowd = len(self._parts) - REMEMBERED_MAX
        old: list[tuple[str, str, int]] = []
        for part, seen in self._parts.items():
            if now_s - seen.at_s < REMEMBERED_S and len(old) >= crowd:
                break
            if seen.is_over:  # those that are not are few, and here
                old.append(part)
        for part in old:
            del self._parts[part]

    def _note(self, run: AttemptId, *, is_over: bool, now_s: float) -> None:
        seen = self._parts.pop(_part(run), None)
        if seen is None or run.attempt > seen.attempt:
            seen = _Seen(run.attempt, is_over, now_s)
        elif run.attempt == seen.attempt:
            seen.is_over = seen.is_over or is_over
        seen.at_s = now_s
        self._parts[_part(run)] = seen


def _part(run: AttemptId) -> tuple[str, str, int]:
    return run.job, run.workflow, run.part
