"""The committed state of global jobs, and the legal moves of their assignments."""

from collections.abc import Iterator
from enum import Enum

import msgspec
from msgspec import Struct, field

from hyperscale.errors import InvariantError
from hyperscale.gates.committed.events import GlobalOptions, LossPolicy
from hyperscale.gates.datacenters.routing import DatacenterChoice
from hyperscale.gates.slices import PlanShare
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import JOB_ENDS, JOB_MOVES, JobTimes, Reported, Stop
from hyperscale.plan import Plan
from hyperscale.plan.changes import AppliedChange, ChangeKind, LoadChange


class AssignmentStatus(Enum):
    ASSIGNED = "assigned"  # the datacenter may or may not know of it
    ACCEPTED = "accepted"  # the datacenter has committed the job
    REFUSED = "refused"  # the datacenter will never run it
    LOST = "lost"  # not heard for long after its own deadline
    FINISHED = "finished"


_A = AssignmentStatus
_SCALE = ChangeKind.SCALE

ASSIGNMENT_MOVES: dict[AssignmentStatus, frozenset[AssignmentStatus]] = {
    _A.ASSIGNED: frozenset({_A.ACCEPTED, _A.REFUSED, _A.LOST, _A.FINISHED}),
    _A.ACCEPTED: frozenset({_A.LOST, _A.FINISHED}),
    _A.LOST: frozenset({_A.FINISHED}),  # its result came after all, while the job was open
    _A.REFUSED: frozenset(),
    _A.FINISHED: frozenset(),
}
ASSIGNMENT_ENDS = frozenset({_A.REFUSED, _A.LOST, _A.FINISHED})


class Withdrawal(Enum):
    """Why a part that was assigned is taken from its datacenter."""

    REMOVED = "removed"  # the datacenter was removed: nothing runs there
    RECALLED = "recalled"  # it waited in the queue: it is cancelled there, to go to another one


class PartChanges(Struct, kw_only=True, omit_defaults=True):
    """The changes of the load of one datacenter's part, in order, and how many it has taken."""

    all: list[LoadChange] = field(default_factory=list)
    taken: int = 0

    @property
    def open(self) -> list[LoadChange]:
        return self.all[self.taken :]


class GlobalChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the load of the whole job."""

    change: LoadChange
    at_ms: int
    targets: dict[str, float]  # by workflow, for all datacenters together; 0 unless it scales


class DatacenterAssignment(Struct, kw_only=True, omit_defaults=True):
    """One datacenter's part of a global job."""

    datacenter: str
    index: int
    workflows: PlanShare
    status: AssignmentStatus = AssignmentStatus.ASSIGNED
    local_job: str = ""
    ended_as: JobStatus | None = None  # of a finished one
    reason: str = ""
    elapsed_s: float = 0.0
    result: bytes = b""
    replaces: str = ""  # the datacenter whose part this is
    replaced_by: str = ""
    assigned_ms: int = 0
    began_ms: int = 0  # when its load began; 0: not known
    withdrawn: Withdrawal | None = None  # why another datacenter may get it
    is_late: bool = False  # its result came after the job had ended; it is in no total
    changes: PartChanges = field(default_factory=PartChanges)

    @property
    def has_ended(self) -> bool:
        return self.status in ASSIGNMENT_ENDS

    @property
    def is_completed(self) -> bool:
        return self.ended_as is JobStatus.COMPLETED and not self.is_late

    @property
    def is_counted(self) -> bool:
        """True unless another datacenter has taken its place."""
        return not self.replaced_by

    @property
    def is_vacant(self) -> bool:
        """True if nobody runs this part, for certain, and another datacenter may."""
        if self.replaced_by:
            return False
        if self.withdrawn is Withdrawal.RECALLED:
            return self.ended_as is JobStatus.CANCELLED
        return self.status is AssignmentStatus.REFUSED or self.withdrawn is Withdrawal.REMOVED

    def become(self, status: AssignmentStatus) -> None:
        """Move to `status`. The only writer of it."""
        if status not in ASSIGNMENT_MOVES[self.status]:
            raise InvariantError(f"{self.datacenter}: {self.status.value} -> {status.value}")
        self.status = status


class GlobalJob(Struct, kw_only=True, omit_defaults=True):
    """Everything about one global job. Encoded, it is the final record in history."""

    id: str
    key: str
    digest: str
    plan: Plan
    bundle: str = ""
    options: GlobalOptions = field(default_factory=GlobalOptions)
    by: str = ""
    status: JobStatus = JobStatus.SUBMITTED
    assignments: list[DatacenterAssignment] = field(default_factory=list)
    routing: DatacenterChoice | None = None
    started_with: list[str] = field(default_factory=list)  # datacenters that were ready then
    stop: Stop | None = None
    reason: str = ""
    times: JobTimes = field(default_factory=JobTimes)  # started: when the start was ordered
    reported: Reported | None = None  # after its end, if gates send the result
    changes: list[GlobalChange] = field(default_factory=list)  # of its load, in order

    @property
    def submitted_ms(self) -> int:
        return self.times.submitted_ms

    @property
    def started_ms(self) -> int:
        return self.times.started_ms

    @property
    def ended_ms(self) -> int:
        return self.times.ended_ms

    @property
    def has_ended(self) -> bool:
        return self.status in JOB_ENDS

    def become(self, status: JobStatus) -> None:
        """Move to `status`. The only writer of it."""
        if status not in JOB_MOVES[self.status]:
            raise InvariantError(f"global job {self.id}: {self.status.value} -> {status.value}")
        self.status = status

    def assignment(self, datacenter: str) -> DatacenterAssignment | None:
        return next((each for each in self.assignments if each.datacenter == datacenter), None)

    def open_assignments(self) -> Iterator[DatacenterAssignment]:
        return (each for each in self.assignments if not each.has_ended)

    def counted(self) -> list[DatacenterAssignment]:
        """Return the assignments that decide how the job ends."""
        return [each for each in self.assignments if each.is_counted]

    def has_failed_part(self) -> bool:
        """Return True if a datacenter will not complete its part."""
        return any(each.has_ended and not each.is_completed for each in self.counted())

    @property
    def is_paused(self) -> bool:
        kinds = [each.change.kind for each in self.changes]
        return next((k is ChangeKind.PAUSE for k in reversed(kinds) if k is not _SCALE), False)

    def paused_ms(self, since_ms: int, now_ms: int) -> int:
        """Return for how long the load was paused between two instants."""
        total_ms, from_ms = 0, None
        for each in self.changes:
            if each.change.kind is ChangeKind.PAUSE:
                from_ms = each.at_ms
            elif each.change.kind is ChangeKind.RESUME and from_ms is not None:
                total_ms += max(0, each.at_ms - max(from_ms, since_ms))
                from_ms = None
        if from_ms is not None:
            total_ms += max(0, now_ms - max(from_ms, since_ms))
        return total_ms

    def applied_changes(
        self, workflow: str, *, began_ms: int, ended_ms: int | None = None
    ) -> list[AppliedChange]:
        """Return the changes of a workflow, in the time since its load began."""
        return [
            AppliedChange(
                kind=each.change.kind,
                at_s=max(0, each.at_ms - began_ms) / 1000,
                target=each.targets[workflow],
                over_s=each.change.over_s,
                by=each.change.by,
            )
            for each in self.changes
            if workflow in each.targets
            and (ended_ms is None or each.at_ms < ended_ms)
            # A workflow does not begin during a pause.
            and (each.change.kind is _SCALE or each.at_ms > began_ms)
        ]

    def final_status(self) -> JobStatus:
        """Return what the job ends as, once every assignment has ended."""
        counted = self.counted()
        ends = {each.ended_as for each in counted}
        if counted and ends == {JobStatus.COMPLETED}:
            return JobStatus.COMPLETED  # completion in the datacenters wins over a late cancel
        if self.stop is not None:
            return self.stop.status
        if self.options.policy is LossPolicy.ALL_OR_NOTHING:
            return JobStatus.FAILED
        if ends & {JobStatus.COMPLETED, JobStatus.PARTIAL}:
            return JobStatus.PARTIAL
        if len(ends) == 1 and (end := next(iter(ends))) in (JobStatus.TIMEOUT, JobStatus.CANCELLED):
            return end
        return JobStatus.FAILED

    def final_reason(self) -> str:
        if self.final_status() is JobStatus.COMPLETED:
            return ""
        parts = [
            f"{each.datacenter}: {each.reason or each.status.value}"
            for each in self.counted()
            if not each.is_completed
        ]
        return "; ".join(([self.stop.reason] if self.stop else []) + parts)

    def strip(self) -> None:
        """Drop what only the final record needs; that is in history by now."""
        for assignment in self.assignments:
            assignment.result = b""


decode_global_job = msgspec.msgpack.Decoder(GlobalJob).decode  # of a final record
