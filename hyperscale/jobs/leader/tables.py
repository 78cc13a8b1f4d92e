"""What a leader keeps in memory: void when its leadership ends, and not needed to begin another.

A new leader fills its tables from committed state and from what workers say.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from hyperscale.jobs.committed.state import Job
from hyperscale.jobs.leader.attempts import AttemptTable
from hyperscale.jobs.leader.core_requests import CoreRequests
from hyperscale.jobs.leader.events import BecameLeader, SendCommand, SendRelease
from hyperscale.jobs.leader.proposals import Proposals
from hyperscale.jobs.leader.statistics import WorkflowStatistics
from hyperscale.jobs.leader.timeouts import LeaderTimeouts
from hyperscale.jobs.leader.worker_liveness import WorkerTable
from hyperscale.jobs.messages import AcknowledgeResult, AttemptId, ReleaseCores, StopPart

UNWANTED = "the attempt is not wanted any more"

PartKey = tuple[str, int]
"""Workflow and part; part -1 stands for the first attempt of all parts."""


@dataclass(slots=True)
class JobProgress:
    """One job that has not ended."""

    checkpoint_at_s: float
    deadline_s: float | None = None  # of the whole job
    thresholds_at_s: float = 0.0
    unsaved: list[AttemptId] = field(default_factory=list)  # attempts whose checkpoint is due
    statistics: dict[str, WorkflowStatistics] = field(default_factory=dict)
    # Since when cores are wanted, until a worker has accepted.
    waiting_since_s: dict[PartKey, float] = field(default_factory=dict)
    start_at_s: dict[str, float] = field(default_factory=dict)  # by workflow
    refusals: dict[PartKey, int] = field(default_factory=dict)  # in a row
    # Until when a lost attempt may have load; the next one is prepared meanwhile.
    fenced_until_s: dict[PartKey, float] = field(default_factory=dict)

    def statistics_of(self, job: Job, workflow: str) -> WorkflowStatistics:
        found = self.statistics.get(workflow)
        if found is None:
            found = self.statistics[workflow] = WorkflowStatistics(job.plan_of(workflow))
        return found


class LeaderTables:
    """One leadership's memory, and the identity its commands carry."""

    make_workers: ClassVar[type[WorkerTable]] = WorkerTable

    def __init__(self, group: int, node: str, timeouts: LeaderTimeouts) -> None:
        self.group = group
        self.node = node
        self.timeouts = timeouts
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.term = 0
        self.took_over_ms = 0
        self.workers = self.make_workers(self.timeouts)
        self.attempts = AttemptTable()
        self.requests = CoreRequests()
        self.proposals = Proposals(self.timeouts)
        self.jobs: dict[str, JobProgress] = {}
        self.returned: set[str] = set()  # workers that came (back) under this leader
        self.touched: set[str] = set()  # jobs to reconcile

    def begin(self, event: BecameLeader, *, now_s: float) -> None:
        self.clear()
        self.term = event.term
        self.took_over_ms = event.now_ms
        self.workers.begin(event.workers, now_s=now_s)

    def job(self, job: Job, *, now_s: float) -> JobProgress:
        """The progress of a job; a new record if there is none."""
        progress = self.jobs.get(job.id)
        if progress is None:
            progress = self.jobs[job.id] = JobProgress(now_s + self.timeouts.checkpoint_s)
            if job.options.timeout_s is not None:
                progress.deadline_s = now_s + job.options.timeout_s
        return progress

    # --- commands ---------------------------------------------------------------------------

    @property
    def lease_ms(self) -> int:
        return round(self.timeouts.lease_s * 1000)

    def stop(self, worker: str, attempt: AttemptId, reason: str = UNWANTED) -> SendCommand:
        command = StopPart(
            attempt_id=attempt,
            group=self.group,
            term=self.term,
            reason=reason,
            grace_s=self.timeouts.stop_grace_s,
        )
        return SendCommand(worker, command)

    def acknowledge(self, worker: str, attempt: AttemptId) -> SendCommand:
        return SendCommand(
            worker, AcknowledgeResult(attempt_id=attempt, group=self.group, term=self.term)
        )

    def release(self, request: str, *, part: int = -1) -> SendRelease:
        """Release a grant, or withdraw a request; with `part` only that part of a grant."""
        return SendRelease(
            ReleaseCores(request_id=request, group=self.group, term=self.term, part=part)
        )
