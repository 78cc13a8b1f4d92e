"""Events of a group's log about global jobs.

Each event may be applied twice, late, or after its proposer was deposed; it is idempotent per job
and datacenter. Plans, shares and routing decisions are committed before anything is sent.
"""

import hashlib
from enum import Enum

import msgspec
from msgspec import Struct, field

from hyperscale.gates.datacenters.routing import DatacenterChoice
from hyperscale.gates.slices import PlanShare
from hyperscale.jobs.committed.events import JobOptions, JobStatus
from hyperscale.jobs.committed.state import Reported
from hyperscale.plan import Plan
from hyperscale.plan.changes import LoadChange


class LossPolicy(Enum):
    """What becomes of a global job if one of its datacenters does not complete."""

    BEST_EFFORT = "best_effort"  # the others go on; the job ends as partial
    ALL_OR_NOTHING = "all_or_nothing"  # the others are stopped; the job fails


class GlobalOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the submitter chooses for the job over all datacenters."""

    datacenters: tuple[str, ...] = ()  # by name; empty: chosen by the gates
    datacenter_count: int = 1
    fallback: bool = False  # others may take the place of named ones that refuse
    policy: LossPolicy = LossPolicy.BEST_EFFORT
    vus_per_datacenter: bool = False
    timeout_s: float | None = None  # of the job, from submission to end
    start_timeout_s: float = 30.0  # how long those that are ready wait for the others
    lost_after_s: float = 120.0  # after the datacenter's own deadline
    spill_over_s: float | None = None  # how long a part may wait in a queue; None: for ever
    job: JobOptions = field(default_factory=JobOptions)  # within each datacenter


class GlobalJobSubmitted(Struct, tag="submitted", frozen=True, kw_only=True):
    """A client submitted a job to the gates. The job's id follows from the key."""

    key: str
    digest: str
    plan: Plan
    bundle: str = ""
    options: GlobalOptions = field(default_factory=GlobalOptions)
    by: str = ""


class DatacenterShare(Struct, frozen=True, kw_only=True):
    """A datacenter, and the part of the job that it runs."""

    datacenter: str
    workflows: PlanShare


class DatacentersAssigned(Struct, tag="assigned", frozen=True, kw_only=True):
    """Datacenters get their parts of the job. Committed before any of them hears of it.

    With `replaces` others get the part of a datacenter that has definitely refused it, was removed,
    or gave it back from its queue: one that had no part, if there is a share, and those that have
    one, which grow by what they are `given`.
    """

    job: str
    shares: list[DatacenterShare]
    routing: DatacenterChoice | None = None
    replaces: str = ""
    given: dict[str, dict[str, float]] = field(default_factory=dict)
    """Datacenter -> workflow -> users, or iterations per second, of a part that was split."""


class AssignmentAccepted(Struct, tag="accepted", frozen=True, kw_only=True):
    """A datacenter has committed the job."""

    job: str
    datacenter: str
    local_job: str


class AssignmentRefused(Struct, tag="refused", frozen=True, kw_only=True):
    """A datacenter has committed that it will never run the job."""

    job: str
    datacenter: str
    reason: str


class GlobalStartOrdered(Struct, tag="started", frozen=True, kw_only=True):
    """Datacenters that are ready begin now, others as soon as they are. Committed once."""

    job: str
    ready: list[str]


class DatacenterBegan(Struct, tag="began", frozen=True, kw_only=True):
    """The load of a datacenter began. Committed once, so that all are measured by one owner, if it
    lives for two seconds after the start: clocks of two owners differ by more than a start does."""

    job: str
    datacenter: str
    began_ms: int  # in the time of the group


class DatacenterFinished(Struct, tag="finished_datacenter", frozen=True, kw_only=True):
    """A datacenter's part of the job has ended. The first such event of a datacenter counts."""

    job: str
    datacenter: str
    status: JobStatus
    reason: str = ""
    local_job: str = ""
    elapsed_s: float = 0.0
    result: bytes = b""
    began_ms: int = 0  # when its load began, in the time of the group; 0: not known


class DatacenterLost(Struct, tag="lost", frozen=True, kw_only=True):
    """A datacenter was not heard for long after its own deadline, or was removed for good. `result`
    is what it had reported, with the bound of what it had not."""

    job: str
    datacenter: str
    reason: str
    result: bytes = b""
    began_ms: int = 0
    is_removed: bool = False  # an operator says that nothing runs there any more


class AssignmentRecalled(Struct, tag="recalled", frozen=True, kw_only=True):
    """A part that waits in the queue of a busy datacenter is to go to another one. It is cancelled
    there first, so that it never runs in both."""

    job: str
    datacenter: str
    reason: str


class GlobalLoadChanged(Struct, tag="changed", frozen=True, kw_only=True):
    """The load of the job is scaled, paused or resumed everywhere. What each datacenter makes of it
    is decided when this is applied, and delivered to it from then on."""

    job: str
    change: LoadChange


class AssignmentChanged(Struct, tag="changed_datacenter", frozen=True, kw_only=True):
    """A datacenter has taken the first `taken` changes of its part."""

    job: str
    datacenter: str
    taken: int


class GlobalCancelRequested(Struct, tag="cancel", frozen=True, kw_only=True):
    """The job is to end early everywhere. The first cancel decides how."""

    job: str
    reason: str
    by: str = ""
    status: JobStatus = JobStatus.CANCELLED
    aborted_by: str = ""  # the workflow whose threshold ended the job


class GlobalJobFinished(Struct, tag="finished", frozen=True, kw_only=True):
    """The job has ended in every datacenter. The first such event in log order wins."""

    job: str
    status: JobStatus
    reason: str = ""


class GlobalJobReported(Struct, tag="reported", frozen=True, kw_only=True, omit_defaults=True):
    """A gate has sent the result of a job that has ended. The first such event counts."""

    job: str
    reported: Reported


GlobalJobEvent = (
    DatacentersAssigned
    | AssignmentAccepted
    | AssignmentRefused
    | GlobalStartOrdered
    | DatacenterBegan
    | DatacenterFinished
    | DatacenterLost
    | AssignmentRecalled
    | GlobalLoadChanged
    | AssignmentChanged
    | GlobalCancelRequested
    | GlobalJobFinished
    | GlobalJobReported
)
GlobalEvent = GlobalJobSubmitted | GlobalJobEvent

_sorted = msgspec.msgpack.Encoder(order="deterministic")
encode_global = msgspec.msgpack.Encoder().encode
decode_global = msgspec.msgpack.Decoder(GlobalEvent).decode


def global_digest(plan: Plan, bundle: str, options: GlobalOptions) -> str:
    """Return a digest that a repeated key is checked against: equal for equal submissions."""
    return hashlib.sha256(_sorted.encode((plan, bundle, options))).hexdigest()[:32]
