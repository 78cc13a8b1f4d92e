"""The statistics of one attempt: the reports of its executors, merged."""

from hyperscale.jobs.agent.merge import POINTS_MAX, PartMerge
from hyperscale.jobs.messages import PreparePart
from hyperscale.stats.report import Report
from hyperscale.stats.saturation import SaturationWatch

STILL_S = 10.0
"""A job leader is told about virtual users whose actions take longer than this, so that it does
not take the part for stuck."""


class AttemptStatistics:
    """Reports by place, merged; and how current they are."""

    def __init__(self, command: PreparePart) -> None:
        self._merge = PartMerge(command.attempt_id.workflow, command.first_slot)
        self._saturation = SaturationWatch(command.attempt_id.workflow)
        self._offset_s = command.plan.offset_s(command.elapsed_s)  # run by earlier attempts
        self._reported_s: dict[int, float] = {}  # place -> elapsed time of its last report
        self._actions: dict[int, int] = {}  # place -> finished actions
        self._last_action_s: float | None = None
        self.gap_s = 0.0
        """The longest time that a dead executor may have sent load after its last report."""

    def add(self, place: int, report: Report, *, now_s: float) -> None:
        """Merge a cumulative report of one executor."""
        self._merge.add(report)
        self._saturation.observe(report)
        self._reported_s[place] = report.elapsed_s - self._offset_s
        if self._actions.get(place) != report.actions:
            self._actions[place] = report.actions
            self._last_action_s = now_s

    def note_gap(self, place: int, ended_s: float) -> None:
        """Note that an executor died `ended_s` after the start without a last report."""
        self.gap_s = max(self.gap_s, ended_s - self._reported_s.get(place, 0.0))

    @property
    def elapsed_s(self) -> float:
        """Elapsed time of this attempt, earlier attempts excluded."""
        return max(0.0, self._merge.elapsed_s - self._offset_s)

    @property
    def is_saturated(self) -> bool:
        return self._saturation.is_saturated

    @property
    def was_saturated(self) -> bool:
        return self._saturation.was_saturated

    def latest(self, *, now_s: float) -> bytes | None:
        """Return the next report for the job leader; None before the first one of an executor."""
        return self._merge.latest(now_s=now_s)

    def whole(self, *, shared_by: int = 1) -> bytes | None:
        """Return everything; with fewer series points if `shared_by` reports share a message."""
        return self._merge.whole(points_max=POINTS_MAX // max(1, shared_by))

    def acknowledged(self) -> None:
        """Note that the job leader has the latest report."""
        self._merge.acknowledge()

    def leader_changed(self) -> None:
        """Note that the next report goes to a job leader that has none of the earlier ones."""
        self._merge.retell()

    def why_still(self, *, now_s: float) -> str:
        """Say why no action has finished for long; empty if one has, or none is in progress."""
        if self._last_action_s is None or not self._merge.vus:
            return ""
        still_s = now_s - self._last_action_s
        if still_s < STILL_S:
            return ""
        return f"{self._merge.vus} virtual users have been in their steps for {still_s:.0f} s"
