"""The memory of a job leader during one leadership, and the event that is being handled.

None of it is replicated: a new leader fills it from committed state and from what workers say.
"""

from dataclasses import dataclass, field
from typing import Any

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Checkpointed,
    Event,
    PartEnded,
    TimePassed,
    kind_of,
)
from hyperscale.jobs.committed.state import Job
from hyperscale.jobs.leader.attempts import AttemptTable
from hyperscale.jobs.leader.core_requests import CoreRequests
from hyperscale.jobs.leader.events import (
    LeaderEffect,
    Propose,
    SendCommand,
    SendRelease,
    WorkerCommand,
)
from hyperscale.jobs.leader.leader_time import LeaderTime
from hyperscale.jobs.leader.retries import RetryLimits
from hyperscale.jobs.leader.statistics import WorkflowStatistics
from hyperscale.jobs.leader.timeouts import LeaderTimeouts
from hyperscale.jobs.leader.worker_liveness import WorkerTable
from hyperscale.jobs.messages import AcknowledgeResult, AttemptId, ReleaseCores, StopPart

_UNWANTED = "the attempt is not wanted any more"
_SUBJECT = ("key", "job", "workflow", "part", "attempt")
"""Fields of committed events that say what an event is about."""

PartKey = tuple[str, int]
"""Workflow and part; part -1 stands for the first attempt of all parts."""


@dataclass(slots=True)
class JobProgress:
    """One job that has not ended."""

    checkpoint_at_s: float
    deadline_s: float | None = None  # of the whole job
    thresholds_at_s: float = 0.0
    grant_rows_at_s: float = 0.0  # when limits of rows may be raised again
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
            found.stats.schedule = job.schedule_of(workflow)
        return found


class LeaderState:
    """One leadership: its identity and memory, and the time and effects of the current event."""

    def __init__(
        self, group: int, node: str, timeouts: LeaderTimeouts, retries: RetryLimits
    ) -> None:
        self.group = group
        self.node = node
        self.timeouts = timeouts
        self.retries = retries
        self.term = 0
        self.time = LeaderTime()
        self.now_s = 0.0
        self.effects: list[LeaderEffect] = []
        self.workers = WorkerTable(timeouts)
        self.attempts = AttemptTable()
        self.requests = CoreRequests()
        self.jobs: dict[str, JobProgress] = {}
        self.returned: set[str] = set()  # workers that came (back) under this leader
        self.touched: set[str] = set()  # jobs to reconcile
        self._propose_again_at_s: dict[tuple[Any, ...], float] = {}

    def begin_event(self, now_s: float) -> None:
        self.now_s = self.workers.now_s = now_s
        self.effects = []

    def job(self, job: Job) -> JobProgress:
        """Return the progress of a job; begin a record if there is none."""
        progress = self.jobs.get(job.id)
        if progress is None:
            progress = self.jobs[job.id] = JobProgress(self.now_s + self.timeouts.checkpoint_s)
            if job.options.timeout_s is not None:
                progress.deadline_s = self.now_s + job.options.timeout_s
        return progress

    # --- proposals --------------------------------------------------------------------------

    def propose(self, event: Event) -> None:
        """Propose an event, unless the same proposal is under way."""
        key = _key(event)
        again_at_s = self._propose_again_at_s.get(key)
        if again_at_s is None or self.now_s >= again_at_s:
            self._propose_again_at_s[key] = self.now_s + self.timeouts.proposal_s
            self.effects.append(Propose(event))

    def commit_time(self) -> None:
        """Commit the time of the group, if no entry has had it for a while."""
        if self.now_s >= self.time.committed_s + self.timeouts.commit_time_s:
            self.propose(TimePassed())

    def proposal_applied(self, event: Event) -> None:
        self._propose_again_at_s.pop(_key(event), None)
        self.time.committed_s = self.now_s

    def proposal_failed(self, event: Event) -> None:
        """Allow the proposal again, but not at once."""
        key = _key(event)
        if key in self._propose_again_at_s:
            self._propose_again_at_s[key] = self.now_s + self.timeouts.repeat_s

    # --- commands ---------------------------------------------------------------------------

    @property
    def lease_ms(self) -> int:
        return round(self.timeouts.lease_s * 1000)

    def send(self, worker: str, command: WorkerCommand) -> None:
        self.effects.append(SendCommand(worker, command))

    def stop(self, worker: str, attempt: AttemptId, reason: str = _UNWANTED) -> None:
        command = StopPart(
            attempt_id=attempt,
            group=self.group,
            term=self.term,
            reason=reason,
            grace_s=self.timeouts.stop_grace_s,
        )
        self.send(worker, command)

    def acknowledge(self, worker: str, attempt: AttemptId) -> None:
        command = AcknowledgeResult(attempt_id=attempt, group=self.group, term=self.term)
        self.send(worker, command)

    def release(self, request: str, *, part: int = -1) -> None:
        """Release a grant, or withdraw a request; with `part` only that part of a grant."""
        release = ReleaseCores(request_id=request, group=self.group, term=self.term, part=part)
        self.effects.append(SendRelease(release))


def _key(event: Event) -> tuple[Any, ...]:
    """Return a key that is the same for two proposals that decide the same thing."""
    if isinstance(event, Checkpointed):
        return (kind_of(event), event.job, *((p.workflow, p.part) for p in event.parts[:1]))
    # An attempt is revoked or ends with a result: not both.
    kind = "closed" if isinstance(event, AttemptRevoked | PartEnded) else kind_of(event)
    return (kind, *(getattr(event, name, None) for name in _SUBJECT))
