"""What happens to a worker's agent, and what it wants done: data only.

`place` numbers an executor of the worker: 0 ... cores - 1 are its cores, higher ones run beside
others. Times are of one clock that also counts while the machine sleeps.
"""

from dataclasses import dataclass
from typing import Any

from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnounceCores,
    AnnouncePrepareFailed,
    AnnounceReady,
    AttemptId,
    DeliverResult,
    ForwardOutput,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PreparePart,
    RenewLeases,
    ReportProgress,
    ReportProgressReply,
    StartPart,
    StopPart,
)
from hyperscale.jobs.messages import RenewLeasesReply as _Renewed
from hyperscale.plan.status import PartStatus
from hyperscale.stats.report import PartReport

Command = PreparePart | StartPart | StopPart | RenewLeases | ListAttempts | AcknowledgeResult
Answer = PartCommandReply | _Renewed | ListAttemptsReply
Message = AnnounceReady | AnnouncePrepareFailed | DeliverResult | ForwardOutput | AnnounceCores

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commanded:
    """A leader wants something. `token` comes back with the answer."""

    sender: str
    command: Command
    token: Any = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Every executor of the run is ready."""

    run: AttemptId


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """It could not be prepared, or was stopped before; nothing of it is left on its places."""

    run: AttemptId
    error: str
    hint: str = ""
    is_input: bool = False
    is_retryable: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    run: AttemptId
    place: int
    report: PartReport


@dataclass(frozen=True, slots=True)
class Ended:
    """An executor is done with its share of the run."""

    run: AttemptId
    place: int
    status: PartStatus
    error: str | None = None
    report: PartReport | None = None
    provided: bytes = b""
    is_dead: bool = False  # the process is gone: another may fare better


@dataclass(frozen=True, slots=True)
class Vacated:
    """Nothing of the run is left there: the core is free."""

    run: AttemptId
    place: int


@dataclass(frozen=True, slots=True)
class Printed:
    run: AttemptId
    place: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a `Report`; None: nothing."""

    group: int
    to: str
    taken: ReportProgressReply | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A result is on disk; or never will be, and is sent all the same."""

    run: AttemptId


@dataclass(frozen=True, slots=True)
class Restored:
    """Results that an earlier life of this worker left on disk."""

    results: tuple[DeliverResult, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Shares of the worker's cores and memory in use."""

    cpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Takes no new work from here on; with `hands_over` ends what it has, for others to go on."""

    hands_over: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = (
    Commanded
    | Prepared
    | PrepareFailed
    | Reported
    | Ended
    | Vacated
    | Printed
    | Answered
    | Stored
    | Restored
    | Measured
    | Drain
    | Tick
)

# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    token: Any
    answer: Answer


@dataclass(frozen=True, slots=True)
class Send:
    """One way, to a node; to every manager known if `to` is empty. It may get lost."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Report:
    """A call; `Answered` must follow, whatever comes of it."""

    to: str
    progress: ReportProgress


@dataclass(frozen=True, slots=True)
class PrepareRun:
    """Fetch the bundle and prepare these places. `Prepared` or `PrepareFailed` must follow."""

    command: PreparePart
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartRun:
    """`Ended` and then `Vacated` must follow for each place."""

    run: AttemptId
    places: tuple[int, ...]
    start_in_ms: float


@dataclass(frozen=True, slots=True)
class LeaseRun:
    """It may generate load until then, on the clock of `now_s`."""

    run: AttemptId
    places: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class StopRun:
    """Ends it on these places: gracefully, then by force."""

    run: AttemptId
    places: tuple[int, ...]
    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Store:
    """Onto the disk; `Stored` must follow."""

    result: DeliverResult


@dataclass(frozen=True, slots=True)
class Erase:
    run: AttemptId


Effect = Reply | Send | Report | PrepareRun | StartRun | LeaseRun | StopRun | Store | Erase
