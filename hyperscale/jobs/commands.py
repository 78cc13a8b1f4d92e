"""What job leaders, workers and the allocator say to each other.

A *run* is one attempt of one part of a workflow: the attempt names it. The term of the job's
group only authorises whoever commands; a worker refuses a term or an attempt below the
highest it has seen, and answers what it has seen. Every command may be repeated: the same
one again gets the same answer again. All times are durations; nobody's clock travels.

The conversation about one part: `PreparePart` (answered at once by `PartAnswer`: cores are
taken or it is refused), then `PartReady` or `PartRefused` from the worker when its executors
are; `StartPart` once all parts of the workflow are ready; `RenewLeases` each second while it
is meant to run; `Progress` each half second; `PartFinished`, repeated by the worker until it
gets a `ResultAck`. These structs are data only; `nodes` registers them with the wire.
"""

from enum import Enum

from msgspec import Struct, field

from hyperscale.plan import Priority, WorkflowPlan
from hyperscale.stats.report import PartReport


class RunId(Struct, frozen=True, gc=False):
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
    FINISHED = "finished"  # gone; the result waits for its ResultAck


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


class PartStatus(Enum):
    """How a run ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"  # told to, or its lease ran out; `error` holds the reason
    FAILED = "failed"


class Backpressure(Enum):
    """How much a leader can take; stretches the intervals of reports."""

    NONE = "none"
    THROTTLE = "throttle"
    BATCH = "batch"
    REJECT = "reject"  # only a slow probe, so that relief is heard


# --- leader to worker --------------------------------------------------------------------


class PreparePart(Struct, frozen=True, kw_only=True):
    """Take cores, start executors on the code, do not generate load yet. -> PartAnswer

    Executor i of the part is slot `first_slot + i` of `slots`. A higher attempt than one
    that is still here stops the old one first, then prepares.
    """

    run: RunId
    group: int
    term: int
    leader: str  # node id: who gets PartReady, Progress, PartFinished
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


class StartPart(Struct, frozen=True, kw_only=True):
    """Begin in `start_in_ms` from receipt. -> PartAnswer

    The leader has taken half the round trip off, so that all parts begin together.
    """

    run: RunId
    group: int
    term: int
    start_in_ms: float
    lease_ms: int = 8_000
    stamp_ms: int = 0  # see RenewLeases


class StopPart(Struct, frozen=True, kw_only=True):
    """End the run and any older attempt of the part; leave a tombstone. -> PartAnswer

    Stops what is preparing, ready or running, and forbids what has not arrived yet. The
    answer's phase is STOPPING while executors are alive; FINISHED or UNKNOWN means the
    cores are free. A stopped run still ends in PartFinished with its last statistics.
    """

    run: RunId
    group: int
    term: int
    reason: str
    grace_s: float = 1.0


class RenewLeases(Struct, frozen=True, kw_only=True):
    """Each second to every worker with runs of the group: they may go on. -> LeasesRenewed

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
    runs: list[RunId]
    stamp_ms: int = 0


class WhoRuns(Struct, frozen=True, kw_only=True):
    """What do you have of this group? Asked by a new leader of all workers. -> RunsHere"""

    group: int
    term: int
    leader: str


class ResultAck(Struct, frozen=True, kw_only=True):
    """The end of a run is committed, or does not matter any more: forget it."""

    run: RunId
    group: int
    term: int


# --- worker to leader --------------------------------------------------------------------


class PartAnswer(Struct, frozen=True, kw_only=True):
    """The worker's last word on a command. With `accepted` False nothing has changed."""

    run: RunId
    accepted: bool
    refusal: Refusal = Refusal.NONE
    reason: str = ""
    seen_term: int = 0  # highest term of the group
    seen_attempt: int = 0  # highest attempt of the part
    phase: PartPhase = PartPhase.UNKNOWN  # of the run, or of the newer one that is there
    stamp_ms: int = 0  # of the worker's clock, for the next StartPart or RenewLeases


class LeasesRenewed(Struct, frozen=True, kw_only=True):
    """`accepted` False: the term is stale and nothing was renewed."""

    accepted: bool
    seen_term: int = 0
    unknown: list[RunId] = field(default_factory=list)  # listed by the leader, not here
    unlisted: list[RunId] = field(default_factory=list)  # here, not in the leader's list
    stamp_ms: int = 0  # as in PartAnswer


class PartView(Struct, frozen=True, kw_only=True):
    """One run as its worker sees it. `report` is whole: histograms and the full series."""

    run: RunId
    phase: PartPhase
    cores: int
    elapsed_s: float = 0.0  # of this attempt
    report: PartReport | None = None


class RunsHere(Struct, frozen=True, kw_only=True):
    """`accepted` False: the term is stale."""

    worker: str
    accepted: bool = True
    seen_term: int = 0
    parts: list[PartView] = field(default_factory=list)
    stamp_ms: int = 0  # as in PartAnswer
    alive_ms: int = 0  # how long this process has been there: what it does not know, it never had


class PartReady(Struct, frozen=True, kw_only=True):
    """All executors of the run are prepared. Repeated each second until started or stopped."""

    worker: str
    group: int
    run: RunId
    stamp_ms: int = 0  # as in PartAnswer


class PartRefused(Struct, frozen=True, kw_only=True):
    """Preparing failed; the cores are free again. Repeated until its ResultAck. If hooks of it
    have reported something by then, it has failed with that, in PartFinished."""

    worker: str
    group: int
    run: RunId
    error: str
    hint: str = ""
    is_input: bool = False  # the user's file or class is wrong: another worker would fail alike
    is_retryable: bool = False  # this worker's fault (bundle missing, executor died)


class PartProgress(Struct, frozen=True, kw_only=True, gc=False):
    """The latest of one run. `report` is all its cores together, cumulative, with the part's
    `first_slot` as slot and a sequence that grows for the life of the run. Its elapsed time and
    its seconds are the workflow's: they go on where the attempt before this one was."""

    run: RunId
    report: PartReport
    elapsed_s: float  # of this attempt
    phase: PartPhase = PartPhase.RUNNING
    extension: str = ""  # why it asks for more time before it is taken for stuck


class Progress(Struct, frozen=True, kw_only=True):
    """All runs of one group on one worker, one message. -> ProgressTaken"""

    worker: str
    group: int
    parts: list[PartProgress]
    cpu: float = 0.0  # share of the worker's cores in use, 0 ... 1
    memory: float = 0.0  # share of its memory in use
    saturated: list[RunId] = field(default_factory=list)  # generators at their limit


class ProgressTaken(Struct, frozen=True, kw_only=True):
    """`leader` is empty unless the receiver does not lead the group and knows who does."""

    backpressure: Backpressure = Backpressure.NONE
    leader: str = ""
    extended_s: dict[str, float] = field(default_factory=dict)  # "workflow/part" -> granted


class PartFinished(Struct, frozen=True, kw_only=True):
    """How a run ended. Kept on the worker's disk and repeated until its ResultAck.

    `report` is whole: histograms and the full bounded series.
    """

    worker: str
    group: int
    run: RunId
    status: PartStatus
    report: PartReport | None
    elapsed_s: float = 0.0  # of this attempt
    error: str | None = None
    # Encoded `plan.context.Provided` as its executors gave them, one each; opaque.
    provided: list[bytes] = field(default_factory=list)
    is_retryable: bool = False  # an executor died or the lease ran out: worth a new attempt
    was_saturated: bool = False
    # How long an executor that was killed may have gone on after what it had reported.
    unheard_s: float = 0.0


class PartOutput(Struct, frozen=True, kw_only=True):
    """What user code printed; rate limited by the worker, not repeated."""

    worker: str
    group: int
    run: RunId
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


class AskCores(Struct, frozen=True, kw_only=True):
    """Cores for one workflow, or for the new attempt of one part. -> CoresAnswer

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


class WorkerShare(Struct, frozen=True):
    worker: str
    cores: int


class CoresAnswer(Struct, frozen=True, kw_only=True):
    ask: str
    state: AskState
    shares: list[WorkerShare] = field(default_factory=list)  # in order of slots
    shared: bool = False  # as in PreparePart
    position: int = 0  # 1 is next
    queue: int = 0  # how many wait
    pool: int = 0  # cores of all workers that take work
    retry_after_s: float = 0.0
    reason: str = ""


class ReleaseCores(Struct, frozen=True, kw_only=True):
    """A grant, or the wish for one, is not needed any more. Repeating it is harmless."""

    ask: str
    group: int
    term: int
    part: int = -1  # of a grant that part alone


class HeldCores(Struct, frozen=True, kw_only=True):
    run: RunId
    cores: int
    shared: bool = False
    exclusive: bool = False  # as in PreparePart


class WorkerCores(Struct, frozen=True, kw_only=True):
    """What a worker has and holds: the truth about its cores. On change and each second.

    `incarnation` and `version` order them; a worker that restarted holds nothing.
    """

    worker: str
    incarnation: int
    version: int
    total: int
    held: list[HeldCores] = field(default_factory=list)
    draining: bool = False
