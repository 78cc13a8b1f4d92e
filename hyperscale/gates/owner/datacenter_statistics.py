"""The statistics of one datacenter's part of a global job, as an owner hears them.

Totals of the job come from the merge of all datacenters; these are the same reports once more, for
people who compare datacenters.
"""

from collections import deque

from hyperscale._native import Histogram, Report
from hyperscale.jobs.leader.statistics import WorkflowStatistics
from hyperscale.plan import Plan
from hyperscale.stats.histograms import quantile_ms
from hyperscale.stats.view import RATE_WINDOW_S, DatacenterLoad
from hyperscale.stats.workflow import WorkflowStats


class DatacenterStatistics:
    """The workflows of a job in one datacenter."""

    def __init__(self, plan: Plan) -> None:
        self._workflows = {each.name: WorkflowStatistics(each) for each in plan.workflows}
        self._samples: deque[tuple[float, int]] = deque()  # when heard, requests sent by then

    def take(self, report: Report, *, now_s: float) -> None:
        """Take a report of one workflow; an old one changes nothing."""
        if (statistics := self._workflows.get(report.workflow)) is None:
            return
        statistics.stats.apply(report, attempt=1)
        if self._samples and self._samples[-1][0] == now_s:
            self._samples.pop()
        self._samples.append((now_s, self._sent()))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - RATE_WINDOW_S:
            self._samples.popleft()

    def load(self, datacenter: str, state: str, *, is_running: bool, note: str) -> DatacenterLoad:
        """Return the part as people see it."""
        latency = Histogram()
        for stats in self._stats():
            latency.merge(stats.headline_latency())
        return DatacenterLoad(
            datacenter=datacenter,
            state=state,
            vus=sum(stats.vus for stats in self._stats()) if is_running else 0,
            sent=self._sent(),
            requests_now=self._rate() if is_running else 0.0,
            failed=sum(stats.headline_counts().failed for stats in self._stats()),
            p50_ms=quantile_ms(latency, 0.50),
            p99_ms=quantile_ms(latency, 0.99),
            note=note,
        )

    def of(self, workflow: str) -> WorkflowStatistics:
        return self._workflows[workflow]

    def _stats(self) -> list[WorkflowStats]:
        return [each.stats for each in self._workflows.values()]

    def _sent(self) -> int:
        return sum(stats.total_counts().sent for stats in self._stats())

    def _rate(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return max(0, last - first) / (last_s - first_s)
