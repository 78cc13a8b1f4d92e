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
from hyperscale.plan.status import PartStatus
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
    part: int  # 0 ... parts - 1, one per worker that carries the workflow
    attempt: int  # counts from 1 for each part


class PartPhase(Enum):
    """Where a run is on its worker."""

    UNKNOWN = "unknown"  # the worker has no such run
    PREPARING = "preparing"  # executors import the code and run setup hooks
    READY = "ready"
    RUNNING = "running"  # also counting down to its start
    STOPPING = "stopping"  # told to stop, not gone yet: its cores are still taken
    FINISHED = "finished"  # gone; the result waits for its AcknowledgeResult


class Refusal(Enum):
    """Why a worker would not do as told."""

    NONE = "none"
    STALE_TERM = "stale_term"  # the sender was deposed: it must stop commanding
    STALE_ATTEMPT = "stale_attempt"  # a newer attempt, or a tombstone of this one, is there
    NO_CORES = "no_cores"  # does not fit; costs no retry
    DRAINING = "draining"  # takes no new work; costs no retry
    UNKNOWN_RUN = "unknown_run"  # start of what was never prepared here
    INVALID = "invalid"  # the command contradicts itself; `reason` says how


class Isolation(Enum):
    """What a part does when its lease runs out because no leader renews it."""

    STOP = "stop"
    CONTINUE = "continue"


class Backpressure(Enum):
    """How much a leader can take; stretches the intervals of reports."""

    NONE = "none"
    THROTTLE = "throttle"
    BATCH = "batch"
    REJECT = "reject"  # only a slow probe, so that relief is heard


# --- leader to worker --------------------------------------------------------------------


@message(kind=400, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_MANAGERS)
class PreparePart(Struct, frozen=True, kw_only=True):
    """Take cores, start executors on the code, do not generate load yet. -> PartCommandReply

    Executor i of the part is slot `first_slot + i` of `slots`. A higher attempt than one
    that is still here stops the old one first, then prepares.
    """

    run: AttemptId
    group: int
    term: int
    leader: str  # node id: who gets AnnounceReady, ReportProgress, DeliverResult
    parts: int
    first_slot: int
    slots: int  # of the whole workflow
    cores: int  # of this part: its slots
    plan: WorkflowPlan
    file: str
    bundle: str  # sha256 of the bundle, to be fetched from `leader` if it is not here
    context: bytes = b""  # encoded `plan.context.Received`; opaque
    # Of earlier attempts of this part: it runs for the rest of the duration and iterations.
    elapsed_s: float = 0.0
    iterations_done: int = 0
    lease_ms: int = 8_000
    on_isolation: Isolation = Isolation.STOP
    log_level: str = "info"
    # True: no core was free and its load must be back, so its executors may run beside those
    # of others (a worker takes up to SHARED_MAX executors per core this way).
    shared: bool = False
    static: bool = True  # as in the executor's Prepare
    exclusive: bool = False  # nothing else is to run meanwhile; told on in HeldCores


SHARED_MAX = 4


@message(kind=401, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class StartPart(Struct, frozen=True, kw_only=True):
    """Begin in `start_in_ms` from receipt. -> PartCommandReply

    The leader has taken half the round trip off, so that all parts begin together.
    """

    run: AttemptId
    group: int
    term: int
    start_in_ms: float
    lease_ms: int = 8_000
    stamp_ms: int = 0  # see RenewLeases


@message(kind=402, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class StopPart(Struct, frozen=True, kw_only=True):
    """End the run and any older attempt of the part; leave a tombstone. -> PartCommandReply

    Stops what is preparing, ready or running, and forbids what has not arrived yet. The
    answer's phase is STOPPING while executors are alive; FINISHED or UNKNOWN means the
    cores are free. A stopped run still ends in DeliverResult with its last statistics.
    """

    run: AttemptId
    group: int
    term: int
    reason: str
    grace_s: float = 1.0


@message(kind=403, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_MANAGERS)
class RenewLeases(Struct, frozen=True, kw_only=True):
    """Each second to every worker with runs of the group: they may go on. -> RenewLeasesReply

    Also says who the leader is now, and which runs of the group it knows of here. The lease
    counts from `stamp_ms`, a stamp of the worker's own clock that the leader had got before it
    was last confirmed (see `links`): a renewal that was under way for long is worth less, or
    nothing. So `lease_ms` after the leader heard a stamp for the last time, or after another
    leader was elected, the worker has stopped. With 0 it counts from receipt.
    """

    group: int
    term: int
    leader: str
    lease_ms: int
    runs: list[AttemptId]
    stamp_ms: int = 0


@message(kind=404, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class ListAttempts(Struct, frozen=True, kw_only=True):
    """What do you have of this group? Asked by a new leader of all workers. -> ListAttemptsReply"""

    group: int
    term: int
    leader: str


@message(kind=405, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class AcknowledgeResult(Struct, frozen=True, kw_only=True):
    """The end of a run is committed, or does not matter any more: forget it."""

    run: AttemptId
    group: int
    term: int


# --- worker to leader --------------------------------------------------------------------


@message(kind=410, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_WORKERS)
class PartCommandReply(Struct, frozen=True, kw_only=True):
    """The worker's last word on a command. With `accepted` False nothing has changed."""

    run: AttemptId
    accepted: bool
    refusal: Refusal = Refusal.NONE
    reason: str = ""
    seen_term: int = 0  # highest term of the group
    seen_attempt: int = 0  # highest attempt of the part
    phase: PartPhase = PartPhase.UNKNOWN  # of the run, or of the newer one that is there
    stamp_ms: int = 0  # of the worker's clock, for the next StartPart or RenewLeases


@message(kind=411, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_WORKERS)
class RenewLeasesReply(Struct, frozen=True, kw_only=True):
    """`accepted` False: the term is stale and nothing was renewed."""

    accepted: bool
    seen_term: int = 0
    unknown: list[AttemptId] = field(default_factory=list)  # listed by the leader, not here
    unlisted: list[AttemptId] = field(default_factory=list)  # here, not in the leader's list
    stamp_ms: int = 0  # as in PartCommandReply


@nested
class PartView(Struct, frozen=True, kw_only=True):
    """One run as its worker sees it. `report` (`hyperscale.stats.report.Report`, encoded) is whole:
    histograms and the full series."""

    run: AttemptId
    phase: PartPhase
    cores: int
    elapsed_s: float = 0.0  # of this attempt
    report: bytes | None = None


@message(kind=412, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_WORKERS)
class ListAttemptsReply(Struct, frozen=True, kw_only=True):
    """`accepted` False: the term is stale."""

    worker: str
    accepted: bool = True
    seen_term: int = 0
    parts: list[PartView] = field(default_factory=list)
    stamp_ms: int = 0  # as in PartCommandReply
    alive_ms: int = 0  # how long this process has been there: what it does not know, it never had


@message(kind=413, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_WORKERS)
class AnnounceReady(Struct, frozen=True, kw_only=True):
    """All executors of the run are prepared. Repeated each second until started or stopped."""

    worker: str
    group: int
    run: AttemptId
    stamp_ms: int = 0  # as in PartCommandReply


@message(kind=414, priority=MessagePriority.CRITICAL, size=SizeClass.MEDIUM, senders=_WORKERS)
class AnnouncePrepareFailed(Struct, frozen=True, kw_only=True):
    """Preparing failed; the cores are free again. Repeated until its AcknowledgeResult.

    If its hooks have reported something by then, it ends with a DeliverResult instead."""

    worker: str
    group: int
    run: AttemptId
    error: str
    hint: str = ""
    is_input: bool = False  # the user's file or class is wrong: another worker would fail alike
    is_retryable: bool = False  # this worker's fault (bundle missing, executor died)


@nested
class PartProgress(Struct, frozen=True, kw_only=True, gc=False):
    """The latest of one run. `report` is all its cores together, cumulative, with the part's
    `first_slot` as slot and a sequence that grows for the life of the run. Its elapsed time and
    its seconds are the workflow's: they go on where the attempt before this one was."""

    run: AttemptId
    report: bytes
    elapsed_s: float  # of this attempt
    phase: PartPhase = PartPhase.RUNNING
    extension: str = ""  # why it asks for more time before it is taken for stuck


@message(kind=415, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_WORKERS)
class ReportProgress(Struct, frozen=True, kw_only=True):
    """All runs of one group on one worker, one message. -> ReportProgressReply"""

    worker: str
    group: int
    parts: list[PartProgress]
    cpu: float = 0.0  # share of the worker's cores in use, 0 ... 1
    memory: float = 0.0  # share of its memory in use
    saturated: list[AttemptId] = field(default_factory=list)  # generators at their limit


@message(kind=416, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MANAGERS)
class ReportProgressReply(Struct, frozen=True, kw_only=True):
    """`leader` is empty unless the receiver does not lead the group and knows who does."""

    backpressure: Backpressure = Backpressure.NONE
    leader: str = ""
    extended_s: dict[str, float] = field(default_factory=dict)  # "workflow/part" -> granted


@message(kind=417, priority=MessagePriority.CRITICAL, size=SizeClass.LARGE, senders=_WORKERS)
class DeliverResult(Struct, frozen=True, kw_only=True):
    """How a run ended. Kept on the worker's disk and repeated until its AcknowledgeResult.

    `report` is whole: histograms and the full bounded series.
    """

    worker: str
    group: int
    run: AttemptId
    status: PartStatus
    report: bytes | None
    elapsed_s: float = 0.0  # of this attempt
    error: str | None = None
    # Encoded `plan.context.Provided` as its executors gave them, one each; opaque.
    provided: list[bytes] = field(default_factory=list)
    is_retryable: bool = False  # an executor died or the lease ran out: worth a new attempt
    was_saturated: bool = False
    # How long an executor that was killed may have gone on after what it had reported.
    unheard_s: float = 0.0


@message(kind=418, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=_WORKERS)
class ForwardOutput(Struct, frozen=True, kw_only=True):
    """What user code printed; rate limited by the worker, not repeated."""

    worker: str
    group: int
    run: AttemptId
    slot: int
    stream: str  # "stdout" or "stderr"
    text: str
    number: int = 0  # grows with each piece of the run, whoever leads; 0: of an older worker


# --- job leader to allocator, and back ---------------------------------------------------


class AskState(Enum):
    GRANTED = "granted"
    QUEUED = "queued"
    EXCEEDED = "exceeded"  # the queue is full: try again after `retry_after_s`
    IMPOSSIBLE = "impossible"  # no worker, or none large enough, is there; may change
    REBUILDING = "rebuilding"  # a new allocator that has not heard of all workers yet
    NOT_ALLOCATOR = "not_allocator"


@message(kind=420, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class RequestCores(Struct, frozen=True, kw_only=True):
    """Cores for one workflow, or for the new attempt of one part. -> RequestCoresReply

    Repeated each second until granted (the allocator forgets an ask it has not heard for 5 s)
    and once more whenever a grant may have been lost: the same `ask` gets the same grant.
    """

    ask: str  # names the wish: same job, workflow and purpose, same name
    job: str
    workflow: str
    group: int
    term: int
    leader: str
    priority: Priority = Priority.AUTO
    is_test: bool = True
    vus: int = 1  # no more cores than virtual users
    # A new attempt of this part: exactly so many cores, on one worker. Otherwise priority and
    # pool decide, and part i is the i-th share of the grant.
    part: int = -1
    cores: int = 0
    exclude: list[str] = field(default_factory=list)  # workers that failed it
    is_recovery: bool = False  # first in line
    may_share: bool = False  # load that was there must come back, beside others if need be
    waited_s: float = 0.0  # so long already: a new allocator goes on where the last one was
    together: int = 1  # workflows of the job that ask in the same moment, this one included


@nested
class WorkerShare(Struct, frozen=True):
    worker: str
    cores: int


@message(kind=421, priority=MessagePriority.HIGH, size=SizeClass.MEDIUM, senders=_MANAGERS)
class RequestCoresReply(Struct, frozen=True, kw_only=True):
    ask: str
    state: AskState
    group: int = 0  # of a grant: the group whose leader made the request
    shares: list[WorkerShare] = field(default_factory=list)  # in order of slots
    shared: bool = False  # as in PreparePart
    position: int = 0  # 1 is next
    queue: int = 0  # how many wait
    pool: int = 0  # cores of all workers that take work
    retry_after_s: float = 0.0
    reason: str = ""


@message(kind=422, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class ReleaseCores(Struct, frozen=True, kw_only=True):
    """A grant, or the wish for one, is not needed any more. Repeating it is harmless."""

    ask: str
    group: int
    term: int
    part: int = -1  # of a grant that part alone


@nested
class HeldCores(Struct, frozen=True, kw_only=True):
    run: AttemptId
    cores: int
    shared: bool = False
    exclusive: bool = False  # as in PreparePart


@message(kind=423, priority=MessagePriority.NORMAL, size=SizeClass.MEDIUM, senders=_WORKERS)
class AnnounceCores(Struct, frozen=True, kw_only=True):
    """What a worker has and holds: the truth about its cores. On change and each second.

    `incarnation` and `version` order them; a worker that restarted holds nothing.
    """

    worker: str
    incarnation: int
    version: int
    total: int
    held: list[HeldCores] = field(default_factory=list)
    draining: bool = False


# --- bundles and drains ------------------------------------------------------------------


@message(kind=440, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=NODES)
class FetchBlob(Struct, frozen=True):
    """The bytes with this SHA-256. Answered by a stream of `wire.messages.Chunk`."""

    sha256: str


@message(kind=441, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_OPERATED)
class DrainWorker(Struct, frozen=True):
    """Take no new work, and finish what runs. -> DrainWorkerReply"""


@message(kind=442, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_WORKERS)
class DrainWorkerReply(Struct, frozen=True):
    runs: int
    """How many runs are still here, results that wait for an acknowledgement included."""


@message(kind=443, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_MANAGERS)
class AnnounceCoresReply(Struct, frozen=True):
    """The answer to `AnnounceCores`, which asks for one until an allocator has said yes."""

    is_known: bool
    """Whether this manager grants cores now, and those of the worker are among them."""
