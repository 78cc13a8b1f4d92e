"""Events and effects of the worker's agent.

`place` numbers an executor of the worker. Times are on one clock that also counts while the
machine sleeps.
"""

from dataclasses import dataclass
from typing import Any

from hyperscale._native import Report
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnounceCores,
    AnnouncePrepareFailed,
    AnnounceReady,
    AnnounceRows,
    AnnounceSetUp,
    AttemptId,
    ChangePart,
    DeliverResult,
    ForwardOutput,
    GrantRows,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PreparePart,
    RenewLeases,
    RenewLeasesReply,
    ReportProgress,
    ReportProgressReply,
    ShareSetUpContext,
    StartPart,
    StopPart,
)
from hyperscale.plan.changes import AppliedChange
from hyperscale.plan.status import PartStatus
from hyperscale.sansio.core import Tick

PartCommand = PreparePart | ShareSetUpContext | StartPart | ChangePart | GrantRows | StopPart
LeaderCommand = PartCommand | RenewLeases | ListAttempts | AcknowledgeResult
CommandReply = PartCommandReply | RenewLeasesReply | ListAttemptsReply
WorkerMessage = (
    AnnounceSetUp
    | AnnounceReady
    | AnnounceRows
    | AnnouncePrepareFailed
    | DeliverResult
    | ForwardOutput
    | AnnounceCores
)

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """A job leader sent a command. `ReplyToCommand` returns the token."""

    sender: str
    command: LeaderCommand
    token: Any = None


@dataclass(frozen=True, slots=True)
class AttemptSetUp:
    """Every executor of the attempt waits for the context that setup left; if setup ran here, it
    left `context`."""

    attempt_id: AttemptId
    context: bytes = b""


@dataclass(frozen=True, slots=True)
class AttemptPrepared:
    """Every executor of the attempt is prepared."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class AttemptPrepareFailed:
    """The attempt could not be prepared, or was stopped meanwhile. All its places are vacant."""

    attempt_id: AttemptId
    error: str
    hint: str = ""
    is_retryable: bool = False  # this worker failed: another one may succeed


@dataclass(frozen=True, slots=True)
class PlaceReported:
    """An executor reported its cumulative statistics."""

    attempt_id: AttemptId
    place: int
    report: Report
    drawn: int = 0  # rows that its slot has used, counted as in `RowBounds`


@dataclass(frozen=True, slots=True)
class PlaceEnded:
    """An executor has finished its slot of the attempt, or died."""

    attempt_id: AttemptId
    place: int
    status: PartStatus
    error: str | None = None
    report: Report | None = None  # None: the executor died before its last report
    provided: bytes = b""
    is_dead: bool = False  # the process died without fault of user code
    drawn: int = 0  # as in PlaceReported, if there is a report


@dataclass(frozen=True, slots=True)
class PlaceVacated:
    """No process of the attempt is left at the place: the core is free."""

    attempt_id: AttemptId
    place: int


@dataclass(frozen=True, slots=True)
class PlacePrinted:
    """User code at the place printed text."""

    attempt_id: AttemptId
    place: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class ReportAnswered:
    """The reply to a `SendReport`; None if the call failed."""

    group: int
    to: str
    reply: ReportProgressReply | None


@dataclass(frozen=True, slots=True)
class ResultStored:
    """A result is on disk, or could not be written and is sent from memory."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class ResultsRestored:
    """Results that were on disk when this worker started."""

    results: tuple[DeliverResult, ...]


@dataclass(frozen=True, slots=True)
class UsageMeasured:
    """Shares of the worker's cores and memory in use, 0 ... 1."""

    cpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class FitnessChecked:
    """The worker has checked itself: why it can run no part, in words; empty if it can."""

    unfit: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Accept no new work. With `hands_over`, also stop all attempts so that others retry them."""

    hands_over: bool = False


AgentEvent = (
    CommandReceived
    | AttemptSetUp
    | AttemptPrepared
    | AttemptPrepareFailed
    | PlaceReported
    | PlaceEnded
    | PlaceVacated
    | PlacePrinted
    | ReportAnswered
    | ResultStored
    | ResultsRestored
    | UsageMeasured
    | FitnessChecked
    | DrainRequested
    | Tick
)

# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplyToCommand:
    """Reply to the command with this token."""

    token: Any
    reply: CommandReply


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a one-way message to a manager, or to every known manager if `to` is None."""

    to: str | None
    message: WorkerMessage


@dataclass(frozen=True, slots=True)
class SendReport:
    """Call the job leader with a report. `ReportAnswered` must follow, also on failure."""

    to: str
    progress: ReportProgress


@dataclass(frozen=True, slots=True)
class PrepareAttempt:
    """Fetch the bundle and prepare the executors at these places.

    `AttemptPrepared` or `AttemptPrepareFailed` must follow.
    """

    command: PreparePart
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeighAttempt:
    """Give the executors at these places a CPU weight, because attempts share cores. Also before
    they are prepared; it holds until they leave."""

    attempt_id: AttemptId
    places: tuple[int, ...]
    nice: int


@dataclass(frozen=True, slots=True)
class ShareWithAttempt:
    """Tell the executors, which wait for it, the context that setup left."""

    attempt_id: AttemptId
    places: tuple[int, ...]
    context: bytes


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start the prepared executors. `PlaceEnded`, then `PlaceVacated`, must follow for each."""

    attempt_id: AttemptId
    places: tuple[int, ...]
    start_in_ms: float
    since_s: float | None = None  # as in StartPart


@dataclass(frozen=True, slots=True)
class ChangeAttempt:
    """Change the load of the executors; these are all changes so far."""

    attempt_id: AttemptId
    places: tuple[int, ...]
    changes: list[AppliedChange]


@dataclass(frozen=True, slots=True)
class GrantAttemptRows:
    """Let the executors use their rows below the limit."""

    attempt_id: AttemptId
    places: tuple[int, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class LeaseAttempt:
    """Let the executors generate load until `until_s`, on the clock of `now_s`."""

    attempt_id: AttemptId
    places: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Stop the executors: gracefully, then by force after `grace_s`."""

    attempt_id: AttemptId
    places: tuple[int, ...]
    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class StoreResult:
    """Write the result to disk. `ResultStored` must follow."""

    result: DeliverResult


@dataclass(frozen=True, slots=True)
class EraseResult:
    """Delete an acknowledged result from disk."""

    attempt_id: AttemptId


AgentEffect = (
    ReplyToCommand
    | SendMessage
    | SendReport
    | PrepareAttempt
    | WeighAttempt
    | ShareWithAttempt
    | StartAttempt
    | ChangeAttempt
    | GrantAttemptRows
    | LeaseAttempt
    | StopAttempt
    | StoreResult
    | EraseResult
)
