"""Messages between gates and the managers of datacenters. Kinds 500-549.

Downward: the gate that owns a global job sends `AssignJob`, `StartAssignment`, `ChangeAssignment`
and `CancelAssignment` to a manager of the datacenter, repeated until answered; each may arrive
several times and late. The term of the owner's group authorises the sender. Upward: the leader of
the datacenter's job sends `ReportAssignment` and, at the end, `DeliverAssignmentResult` until it is
acknowledged; any gate takes them and forwards them to the owner, at most `HOPS_MAX` times. Results
are facts, so no term refuses them. All times are durations.
"""

from enum import Enum

from msgspec import Struct, field

from hyperscale.gates.committed.events import GlobalOptions
from hyperscale.gates.datacenters.health import DatacenterFigures
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.datacenters.routing import DatacenterChoice
from hyperscale.jobs.committed.events import JobOptions, JobStatus
from hyperscale.jobs.messages import Backpressure
from hyperscale.plan import Plan
from hyperscale.plan.changes import LoadChange
from hyperscale.wire.client_access import Permission
from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role

HOPS_MAX = 2

_GATES = frozenset({Role.GATE})
_MANAGERS = frozenset({Role.MANAGER})
_BOTH = frozenset({Role.GATE, Role.MANAGER})
_ASKING = frozenset({Role.CLIENT, Role.OPERATOR})
_ROUTING = frozenset({Role.CLIENT, Role.OPERATOR, Role.GATE})  # a gate passes it on to the owner


class AssignmentAnswer(Enum):
    """What a datacenter answers to a command about an assignment."""

    OK = "ok"  # done, now or earlier
    REFUSED = "refused"  # it will never run the job: that is committed there
    RETRY = "retry"  # not now; the outcome of this command is open
    NEVER_RAN = "never_ran"  # cancelled before it arrived, and it will never run


@message(kind=500, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_GATES)
class AssignJob(Struct, frozen=True, kw_only=True):
    """Run a datacenter's part of a global job (`options.part_of`); its submission key is the id of
    the global job. It prepares and waits for `StartAssignment`. -> AssignmentReply"""

    job: str
    group: int
    term: int
    plan: Plan
    bundle: str = ""
    options: JobOptions = field(default_factory=JobOptions)
    by: str = ""
    secrets: bytes = b""  # values of secret parameters; never committed


@message(kind=501, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_GATES)
class StartAssignment(Struct, frozen=True, kw_only=True):
    """Begin the load of an assignment that is ready. -> AssignmentReply"""

    job: str
    group: int
    term: int
    start_in_ms: float
    elapsed_s: float = 0.0  # how long ago the others began: it joins for the rest


@message(kind=502, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_GATES)
class CancelAssignment(Struct, frozen=True, kw_only=True):
    """End an assignment early, or see to it that it never begins. -> AssignmentReply"""

    job: str
    group: int
    term: int
    reason: str
    status: JobStatus = JobStatus.CANCELLED


@message(kind=504, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_GATES)
class ChangeAssignment(Struct, frozen=True, kw_only=True):
    """Change the load of an assignment. -> AssignmentReply

    `changes` are all that the datacenter has not acknowledged, in order; it knows those that it has
    by their ids. `taken` is how many it has got with these."""

    job: str
    group: int
    term: int
    changes: list[LoadChange]
    taken: int


@message(kind=503, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class AssignmentReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    answer: AssignmentAnswer
    local_job: str = ""
    reason: str = ""
    needs_bundle: bool = False  # upload the bundle (`PutBlob`), then send the command again


AssignmentCommand = AssignJob | StartAssignment | ChangeAssignment | CancelAssignment


@message(kind=510, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_BOTH)
class ReportAssignment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a datacenter's part of a job is. -> ReportAssignmentReply"""

    job: str
    datacenter: str
    status: JobStatus
    is_ready: bool = False  # every part that can begin is prepared
    is_queued: bool = False  # nothing of it has cores yet
    extension_s: float = 0.0  # the largest extension of a worker that has not lapsed
    running_s: float = 0.0  # how long ago its load began; 0: it has not
    reports: list[bytes] = field(default_factory=list)  # one per workflow, merged
    hops: int = 0


@message(kind=511, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_GATES)
class ReportAssignmentReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    is_known: bool = True  # False: no gate has such a job, or it was not assigned there
    is_over: bool = False  # the job goes on without the datacenter, or has ended: stop its part
    backpressure: Backpressure = Backpressure.NONE


@message(kind=512, priority=MessagePriority.CRITICAL, size=SizeClass.LARGE, senders=_BOTH)
class DeliverAssignmentResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a datacenter's part of a job ended. -> AssignmentResultReply, repeated until then"""

    job: str
    datacenter: str
    status: JobStatus
    reason: str = ""
    local_job: str = ""
    elapsed_s: float = 0.0
    result: bytes = b""  # encoded statistics; opaque to the ledger
    hops: int = 0


@message(kind=513, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_GATES)
class AssignmentResultReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    is_committed: bool = False  # False: keep the result and deliver it again
    is_known: bool = True  # False: no gate has such a job; the result may be dropped


DatacenterReport = ReportAssignment | DeliverAssignmentResult


@message(kind=520, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_GATES)
class CrossClusterProbe(Struct, frozen=True, kw_only=True):
    """Ask a manager how its datacenter is. -> CrossClusterAck"""

    nonce: int
    coordinate: bytes = b""  # packed; of the gate


@message(kind=521, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class CrossClusterAck(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A datacenter as one of its managers sees it."""

    nonce: int
    datacenter: str
    node: str
    incarnation: int
    is_leader: bool = False  # of the datacenter's management group
    term: int = 0
    leader: str = ""  # address of that leader
    managers: list[str] = field(default_factory=list)  # addresses
    figures: DatacenterFigures
    coordinate: bytes = b""


@message(kind=522, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class RegisterDatacenter(Struct, frozen=True, kw_only=True):
    """A datacenter and the addresses of its managers, repeated for as long as it is there.
    -> RegisterDatacenterReply"""

    datacenter: str
    managers: list[str]


@message(kind=523, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_GATES)
class RegisterDatacenterReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    gates: list[str] = field(default_factory=list)  # addresses
    refused: str = ""  # why the gates do not take the datacenter
    is_removed: bool = False  # for good: the parts of global jobs that run there are to end
    node: str = ""  # the gate
    coordinate: bytes = b""  # packed; of the gate


@message(
    kind=524,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.LOOK,
)
class ListDatacenters(Struct, frozen=True, kw_only=True):
    """-> ListDatacentersReply"""


@nested
class DatacenterRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A datacenter as one gate sees it."""

    datacenter: str
    reachability: str
    health: str
    total_cores: int = 0
    available_cores: int = 0
    queue_depth: int = 0
    workers: int = 0
    managers: int = 0
    rtt_ms: float | None = None
    state: DatacenterState = DatacenterState.ACTIVE  # as committed


@message(kind=525, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=_GATES)
class ListDatacentersReply(Struct, frozen=True, kw_only=True):
    datacenters: list[DatacenterRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # about the gates themselves


@message(
    kind=526,
    priority=MessagePriority.HIGH,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.OPERATE,
)
class ChangeDatacenter(Struct, frozen=True, kw_only=True):
    """Drain, resume or remove a datacenter. Asked again, it changes nothing.
    -> ChangeDatacenterReply"""

    datacenter: str
    state: DatacenterState
    is_forced: bool = False  # remove one that is neither drained nor unreachable


@message(kind=527, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_GATES)
class ChangeDatacenterReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    refused: str = ""
    hint: str = ""
    is_unknown: bool = False  # there is no such datacenter


@message(
    kind=528,
    priority=MessagePriority.NORMAL,
    size=SizeClass.LARGE,
    senders=_ROUTING,
    permission=Permission.LOOK,
)
class RouteJob(Struct, frozen=True, kw_only=True):
    """Ask where a job would go now, or, with `job`, where a job went and why. Nothing is
    submitted. -> RouteJobReply"""

    key: str = ""
    plan: Plan | None = None
    options: GlobalOptions = field(default_factory=GlobalOptions)
    job: str = ""


@message(kind=529, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=_GATES)
class RouteJobReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`choice`, or why there is none."""

    choice: DatacenterChoice | None = None
    shares: dict[str, dict[str, int]] = field(default_factory=dict)
    """Datacenter -> workflow -> virtual users."""
    by: str = ""  # the gate that decides
    refused: str = ""
    hint: str = ""
    is_retryable: bool = False


@message(
    kind=530,
    priority=MessagePriority.HIGH,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.LOOK,
)
class AskDatacenter(Struct, frozen=True, kw_only=True):
    """Pass a request on to a manager of a datacenter: one that the sender may make itself.
    -> AskDatacenterReply"""

    datacenter: str
    request: bytes  # packed with its kind


@message(kind=531, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_GATES)
class AskDatacenterReply(Struct, frozen=True, kw_only=True):
    reply: bytes  # packed with its kind
