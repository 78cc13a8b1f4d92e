"""Messages of clients, operators and managers to managers about jobs. Kinds 450-479.

Any manager answers for any job: a manager that does not lead the job's group forwards the request
to the leader. A submission may be repeated with its key. A reply that carries a `code` is
definite; after a lost connection, repeat the request through another manager.
"""

from msgspec import Struct, field

from hyperscale.gates.committed.events import GlobalOptions
from hyperscale.jobs.committed.events import Code, JobOptions, JobStatus
from hyperscale.jobs.committed.state import JobView
from hyperscale.ledger.store import BEFORE_FIRST
from hyperscale.membership.events import MemberState
from hyperscale.plan import Plan
from hyperscale.plan.changes import LoadChange
from hyperscale.plan.placement import Placement
from hyperscale.stats.view import RunView
from hyperscale.wire.client_access import Permission
from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role

_ASKING = frozenset({Role.CLIENT, Role.OPERATOR, Role.MANAGER, Role.GATE})
_MANAGERS = frozenset({Role.MANAGER, Role.GATE})

BLOB_CHUNK_BYTES = 512 * 1024


@message(
    kind=450,
    priority=MessagePriority.HIGH,
    size=SizeClass.MEDIUM,
    senders=_ASKING,
    rate_per_10s=5_000,
    permission=Permission.SUBMIT,
)
class PutBlob(Struct, frozen=True, kw_only=True):
    """A piece of a bundle, in order from offset 0; an empty piece asks for the next offset.
    -> PutBlobReply"""

    sha256: str
    size: int
    offset: int
    data: bytes = b""


@message(kind=451, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class PutBlobReply(Struct, frozen=True, kw_only=True):
    """The next piece begins at `offset`. `is_complete`: the whole bundle is on disk."""

    offset: int
    is_complete: bool


@message(kind=452, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class KeepBlob(Struct, frozen=True, kw_only=True):
    """Asks another manager to fetch a bundle from the sender and keep it. -> PutBlobReply"""

    sha256: str
    size: int


@message(
    kind=453,
    priority=MessagePriority.HIGH,
    size=SizeClass.LARGE,
    senders=_ASKING,
    permission=Permission.SUBMIT,
)
class SubmitJob(Struct, frozen=True, kw_only=True):
    """Submits a job whose bundle was uploaded before (`PutBlob`). -> SubmitJobReply"""

    key: str
    plan: Plan
    bundle: str = ""
    options: JobOptions = field(default_factory=JobOptions)
    by: str = ""
    secrets: bytes = b""  # values of secret parameters (`plan.secrets`); never committed
    across: GlobalOptions | None = None  # for gates: which datacenters, and what if one is lost


@message(kind=472, priority=MessagePriority.HIGH, size=SizeClass.MEDIUM, senders=_MANAGERS)
class KeepSecrets(Struct, frozen=True, kw_only=True):
    """Asks another manager to keep the secret parameters of a job until it ends.
    -> KeepSecretsReply"""

    packed: bytes


@message(kind=473, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class KeepSecretsReply(Struct, frozen=True, kw_only=True):
    """`is_kept`: the secrets are on disk."""

    is_kept: bool


@message(kind=454, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class SubmitJobReply(Struct, frozen=True, kw_only=True):
    """`accepted`: the job is committed. If not, `needs_bundle` asks the client to upload the
    bundle first, or `code` and `error` say why the job was refused."""

    accepted: bool
    job: str = ""
    needs_bundle: bool = False
    code: Code = Code.OK
    error: str = ""
    hint: str = ""
    retry_after_s: float = 0.0


@message(
    kind=455,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.LOOK,
)
class GetJob(Struct, frozen=True, kw_only=True):
    """-> GetJobReply"""

    job: str


@message(kind=456, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MANAGERS)
class GetJobReply(Struct, frozen=True, kw_only=True):
    """`job` is None if there is no such job. `live` has the numbers of a running job."""

    job: JobView | None = None
    live: RunView | None = None


@nested
class OutputLine(Struct, frozen=True, kw_only=True):
    """A piece of what user code printed on a worker."""

    worker: str
    workflow: str
    slot: int
    stream: str
    text: str
    part: int = 0
    attempt: int = 0
    number: int = 0
    """Unique among the lines of the attempt; 0 if the node does not number its lines."""


@message(
    kind=457,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.LOOK,
)
class WatchJob(Struct, frozen=True, kw_only=True):
    """-> a stream of WatchJobUpdate; in the last one the job has ended.

    The stream breaks when the job gets another leader: watch again, through any manager."""

    job: str
    is_output_only: bool = False  # no live numbers: a gate has them already


@message(kind=458, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MANAGERS)
class WatchJobUpdate(Struct, frozen=True, kw_only=True):
    """The state of a job, its numbers while it runs, and what user code printed since."""

    job: JobView
    live: RunView | None = None
    output: list[OutputLine] = field(default_factory=list)


@message(
    kind=459,
    priority=MessagePriority.CRITICAL,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.OWN,
)
class CancelJob(Struct, frozen=True, kw_only=True):
    """Cancels a job; repeating it is harmless. -> CancelJobReply"""

    job: str
    reason: str = ""
    by: str = ""


@message(kind=460, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class CancelJobReply(Struct, frozen=True, kw_only=True):
    """`accepted`: the cancellation is committed, or was committed before. If not, the job had
    ended with `status`, or `code` and `error` say why it cannot be cancelled."""

    accepted: bool
    status: JobStatus | None = None
    code: Code = Code.OK
    error: str = ""


@message(
    kind=474,
    priority=MessagePriority.CRITICAL,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.OWN,
)
class ChangeLoad(Struct, frozen=True, kw_only=True):
    """Scale, pause or resume the load of a job; repeating it is harmless. -> ChangeLoadReply"""

    job: str
    change: LoadChange


@message(kind=475, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class ChangeLoadReply(Struct, frozen=True, kw_only=True):
    """`accepted`: the change is committed. If not, the job had ended with `status`, or `code` and
    `error` say why it cannot be made."""

    accepted: bool
    status: JobStatus | None = None
    code: Code = Code.OK
    error: str = ""
    hint: str = ""


@message(
    kind=461,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.LOOK,
)
class ListJobs(Struct, frozen=True, kw_only=True):
    """-> ListJobsReply"""

    limit: int = 100
    live_only: bool = False
    is_relayed: bool = False
    """Sent by another manager: answer only for the groups that the receiver leads."""
    since_ms: int | None = None
    """List all jobs that ended since this date, as long as there is history, by their end."""
    after: tuple[int, int, int] = BEFORE_FIRST
    """With `since_ms`: only jobs after this place."""


@message(kind=462, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MANAGERS)
class ListJobsReply(Struct, frozen=True, kw_only=True):
    """Jobs, newest first; with `since_ms`, in the order of their end."""

    jobs: list[JobView] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Managers that did not answer: jobs they lead may be missing."""
    after: tuple[int, int, int] | None = None
    """The place of the last job, if there are more."""


@message(
    kind=463,
    priority=MessagePriority.HIGH,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.OWN,
)
class GetJobRecord(Struct, frozen=True, kw_only=True):
    """-> a stream of Chunk: the final record of a job that has ended (`decode_job`).

    Fails with `RemoteErrorCode.UNKNOWN_JOB` or `NOT_ENDED`."""

    job: str


@message(
    kind=464,
    priority=MessagePriority.NORMAL,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.LOOK,
)
class ListWorkers(Struct, frozen=True, kw_only=True):
    """-> ListWorkersReply"""


@nested
class WorkerAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that a worker runs."""

    job: str
    workflow: str
    part: int
    attempt: int
    cores: int
    is_shared: bool = False
    """The attempt shares cores with others: with attempts of its job, because more workflows are
    ready than cores are there; or with any, because no core was free for the load of a lost
    worker. It takes no core."""


@nested
class WorkerRow(Struct, frozen=True, kw_only=True):
    """One worker, as membership and the allocator know it."""

    worker: str
    state: MemberState
    address: str = ""
    cores: int = 0
    free: int = 0
    is_draining: bool = False
    attempts: list[WorkerAttempt] = field(default_factory=list)
    unfit: tuple[str, ...] = ()  # why it gets no part, as found by itself
    datacenter: str = ""  # if a gate lists it
    labels: dict[str, str] = field(default_factory=dict)
    reserved: int = 0  # cores of its machine that it does not offer


@message(kind=465, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MANAGERS)
class ListWorkersReply(Struct, frozen=True, kw_only=True):
    """The workers of the datacenter."""

    workers: list[WorkerRow] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Live workers whose `attempts` are missing: they have not reported to the allocator yet, or
    the allocator did not answer."""
    missing: list[str] = field(default_factory=list)
    """Datacenters that did not answer the gate."""


@message(
    kind=466,
    priority=MessagePriority.HIGH,
    size=SizeClass.SMALL,
    senders=_ASKING,
    permission=Permission.OPERATE,
)
class DrainNode(Struct, frozen=True, kw_only=True):
    """Takes a worker or a manager out of service without losing work. -> DrainNodeReply"""

    node: str


@message(kind=467, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class DrainNodeReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`left`: how many attempts a worker, or groups a manager, still has.

    `refused`: why the cluster needs the node; `hint`: what to do about that.
    """

    left: int
    refused: str = ""
    hint: str = ""


@message(kind=468, priority=MessagePriority.HIGH, size=SizeClass.MEDIUM, senders=_MANAGERS)
class GetQueueRoom(Struct, frozen=True, kw_only=True):
    """Asks the allocator whether another job may wait in the queue, and whether there are workers
    for the placements of its workflows. -> GetQueueRoomReply"""

    placements: list[Placement] = field(default_factory=list)


@message(kind=469, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class GetQueueRoomReply(Struct, frozen=True, kw_only=True):
    """`room`: how many more workflows may wait; `waiting`: how many wait now."""

    room: int
    waiting: int = 0
    unmet: str = ""  # why no known worker can ever meet one of the placements


@message(kind=470, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class GetJobOfKey(Struct, frozen=True, kw_only=True):
    """Asks the leader of a key's group which job the key made. -> GetJobOfKeyReply"""

    key: str


@message(kind=471, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class GetJobOfKeyReply(Struct, frozen=True, kw_only=True):
    """The job that the key made; empty if there is none."""

    job: str = ""
