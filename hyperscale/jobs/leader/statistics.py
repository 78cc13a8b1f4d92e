"""The merged statistics of one workflow while it runs. Only this module reads reports."""

import math
from collections import Counter
from collections.abc import Iterable

from hyperscale._native import Report
from hyperscale.jobs.committed.state import Part
from hyperscale.jobs.leader.gaps import RATE_SPAN_S, UserPace
from hyperscale.plan import StepKind, WorkflowPlan
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

    def pace(self) -> UserPace:
        """Return how fast a virtual user of the workflow can send, as far as is known."""
        steps = [step for step in self.plan.steps if step.kind in (StepKind.TEST, StepKind.ACTION)]
        of_layers = Counter(step.layer for step in steps)
        counts, iterations = self.stats.load_counts(), self.stats.iterations
        latency = self.stats.headline_latency()
        # A call that a step does not return is not timed, and may be faster than all that are. With
        # a rate, latencies count from the scheduled arrival and not from the request.
        is_all_timed = counts.sent <= counts.total + counts.cut and not self.plan.is_open
        return UserPace(
            in_flight=max(of_layers.values(), default=1),
            fastest_s=latency.min_ns / 1e9 if latency.count and is_all_timed else None,
            # How many requests an iteration sends is known only once one has ended.
            interval_s=self.plan.interval_s if iterations else None,
            per_iteration=max(len(steps), math.ceil(counts.sent / max(1, iterations))),
        )

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
