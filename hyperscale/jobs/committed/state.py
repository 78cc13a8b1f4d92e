"""The committed state of jobs, and the legal moves of jobs and workflows.

Plain mutable structs that encode as they are: together they are the snapshot. Only `machine` writes
them, by the rules of `transitions`. Reports and context stay encoded. A field that ends with `_ms`
is an instant of the group's time, which no wall clock changes; dates, for people, end with
`_unix_ms`.
"""

from collections.abc import Iterator
from enum import Enum

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hyperscale.errors import InvariantError
from hyperscale.jobs.committed.events import AttemptFault, JobOptions, JobStatus
from hyperscale.jobs.messages import AttemptId
from hyperscale.plan import Plan, WorkflowPlan
from hyperscale.plan.changes import AppliedChange, LoadSchedule, shifted
from hyperscale.plan.rows import LostRows
from hyperscale.plan.status import PartStatus
from hyperscale.stats.view import ViewStatus


class WorkflowStatus(Enum):
    PENDING = "pending"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    FAILED_CANCELING_DEPENDENTS = "failed_canceling_deps"
    FAILED_READY_FOR_RETRY = "failed_ready"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    AGGREGATED = "aggregated"


_W = WorkflowStatus
_J = JobStatus

WORKFLOW_MOVES: dict[WorkflowStatus, frozenset[WorkflowStatus]] = {
    _W.PENDING: frozenset({_W.DISPATCHED, _W.CANCELLED, _W.FAILED}),
    _W.DISPATCHED: frozenset({_W.RUNNING, _W.PENDING, _W.COMPLETED, _W.FAILED, _W.CANCELLING}),
    _W.RUNNING: frozenset({_W.COMPLETED, _W.FAILED, _W.CANCELLING}),
    _W.FAILED: frozenset({_W.FAILED_READY_FOR_RETRY, _W.FAILED_CANCELING_DEPENDENTS, _W.CANCELLED}),
    _W.FAILED_READY_FOR_RETRY: frozenset({_W.PENDING, _W.CANCELLED}),
    _W.FAILED_CANCELING_DEPENDENTS: frozenset({_W.FAILED, _W.CANCELLED}),
    _W.CANCELLING: frozenset({_W.CANCELLED}),
    _W.COMPLETED: frozenset({_W.AGGREGATED}),
    _W.CANCELLED: frozenset(),
    _W.AGGREGATED: frozenset(),
}
# A retry is a new attempt of a part, so a workflow does not leave FAILED.
WORKFLOW_ENDS = frozenset({_W.COMPLETED, _W.FAILED, _W.CANCELLED, _W.AGGREGATED})

JOB_ENDS = frozenset({_J.COMPLETED, _J.PARTIAL, _J.FAILED, _J.CANCELLED, _J.TIMEOUT})
JOB_MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    _J.SUBMITTED: frozenset({_J.QUEUED, _J.DISPATCHING, _J.COMPLETING, _J.CANCELLING}) | JOB_ENDS,
    _J.QUEUED: frozenset({_J.DISPATCHING, _J.COMPLETING, _J.CANCELLING}) | JOB_ENDS,
    _J.DISPATCHING: frozenset({_J.RUNNING, _J.COMPLETING, _J.CANCELLING}) | JOB_ENDS,
    _J.RUNNING: frozenset({_J.COMPLETING, _J.CANCELLING}) | JOB_ENDS,
    _J.COMPLETING: JOB_ENDS,
    _J.CANCELLING: JOB_ENDS,
    **{end: frozenset() for end in JOB_ENDS},
}


class Segment(Struct, kw_only=True, omit_defaults=True):
    """What a revoked attempt had reported: those requests did reach the target."""

    attempt: int
    worker: str
    reason: str
    began_s: float = 0.0  # time since the start of the workflow when the attempt began
    elapsed_s: float = 0.0
    report: bytes = b""
    ended_ms: int = 0  # when the attempt was revoked
    fault: AttemptFault = AttemptFault.NONE

    @property
    def costs_retry(self) -> bool:
        return self.fault is not AttemptFault.NONE

    @property
    def load_until_s(self) -> float:
        """How much load the part had had when the attempt ended, in seconds."""
        return self.began_s + self.elapsed_s


class Gap(Struct, kw_only=True, omit_defaults=True):
    """Load that an attempt may have sent without reporting it."""

    part: int
    attempt: int
    worker: str
    seconds: float
    requests_max: int
    is_final: bool = False  # of a merged record: the datacenter has bounded it by all it knew
    rows: list[LostRows] = field(
        default_factory=list
    )  # that it may have used, without reporting it


class PartEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a part ended: the result of its last attempt."""

    status: PartStatus
    error: str | None = None
    provided: list[bytes] = field(default_factory=list)  # context for dependents
    was_saturated: bool = False


class Teardown(Enum):
    """Whether a workflow has to be torn down."""

    NONE = "none"  # it was not set up, or there are no teardown hooks
    OWED = "owed"  # it was set up: teardown follows its last part
    STARTED = "started"  # a worker may have begun it: no other one runs it
    OVER = "over"  # teardown ended, or was given up


class PartRows(Struct, kw_only=True, omit_defaults=True):
    """Rows of feeds that deal each row once, as far as a part may have used them: counted for each
    of its slots."""

    first: int = 0  # the first one of the open attempt
    limit: int = 0  # it uses those below
    used: list[int] = field(default_factory=list)  # by slot, as far as it is known
    users_before: int = 0  # users of earlier attempts, which have had a row each


class Part(Struct, kw_only=True, omit_defaults=True):
    """One worker's share of a workflow, and the attempts to run it."""

    first_slot: int
    cores: int
    attempt: int = 0  # the latest that was dispatched
    worker: str = ""  # of that attempt
    is_open: bool = False  # that attempt was neither revoked nor has it ended
    # Time since the start of the workflow when the open attempt began. Without one, when the last
    # one had ended, its gap included: the next attempt runs for the rest.
    began_s: float = 0.0
    iterations_done: int = 0
    # Of the open attempt: when its load was last known (its dispatch at first), and how far it was.
    seen_ms: int = 0
    elapsed_s: float = 0.0
    iterations: int = 0
    report: bytes = b""  # at the last checkpoint; once ended, the final report
    end: PartEnd | None = None
    rows: PartRows | None = None  # None: no feed of the workflow deals each row once
    segments: list[Segment] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.end is not None

    @property
    def is_completed(self) -> bool:
        return self.end is not None and self.end.status is PartStatus.COMPLETED

    @property
    def was_saturated(self) -> bool:
        return self.end is not None and self.end.was_saturated


class Stop(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workflow or job is to end early: as what, and why."""

    status: JobStatus
    reason: str
    aborted_by: str = ""  # of a job: the workflow whose threshold ended it
    failed_dependency: str = ""  # of a workflow: the one that failed, so that this cannot start


class WorkflowState(Struct, kw_only=True, omit_defaults=True):
    status: WorkflowStatus = WorkflowStatus.PENDING
    parts: list[Part] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    error: str | None = None
    stop: Stop | None = None
    ended_as: JobStatus | None = None  # COMPLETED, FAILED, CANCELLED or TIMEOUT
    ended_ms: int = 0
    began_ms: int = 0  # when its load began, as of its first checkpoint; 0 before it
    changes: list[AppliedChange] = field(default_factory=list)  # of its load, in order
    within_job: bool = False  # its one part has no core: it shares those of its job
    shared_cores: int = 0  # cores that it shares with other workflows of the job, or has shared
    set_up: bytes = b""  # the context that setup left; empty: it has not run
    teardown: Teardown = Teardown.NONE
    teardown_part: int | None = None  # the last part, which runs the teardown and has no load
    teardown_problem: str = ""  # why it is not known to have run to its end

    @property
    def has_ended(self) -> bool:
        return self.ended_as is not None

    @property
    def load_parts(self) -> list[Part]:
        return self.parts[: self.teardown_part]

    @property
    def is_load_over(self) -> bool:
        """True if the end of the workflow is known and no part has load."""
        parts = self.load_parts
        if any(part.is_open for part in parts):
            return False
        return self.stop is not None or (bool(parts) and all(part.is_completed for part in parts))

    @property
    def is_tearing_down(self) -> bool:
        """True if all that is missing is the teardown."""
        return self.teardown in (Teardown.OWED, Teardown.STARTED) and self.is_load_over

    @property
    def slots(self) -> int:
        return sum(part.cores for part in self.load_parts)

    @property
    def attempts(self) -> int:
        """How many attempts were dispatched, of all parts with load."""
        return sum(part.attempt for part in self.load_parts)

    @property
    def workers(self) -> list[str]:
        return [part.worker for part in self.load_parts if part.worker]

    def has_open_parts(self) -> bool:
        return any(part.is_open for part in self.parts)

    def become(self, status: WorkflowStatus) -> None:
        """Move to `status`. The only writer of it."""
        if status not in WORKFLOW_MOVES[self.status]:
            raise InvariantError(f"workflow {self.status.value} -> {status.value}")
        self.status = status


class JobTimes(Struct, kw_only=True, omit_defaults=True):
    """When a job was submitted, first dispatched and ended: in the time of its group, and as dates
    by the wall clocks of its leaders. 0: it has not happened."""

    submitted_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    submitted_unix_ms: int = 0
    started_unix_ms: int = 0
    ended_unix_ms: int = 0

    def note_dates(self, unix_ms: int) -> None:
        """Keep the date of the first dispatch and of the end, once each has happened."""
        if self.started_ms and not self.started_unix_ms:
            self.started_unix_ms = unix_ms
        if self.ended_ms and not self.ended_unix_ms:
            self.ended_unix_ms = unix_ms

    @property
    def elapsed_s(self) -> float:
        """From the first dispatch to the end."""
        return max(0, self.ended_ms - self.started_ms) / 1000 if self.started_ms else 0.0


class DatacenterRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one datacenter's part of a global job ended, in the merged record of the job."""

    datacenter: str
    status: str  # of its part: that of a job, or refused, or lost
    reason: str = ""
    local_job: str = ""
    vus: dict[str, int] = field(default_factory=dict)  # its share, by workflow
    elapsed_s: float = 0.0
    began_s: float | None = None  # when its load began, from the start of the job
    joined_late: bool = False  # it was not ready when the others started
    replaces: str = ""
    replaced_by: str = ""
    late_result: bytes = b""  # its record, if it came after the end of the job: in no total
    changes: dict[str, list[AppliedChange]] = field(default_factory=dict)  # by workflow


class Reported(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which reporters of a node have got the result of a job."""

    by: str  # the manager or gate
    sent: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # with the reasons


class JobControl(Struct, kw_only=True, omit_defaults=True):
    """What users and gates have asked for while the job exists."""

    # A part of a global job may begin: how long the other datacenters had run at its release.
    released_s: float | None = None
    change_ids: list[str] = field(default_factory=list)  # of all changes of its load
    paused_ms: int = 0  # since when its load is paused; 0: it is not
    pauses_ms: int = 0  # for how long it was paused before that

    def paused_s(self, now_ms: int) -> float:
        """Return for how long the load was paused so far, in all."""
        return (self.pauses_ms + (now_ms - self.paused_ms if self.paused_ms else 0)) / 1000


class Job(Struct, kw_only=True, omit_defaults=True):
    """Everything about one job. Encoded, it is the final record in history."""

    id: str
    key: str
    digest: str
    plan: Plan
    bundle: str = ""
    options: JobOptions = field(default_factory=JobOptions)
    by: str = ""
    status: JobStatus = JobStatus.SUBMITTED
    workflows: dict[str, WorkflowState] = field(default_factory=dict)  # in the plan's order
    stop: Stop | None = None
    reason: str = ""
    times: JobTimes = field(default_factory=JobTimes)
    context_bytes: int = 0  # that its parts provided
    control: JobControl = field(default_factory=JobControl)
    datacenters: list[DatacenterRecord] = field(default_factory=list)  # of a merged record
    reported: Reported | None = None  # after its end, if managers send the result

    @property
    def has_ended(self) -> bool:
        return self.status in JOB_ENDS

    @property
    def ended_ms(self) -> int:
        return self.times.ended_ms

    @property
    def joined_s(self) -> float:
        """How much of its duration a part of a global job leaves out, as it joins others late."""
        return self.control.released_s or 0.0

    @property
    def may_begin(self) -> bool:
        """True unless the job is paused, or a part of a global job that has not begun yet."""
        part = self.options.part_of
        if self.control.paused_ms:
            return False
        return part is None or not part.waits or self.control.released_s is not None

    @property
    def aborted_by(self) -> str:
        """The workflow whose threshold ended the job; empty if none did."""
        return self.stop.aborted_by if self.stop else ""

    def become(self, status: JobStatus) -> None:
        """Move to `status`. The only writer of it."""
        if status not in JOB_MOVES[self.status]:
            raise InvariantError(f"job {self.id}: {self.status.value} -> {status.value}")
        self.status = status

    def plan_of(self, workflow: str) -> WorkflowPlan:
        return next(plan for plan in self.plan.workflows if plan.name == workflow)

    def schedule_of(self, workflow: str, *, behind_s: float = 0.0) -> LoadSchedule:
        """Return the shape of a workflow with the changes so far, as a part sees it that runs
        `behind_s` behind the others."""
        changes = self.workflows[workflow].changes
        return LoadSchedule(self.plan_of(workflow), shifted(changes, behind_s))

    def attempts(self) -> Iterator[tuple[AttemptId, Part]]:
        """Return the open attempts, with their parts."""
        for name, workflow in self.workflows.items():
            for index, part in enumerate(workflow.parts):
                if part.is_open:
                    yield AttemptId(self.id, name, index, part.attempt), part

    def final_status(self) -> JobStatus:
        """Return what the job ends as, once every workflow has ended."""
        if self.stop is not None:
            return self.stop.status
        ends = [workflow.ended_as for workflow in self.workflows.values()]
        if all(end is JobStatus.COMPLETED for end in ends):
            return JobStatus.COMPLETED
        if JobStatus.COMPLETED in ends:
            return JobStatus.PARTIAL
        # Workflows that depend on one that timed out were cancelled for that.
        is_late = set(ends) - {JobStatus.CANCELLED} == {JobStatus.TIMEOUT}
        return JobStatus.TIMEOUT if is_late else JobStatus.FAILED

    def final_reason(self) -> str:
        if self.stop is not None:
            return self.stop.reason
        failed = [
            f"{name}: {workflow.error}"
            for name, workflow in self.workflows.items()
            if workflow.error and workflow.ended_as is not JobStatus.COMPLETED
        ]
        return "; ".join(failed)

    def strip(self) -> None:
        """Drop what only the final record needs; that is in history by now."""
        for workflow in self.workflows.values():
            for part in workflow.parts:
                part.report = b""
                if part.end is not None:
                    part.end = replace(part.end, provided=[])
                for segment in part.segments:
                    segment.report = b""


class WorkflowRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    status: WorkflowStatus
    cores: int = 0
    attempts: int = 0
    error: str | None = None
    workers: list[str] = field(default_factory=list)
    ended_as: JobStatus | None = None
    shared_cores: int = 0


class JobView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job for people, without statistics."""

    job: str
    status: JobStatus
    file: str
    reason: str = ""  # why it ended so; while it waits for cores, why it waits
    aborted_by: str = ""  # the workflow whose threshold ended the job
    position: int = 0  # its place in the queue for cores; 0: not in it
    submitted_ms: int = 0  # a date, for people: milliseconds of the Unix epoch
    started_ms: int = 0  # as above
    ended_ms: int = 0  # as above; 0: it has not ended
    # Ages, when the view was made; None: it has not happened.
    submitted_ago_s: float | None = None
    started_ago_s: float | None = None
    ended_ago_s: float | None = None
    reported: Reported | None = None
    workflows: list[WorkflowRow] = field(default_factory=list)
    by: str = ""  # who submitted it; proved by a credential if clients have names


ENDED_JOBS = "#ended"
"""The index of the history that has a row for each job that has ended."""

_encode_view = msgspec.msgpack.Encoder().encode
_view_decoder = msgspec.msgpack.Decoder(JobView)


def ended_row(view: JobView) -> tuple[str, str, bytes]:
    """Return the row of a job that has ended, small enough to list all jobs of a month."""
    return ENDED_JOBS, "ended", _encode_view(replace(view, workflows=[]))


def decode_ended(data: bytes, *, unix_ms: int) -> JobView:
    """Return a job from its row, with its ages at a date."""
    view = _view_decoder.decode(data)
    ago = {
        f"{name}_ago_s": max(0, unix_ms - date_ms) / 1000 if date_ms else None
        for name, date_ms in (
            ("submitted", view.submitted_ms),
            ("started", view.started_ms),
            ("ended", view.ended_ms),
        )
    }
    return replace(view, **ago)


def view_of(job: Job, now_ms: int) -> JobView:
    """Return a job for people, at a time of its group."""
    times = job.times
    return JobView(
        job=job.id,
        status=job.status,
        file=job.plan.file,
        reason=job.reason or (job.stop.reason if job.stop else ""),
        aborted_by=job.aborted_by,
        submitted_ms=times.submitted_unix_ms,
        started_ms=times.started_unix_ms,
        ended_ms=times.ended_unix_ms,
        submitted_ago_s=ago_s(times.submitted_ms, now_ms),
        started_ago_s=ago_s(times.started_ms, now_ms),
        ended_ago_s=ago_s(times.ended_ms, now_ms),
        reported=job.reported,
        by=job.by,
        workflows=[
            WorkflowRow(
                name=name,
                status=workflow.status,
                cores=workflow.slots,
                attempts=workflow.attempts,
                error=workflow.error,
                workers=workflow.workers,
                ended_as=workflow.ended_as,
                shared_cores=workflow.shared_cores,
            )
            for name, workflow in job.workflows.items()
        ],
    )


def ago_s(at_ms: int, now_ms: int) -> float | None:
    return max(0, now_ms - at_ms) / 1000 if at_ms else None


_VIEW_STATUS = {  # where the names differ
    WorkflowStatus.PENDING: ViewStatus.WAITING,
    WorkflowStatus.DISPATCHED: ViewStatus.PREPARING,
    WorkflowStatus.FAILED_CANCELING_DEPENDENTS: ViewStatus.FAILED,
    WorkflowStatus.FAILED_READY_FOR_RETRY: ViewStatus.WAITING,
    WorkflowStatus.AGGREGATED: ViewStatus.COMPLETED,
}


def view_status(status: WorkflowStatus, ended_as: JobStatus | None) -> ViewStatus:
    """Return the status of a workflow as people see it."""
    if ended_as is not None:
        return ViewStatus(ended_as.value)
    return _VIEW_STATUS.get(status) or ViewStatus(status.value)


decode_job = msgspec.msgpack.Decoder(Job).decode  # of a final record
