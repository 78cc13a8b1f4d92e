"""The merged statistics of one workflow while it runs. Only this module reads reports."""

from collections.abc import Iterable

from hyperscale._native import Report
from hyperscale.jobs.committed.state import Part
from hyperscale.jobs.leader.gaps import RATE_SPAN_S
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.stats.view import LiveMeter
from hyperscale.stats.workflow import WorkflowStats


class WorkflowStatistics:
    """All attempts of one workflow."""

    def __init__(self, plan: WorkflowPlan) -> None:
        self.plan = plan
        self.stats = WorkflowStats(plan)
        self.meter = LiveMeter(self.stats)
        self.thresholds = thresholds_of(plan)
        self.has_abort = any(threshold.abort_on_fail for threshold in self.thresholds)
        self.rate_per_core = 0.0  # requests/s: the highest of any part, as measured

    def take(
        self, data: bytes, *, slot: int, attempt: int, parts: int | None = None
    ) -> Report | None:
        """Take a report of one attempt. None: it is older than what is known, or it is not of this
        workflow and slot (workers are not trusted). With `parts`, the number of parts, its
        seconds are kept for `last_report`."""
        report = decode_report(data)
        if report is None or report.slot != slot:
            return None
        try:
            return self.stats.apply(report, attempt=attempt, parts=parts)
        except ValueError:
            return None

    def measured(self, rate_per_core: float) -> None:
        self.rate_per_core = max(self.rate_per_core, rate_per_core)

    def remember(self, parts: Iterable[Part]) -> None:
        """Take the committed reports of parts: of segments, ends and checkpoints."""
        for part in parts:
            of_attempts = [(each.attempt, each.elapsed_s, each.report) for each in part.segments]
            of_attempts.append((part.attempt, part.elapsed_s, part.report))
            for attempt, elapsed_s, data in of_attempts:
                report = self.take(data, slot=part.first_slot, attempt=attempt)
                if report is not None and elapsed_s > RATE_SPAN_S:
                    self.measured(report.sent / elapsed_s / part.cores)


def final_report(data: bytes | None, *, parts: int) -> bytes:
    """Return the report of an attempt that ended, as it is committed."""
    report = decode_report(data)
    return b"" if report is None else report.bounded_for_log(parts).encode()


def decode_report(data: bytes | None) -> Report | None:
    """Return None for no report, and for one that cannot be read: statistics end no job."""
    try:
        return Report.decode(data) if data else None
    except ValueError:
        return None
