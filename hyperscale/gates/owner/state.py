"""The memory of an owner during one leadership, and the event that is being handled.

None of it is replicated: a new owner fills it from committed state and from reports.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from hyperscale.gates.committed.events import DatacenterFinished, GlobalCancelRequested, GlobalEvent
from hyperscale.gates.committed.state import DatacenterAssignment, GlobalJob
from hyperscale.gates.messages import AssignmentCommand, AssignmentResultReply
from hyperscale.gates.owner.datacenter_statistics import DatacenterStatistics
from hyperscale.gates.owner.datacenter_table import DatacenterTable
from hyperscale.gates.owner.deliveries import Deliveries, delivery_key
from hyperscale.gates.owner.events import (
    AnswerDatacenter,
    OwnerEffect,
    OwnerTimeouts,
    ProposeGlobal,
    SendAssignment,
)
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import decode_job
from hyperscale.jobs.leader.statistics import WorkflowStatistics, decode_report
from hyperscale.plan.changes import LoadSchedule


@dataclass(slots=True)
class Heard:
    """What one datacenter has reported about one job to this owner."""

    at_s: float
    is_ready: bool = False
    began_s: float | None = None  # when its load began, on the clock of this owner
    queued_since_s: float | None = None  # since when it reports that it waits for cores
    extension_s: float = 0.0
    extended_until_s: float = 0.0
    statistics: DatacenterStatistics | None = None  # None: it has sent none


@dataclass(slots=True)
class GlobalProgress:
    """One global job that has not ended."""

    known_s: float  # since when this owner knows it
    thresholds_at_s: float = 0.0
    heard: dict[str, Heard] = field(default_factory=dict)  # by datacenter
    refused: set[str] = field(default_factory=set)
    start_at_s: float | None = None
    statistics: dict[str, WorkflowStatistics] = field(default_factory=dict)
    changes_known: int = 0  # of the load, in the statistics

    def heard_of(self, datacenter: str) -> Heard:
        """Return the reports of a datacenter; it counts as heard when this owner took over."""
        return self.heard.setdefault(datacenter, Heard(self.known_s))

    def statistics_of(self, job: GlobalJob) -> dict[str, WorkflowStatistics]:
        if not self.statistics:
            self.statistics = {plan.name: WorkflowStatistics(plan) for plan in job.plan.workflows}
            for part in job.assignments:
                if part.result:
                    self._remember(part)  # it had ended before this gate owned the job
        if self.changes_known != len(job.changes):
            self.changes_known = len(job.changes)
            for plan in job.plan.workflows:
                changes = job.applied_changes(plan.name, began_ms=job.started_ms)
                self.statistics[plan.name].stats.schedule = LoadSchedule(plan, changes)
        return self.statistics

    def _remember(self, part: DatacenterAssignment) -> None:
        """Take the totals of a datacenter that has ended. What is no record adds nothing."""
        try:
            record = decode_job(part.result)
        except msgspec.MsgspecError:
            return
        for name, totals in self.statistics.items():
            workflow = record.workflows.get(name)
            for each in workflow.parts if workflow else ():
                totals.take(each.report, slot=part.index, attempt=1)

    def take(
        self, job: GlobalJob, assignment: DatacenterAssignment, reports: list[bytes], now_s: float
    ) -> None:
        """Merge what a datacenter reports about workflows, into the job's totals and its own."""
        heard, totals = self.heard_of(assignment.datacenter), self.statistics_of(job)
        for data in reports:
            report = decode_report(data)
            total = None if report is None else totals.get(report.workflow)
            if total is None or total.take(data, slot=assignment.index, attempt=1) is None:
                continue  # of no workflow of the job, or not newer than what is known
            if heard.statistics is None:
                heard.statistics = DatacenterStatistics(job.plan)
            assert report is not None
            heard.statistics.take(report, now_s=now_s)


class OwnerState:
    """One leadership: its identity and memory, and the time and effects of the current event."""

    def __init__(self, group: int, timeouts: OwnerTimeouts) -> None:
        self.group = group
        self.timeouts = timeouts
        self.term = 0
        self.now_s = 0.0
        self.effects: list[OwnerEffect] = []
        self.deliveries = Deliveries(timeouts)
        self.jobs: dict[str, GlobalProgress] = {}
        self.datacenters = DatacenterTable(timeouts)
        # Datacenters that wait for the commit of their result.
        self.unanswered: dict[tuple[str, str], list[Any]] = {}
        self._took_over_s = 0.0
        self._took_over_ms = 0
        self._propose_again_at_s: dict[tuple[Any, ...], float] = {}

    def begin(self, term: int, now_ms: int, now_s: float) -> None:
        self.term, self._took_over_ms, self._took_over_s = term, now_ms, now_s

    def begin_event(self, now_s: float) -> None:
        self.now_s = now_s
        self.effects = []

    @property
    def now_ms(self) -> int:
        """The time on the clock of committed stamps."""
        return self.ms_of(self.now_s)

    def ms_of(self, at_s: float) -> int:
        """Return an instant of this owner's clock on the clock of committed stamps."""
        return self._took_over_ms + round((at_s - self._took_over_s) * 1000)

    def job(self, job: GlobalJob) -> GlobalProgress:
        found = self.jobs.get(job.id)
        if found is None:
            found = self.jobs[job.id] = GlobalProgress(self.now_s)
        return found

    def began_ms(self, job: GlobalJob | None, datacenter: str) -> int:
        """Return when a datacenter's load began, in the time of the group; 0: not known.

        An owner that has had the job since its start knows best; another one believes what was
        committed."""
        # A late result of a job that is over must not bring its memory back.
        progress = None if job is None else self.jobs.get(job.id)
        if job is None or progress is None:
            return 0
        assignment, began_s = job.assignment(datacenter), progress.heard_of(datacenter).began_s
        committed_ms = 0 if assignment is None else assignment.began_ms
        if began_s is None or (committed_ms and job.started_ms < self._took_over_ms):
            return committed_ms
        return max(1, self.ms_of(began_s))

    def forget(self, job: str) -> None:
        self.jobs.pop(job, None)
        self.deliveries.forget(job)

    # --- effects ----------------------------------------------------------------------------

    def propose(self, event: GlobalEvent) -> None:
        """Propose an event, unless the same proposal is under way."""
        key = _key(event)
        again_at_s = self._propose_again_at_s.get(key)
        if again_at_s is None or self.now_s >= again_at_s:
            self._propose_again_at_s[key] = self.now_s + self.timeouts.proposal_s
            self.effects.append(ProposeGlobal(event))

    def cancel(self, job: GlobalJob, reason: str, status: JobStatus) -> None:
        self.propose(GlobalCancelRequested(job=job.id, reason=reason, status=status))

    def proposal_applied(self, event: GlobalEvent) -> None:
        self._propose_again_at_s.pop(_key(event), None)

    def proposal_failed(self, event: GlobalEvent) -> None:
        """Allow the proposal again, but not at once."""
        key = _key(event)
        if key in self._propose_again_at_s:
            self._propose_again_at_s[key] = self.now_s + self.timeouts.repeat_s

    def deliver(self, datacenter: str, command: AssignmentCommand) -> None:
        """Send a command, if it is due."""
        key = delivery_key(datacenter, command)
        if self.deliveries.is_due(key, now_s=self.now_s):
            self.effects.append(SendAssignment(datacenter, command))

    def acknowledge(
        self, event: DatacenterFinished, *, is_committed: bool, is_known: bool = True
    ) -> None:
        """Answer every delivery of a result whose fate is known now."""
        reply = AssignmentResultReply(is_committed=is_committed, is_known=is_known)
        for token in self.unanswered.pop((event.job, event.datacenter), ()):
            self.effects.append(AnswerDatacenter(token, reply))


def _key(event: GlobalEvent) -> tuple[Any, ...]:
    """Return a key that is the same for two proposals that decide the same thing."""
    fields = ("key", "job", "datacenter", "replaces", "taken")
    return (type(event), *(getattr(event, name, None) for name in fields))
