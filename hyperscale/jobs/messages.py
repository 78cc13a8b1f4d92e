"""Messages between job leaders, workers and the allocator. Kinds 400-449.

The conversation about one part: the leader sends `PreparePart`, which the worker accepts or refuses
at once (`PartCommandReply`). When its executors are ready the worker sends `AnnounceReady`, or
`AnnouncePrepareFailed`. The leader sends `StartPart` once all parts of the workflow are ready, and
`RenewLeases` each second while they run. The worker sends `ReportProgress` twice a second, and at
the end `DeliverResult`, repeated until the leader sends `AcknowledgeResult`.

The attempt names what runs; the term only authorises the sender. A worker refuses a term or an
attempt below the highest it has seen, and replies with what it has seen. Every command may be
repeated: the same command gets the same reply. All times are durations: no clock value travels,
except stamps that a worker reads off its own clock.
"""

from enum import Enum

from msgspec import Struct, field

from hyperscale.plan import Priority, WorkflowPlan
from hyperscale.plan.changes import AppliedChange
from hyperscale.plan.placement import ANYWHERE, Placement
from hyperscale.plan.rows import RowBounds
from hyperscale.plan.status import PartStatus
from hyperscale.wire.client_access import Permission
from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import NODES, Role

_MANAGERS = frozenset({Role.MANAGER})
_WORKERS = frozenset({Role.WORKER})
_OPERATED = frozenset({Role.MANAGER, Role.OPERATOR})


@nested
class AttemptId(Struct, frozen=True, gc=False):
    """One attempt of one part of one workflow of one job."""

    job: str
    workflow: str
    part: int  # 0 ... parts - 1, one per worker of the workflow
    attempt: int  # counts from 1 for each part


class PartPhase(Enum):
    """Where an attempt is on its worker."""

    UNKNOWN = "unknown"  # the worker does not know the attempt
    PREPARING = "preparing"  # executors import the code and run setup hooks
    SETTING_UP = "setting_up"  # executors wait for the context that setup left
    READY = "ready"
    RUNNING = "running"  # also while it counts down to its start
    STOPPING = "stopping"  # told to stop; its cores are still taken
    FINISHED = "finished"  # its cores are free; the result is not acknowledged


class Refusal(Enum):
    """Why a worker refused a command."""

    NONE = "none"
    STALE_TERM = "stale_term"  # the sender is a deposed leader and must send no more commands
    STALE_ATTEMPT = "stale_attempt"  # superseded by a newer attempt, or over
    NO_CORES = "no_cores"  # not enough free cores; does not count as a retry
    DRAINING = "draining"  # the worker accepts no work; does not count as a retry
    UNFIT = "unfit"  # the worker could not run it; does not count as a retry
    UNKNOWN_ATTEMPT = "unknown_attempt"  # the attempt to start was never prepared here
    INVALID = "invalid"  # the command is inconsistent; `reason` says how


class Isolation(Enum):
    """What a part does when no leader renews its lease."""

    STOP = "stop"
    CONTINUE = "continue"


class Backpressure(Enum):
    """How busy a leader is; sets the interval of reports."""

    NONE = "none"
    THROTTLE = "throttle"
    BATCH = "batch"
    REJECT = "reject"  # reports only as slow probes, which notice the relief


# --- leader to worker --------------------------------------------------------------------


@message(kind=400, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_MANAGERS)
class PreparePart(Struct, frozen=True, kw_only=True):
    """Take cores and prepare executors, without generating load yet. -> PartCommandReply

    Executor i of the part is slot `first_slot + i` of `slots`. An older attempt of the part that
    is still on the worker is stopped first.
    """

    attempt_id: AttemptId
    group: int
    term: int
    leader: str  # node that gets AnnounceReady, ReportProgress and DeliverResult
    first_slot: int
    slots: int  # of the whole workflow
    cores: int  # of this part, one per slot
    plan: WorkflowPlan
    file: str
    bundle: str  # SHA-256; the worker fetches the bundle from `leader` if needed
    context: bytes = b""  # encoded `plan.context.Received`; opaque
    # Time since the start of the workflow when the last attempt of the part had ended, and what
    # earlier attempts have done.
    elapsed_s: float = 0.0
    iterations_done: int = 0
    lease_ms: int = 8_000
    on_isolation: Isolation = Isolation.STOP
    log_level: str = "info"
    # It takes no core: its executors run beside those of other attempts. Of any job if it is a
    # recovery for which no core was free (up to SHARED_MAX executors per core); with `within_job`
    # beside those of its own job (up to SHARED_PER_WORKER_MAX executors of the worker).
    shared: bool = False
    static: bool = True  # as in PrepareSlot
    exclusive: bool = False  # must run alone; the worker repeats it in HeldCores
    # The context that setup left, once it is committed. Until then executors of a workflow that is
    # set up once wait for ShareSetUpContext, and slot 0 runs setup.
    set_up: bytes = b""
    tears_down: bool = False  # it has no load: when started, it runs the teardown of the workflow
    parameters: dict[str, str | int | float | bool] = {}  # those that are not secret
    secrets: str = ""  # id of the secret ones; the worker fetches them from `leader`
    within_job: bool = False
    # All changes of the load so far, as the part sees them: see ChangePart.
    changes: list[AppliedChange] = field(default_factory=list)
    rows: RowBounds | None = None  # of feeds whose rows are dealt once: see GrantRows


SHARED_MAX = 4


@message(kind=401, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class StartPart(Struct, frozen=True, kw_only=True):
    """Start the load `start_in_ms` after receipt. -> PartCommandReply

    The leader has subtracted half the round trip, so that all parts start together.
    """

    attempt_id: AttemptId
    group: int
    term: int
    start_in_ms: float
    lease_ms: int = 8_000
    stamp_ms: int = 0  # see RenewLeases
    # Time since the start of the workflow when the load starts; None: `elapsed_s` of the part.
    since_s: float | None = None


@message(kind=407, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_MANAGERS)
class ChangePart(Struct, frozen=True, kw_only=True):
    """Change the load of an attempt that is ready or runs. -> PartCommandReply

    `changes` are all that were committed so far, so that a repeated or late command does no harm.
    Their times count from the start of the workflow. For a part that runs behind the others, after
    it was lost without a shape to keep up with, the leader moves them by as much.
    """

    attempt_id: AttemptId
    group: int
    term: int
    changes: list[AppliedChange]


@message(kind=408, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class GrantRows(Struct, frozen=True, kw_only=True):
    """Use rows that are dealt once up to a limit, which is committed. -> PartCommandReply

    The limit counts for each slot of the attempt, as in `RowBounds`, and never falls.
    """

    attempt_id: AttemptId
    group: int
    term: int
    limit: int


@message(kind=402, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class StopPart(Struct, frozen=True, kw_only=True):
    """Stop the attempt and any older one of its part; leave a tombstone. -> PartCommandReply

    A PreparePart of the attempt that arrives later is refused. The phase of the reply is STOPPING
    while executors are alive; FINISHED or UNKNOWN means that the cores are free. A stopped attempt
    also ends with a DeliverResult, which holds its last statistics.
    """

    attempt_id: AttemptId
    group: int
    term: int
    reason: str
    grace_s: float = 1.0


@message(kind=403, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_MANAGERS)
class RenewLeases(Struct, frozen=True, kw_only=True):
    """Renew the leases of attempts; sent each second to every worker of them. -> RenewLeasesReply

    Also tells the worker who the leader is, and which attempts the leader knows of. The lease
    counts from `stamp_ms`, a stamp of the worker's own clock that the leader received before its
    leadership was last confirmed: a delayed renewal extends the lease by less, or not at all. So
    the worker has stopped at the latest `lease_ms` after the leader last received a stamp, or
    after another leader was elected. With `stamp_ms` 0 the lease counts from receipt.
    """

    group: int
    term: int
    leader: str
    lease_ms: int
    attempts: list[AttemptId]
    stamp_ms: int = 0


@message(kind=404, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class ListAttempts(Struct, frozen=True, kw_only=True):
    """List the attempts of a group; sent by a new leader to every worker. -> ListAttemptsReply"""

    group: int
    term: int
    leader: str


@message(kind=405, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class AcknowledgeResult(Struct, frozen=True, kw_only=True):
    """Forget a result: it is committed, or not needed any more."""

    attempt_id: AttemptId
    group: int
    term: int


@message(kind=406, priority=MessagePriority.HIGH, size=SizeClass.MEDIUM, senders=_MANAGERS)
class ShareSetUpContext(Struct, frozen=True, kw_only=True):
    """The context that setup left is committed: go on preparing. -> PartCommandReply"""

    attempt_id: AttemptId
    group: int
    term: int
    context: bytes


# --- worker to leader --------------------------------------------------------------------


@message(kind=410, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_WORKERS)
class PartCommandReply(Struct, frozen=True, kw_only=True):
    """The reply to a command. A refused command has changed nothing."""

    attempt_id: AttemptId
    accepted: bool
    refusal: Refusal = Refusal.NONE
    reason: str = ""
    seen_term: int = 0  # highest term of the group
    seen_attempt: int = 0  # highest attempt of the part
    phase: PartPhase = PartPhase.UNKNOWN  # of the attempt, or of a newer one that is here
    stamp_ms: int = 0  # the worker's clock, for the next StartPart or RenewLeases


@message(kind=411, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_WORKERS)
class RenewLeasesReply(Struct, frozen=True, kw_only=True):
    """The reply to RenewLeases; `accepted` is False if the term is stale: nothing was renewed."""

    accepted: bool
    seen_term: int = 0
    unknown: list[AttemptId] = field(default_factory=list)  # listed, but not on this worker
    unlisted: list[AttemptId] = field(default_factory=list)  # on this worker, but not listed
    stamp_ms: int = 0  # as in PartCommandReply


@nested
class PartView(Struct, frozen=True, kw_only=True):
    """One attempt as its worker sees it. `report` (`hyperscale._native.Report`, encoded) is
    whole: with histograms and the full series."""

    attempt_id: AttemptId
    phase: PartPhase
    elapsed_s: float = 0.0  # of this attempt
    report: bytes | None = None


@message(kind=412, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_WORKERS)
class ListAttemptsReply(Struct, frozen=True, kw_only=True):
    """The attempts of a group on a worker; `accepted` is False if the term is stale."""

    accepted: bool = True
    seen_term: int = 0
    parts: list[PartView] = field(default_factory=list)
    stamp_ms: int = 0  # as in PartCommandReply
    alive_ms: int = 0  # uptime of the process: an attempt unknown to it never began in this time


@message(kind=413, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_WORKERS)
class AnnounceReady(Struct, frozen=True, kw_only=True):
    """Every executor of the attempt is prepared. Repeated each second until started or stopped."""

    worker: str
    group: int
    attempt_id: AttemptId
    stamp_ms: int = 0  # as in PartCommandReply


@message(kind=419, priority=MessagePriority.HIGH, size=SizeClass.MEDIUM, senders=_WORKERS)
class AnnounceSetUp(Struct, frozen=True, kw_only=True):
    """The executors of the attempt wait for the context that setup left. With `context`, setup has
    run here. Repeated each second until ShareSetUpContext or a stop comes."""

    worker: str
    group: int
    attempt_id: AttemptId
    context: bytes = b""
    stamp_ms: int = 0  # as in PartCommandReply


@message(kind=424, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_WORKERS)
class AnnounceRows(Struct, frozen=True, kw_only=True):
    """How many rows each slot of an attempt has used, counted as in `RowBounds`. Sent each second
    while they use rows, and more often when little is left below the limit."""

    worker: str
    group: int
    attempt_id: AttemptId
    used: list[int]
    limit: int  # that the executors know


@message(kind=414, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_WORKERS)
class AnnouncePrepareFailed(Struct, frozen=True, kw_only=True):
    """Preparing failed; the cores are free. Repeated until acknowledged.

    If setup hooks have already sent requests, the worker sends a DeliverResult instead."""

    worker: str
    group: int
    attempt_id: AttemptId
    error: str
    hint: str = ""
    is_retryable: bool = False  # this worker failed: no bundle, or an executor died


@nested
class PartProgress(Struct, frozen=True, kw_only=True, gc=False):
    """The latest statistics of one attempt.

    `report` merges all cores of the attempt; it is cumulative, has the part's `first_slot` as slot
    and a sequence that grows. Its elapsed time and its seconds are those of the workflow: they
    continue where the previous attempt ended.
    """

    attempt_id: AttemptId
    report: bytes
    elapsed_s: float  # of this attempt
    phase: PartPhase = PartPhase.RUNNING
    wants_extension: bool = False  # no action has finished for long: its actions take long


@message(kind=415, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_WORKERS)
class ReportProgress(Struct, frozen=True, kw_only=True):
    """Statistics of all attempts of one group on one worker. -> ReportProgressReply"""

    worker: str
    group: int
    parts: list[PartProgress]
    cpu: float = 0.0  # share of the worker's cores in use, 0 ... 1
    memory: float = 0.0  # share of the worker's memory in use, 0 ... 1
    saturated: list[AttemptId] = field(default_factory=list)  # their cores are fully used


@message(kind=416, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MANAGERS)
class ReportProgressReply(Struct, frozen=True, kw_only=True):
    """The reply of a leader, or of another manager that names the `leader` of the group."""

    backpressure: Backpressure = Backpressure.NONE
    leader: str = ""


@message(kind=417, priority=MessagePriority.CRITICAL, size=SizeClass.LARGE, senders=_WORKERS)
class DeliverResult(Struct, frozen=True, kw_only=True):
    """How an attempt ended. Stored on the worker's disk and repeated until acknowledged.

    `report` is whole: with histograms and the full series.
    """

    worker: str
    group: int
    attempt_id: AttemptId
    status: PartStatus
    report: bytes | None
    elapsed_s: float = 0.0  # of this attempt
    error: str | None = None
    # Encoded `plan.context.Provided`, one per executor; opaque.
    provided: list[bytes] = field(default_factory=list)
    is_retryable: bool = False  # an executor died or the lease expired: another worker may succeed
    was_saturated: bool = False
    # The gap: how long a killed executor may have sent load after its last report.
    unheard_s: float = 0.0
    set_up: bytes = b""  # what setup left here, if the attempt ended before it was shared
    rows_used: list[int] = field(default_factory=list)  # as in AnnounceRows


@message(kind=418, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=_WORKERS)
class ForwardOutput(Struct, frozen=True, kw_only=True):
    """Output of user code; limited to a rate by the worker, not repeated."""

    worker: str
    group: int
    attempt_id: AttemptId
    slot: int
    stream: str  # "stdout" or "stderr"
    text: str
    number: int = 0  # of this piece; grows, also when the leader changes


# --- job leader to allocator, and back ---------------------------------------------------


class RequestState(Enum):
    """What became of a request for cores."""

    GRANTED = "granted"
    QUEUED = "queued"
    EXCEEDED = "exceeded"  # the queue is full: try again after `retry_after_s`
    IMPOSSIBLE = "impossible"  # there is no worker, or none that is large enough, at present
    REBUILDING = "rebuilding"  # a new allocator waits for the announcements of workers
    NOT_ALLOCATOR = "not_allocator"


@message(kind=420, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class RequestCores(Struct, frozen=True, kw_only=True):
    """Request cores for one workflow, or for a new attempt of one part. -> RequestCoresReply

    Repeated each second until granted (the allocator forgets a request after 5 s), and whenever a
    grant may have been lost: the same request gets the same grant.
    """

    request_id: str  # id of the request: the same for the same job, workflow and purpose
    job: str
    workflow: str
    group: int
    term: int
    leader: str
    priority: Priority = Priority.AUTO
    is_test: bool = True
    vus: int = 1  # a workflow gets no more cores than virtual users
    # For a new attempt of a part: the part, and its cores, on one worker. Otherwise priority and
    # pool decide how many cores the workflow gets, and part i is the i-th share of the grant.
    part: int = -1
    cores: int = 0
    # Workers on which the part failed, longest ago first. The first gets it if no other could.
    exclude: list[str] = field(default_factory=list)
    is_recovery: bool = False  # served before other requests
    may_share: bool = False  # the lost load may run beside other attempts
    waited_s: float = 0.0  # waited already, at earlier allocators
    together: int = 1  # workflows of the job that became ready together, this one included
    placement: Placement = ANYWHERE
    within_job: bool = False  # of a recovery: the lost part shared the cores of its job


@nested
class WorkerShare(Struct, frozen=True):
    """The part of a grant that is on one worker."""

    worker: str
    cores: int


@message(kind=421, priority=MessagePriority.HIGH, size=SizeClass.MEDIUM, senders=_MANAGERS)
class RequestCoresReply(Struct, frozen=True, kw_only=True):
    """A grant, or the position of a request that waits and the reason."""

    request_id: str
    state: RequestState
    group: int = 0  # of a grant: the group whose leader made the request
    shares: list[WorkerShare] = field(default_factory=list)  # in order of slots
    shared: bool = False  # as in PreparePart
    position: int = 0  # 1 is served next
    retry_after_s: float = 0.0
    reason: str = ""
    within_job: bool = False  # as in PreparePart


@message(kind=422, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class ReleaseCores(Struct, frozen=True, kw_only=True):
    """Release a request or its grant. Repeating it is harmless."""

    request_id: str
    group: int
    term: int
    part: int = -1  # release only the share of this part; -1: everything


@nested
class HeldCores(Struct, frozen=True, kw_only=True):
    """Cores that an attempt holds on a worker."""

    attempt_id: AttemptId
    cores: int  # executors, if it is shared
    shared: bool = False
    exclusive: bool = False  # as in PreparePart
    within_job: bool = False  # of a shared attempt; a core of its job that came free is its own


@message(kind=423, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=_WORKERS)
class AnnounceCores(Struct, frozen=True, kw_only=True):
    """The cores of a worker and what holds them; sent on change and each second.

    `incarnation` and `version` order the announcements. A restarted worker holds nothing.
    """

    worker: str
    incarnation: int
    version: int
    total: int
    held: list[HeldCores] = field(default_factory=list)
    draining: bool = False
    unfit: tuple[str, ...] = ()  # why the worker could not run a part, in words
    labels: dict[str, str] = field(default_factory=dict)
    reserved: int = 0  # cores of the machine that are not offered

    @property
    def accepts_work(self) -> bool:
        return not self.draining and not self.unfit


# --- bundles and drains ------------------------------------------------------------------


@message(kind=440, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=NODES)
class FetchBlob(Struct, frozen=True):
    """Fetch the bytes with this SHA-256, as a stream of `wire.messages.Chunk`."""

    sha256: str


@message(kind=444, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=NODES)
class FetchSecrets(Struct, frozen=True):
    """Fetch the secret parameters of a job (`plan.secrets`). -> FetchSecretsReply"""

    sha256: str


@message(kind=445, priority=MessagePriority.HIGH, size=SizeClass.MEDIUM, senders=_MANAGERS)
class FetchSecretsReply(Struct, frozen=True):
    packed: bytes
    """As `plan.secrets` packs them; empty if the manager has no secrets of this id."""


@message(
    kind=441,
    priority=MessagePriority.HIGH,
    size=SizeClass.SMALL,
    senders=_OPERATED,
    permission=Permission.OPERATE,
)
class DrainWorker(Struct, frozen=True):
    """Accept no new work and finish what runs. -> DrainWorkerReply"""


@message(kind=442, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_WORKERS)
class DrainWorkerReply(Struct, frozen=True):
    attempts: int
    """Attempts on the worker, including those whose result is not acknowledged."""


@message(kind=443, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MANAGERS)
class AnnounceCoresReply(Struct, frozen=True):
    """The reply to `AnnounceCores`, which workers request until an allocator knows them."""

    is_known: bool
    """True if this manager is the allocator and knows the cores of the worker."""
