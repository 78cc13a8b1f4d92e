"""Events and effects of the job leader."""

from dataclasses import dataclass
from typing import Any

from hyperscale.jobs.committed.events import Event as CommittedEvent
from hyperscale.jobs.committed.events import Reply as CommittedReply
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnouncePrepareFailed,
    AnnounceReady,
    AnnounceRows,
    AnnounceSetUp,
    Backpressure,
    ChangePart,
    DeliverResult,
    GrantRows,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PreparePart,
    ReleaseCores,
    RenewLeases,
    RenewLeasesReply,
    ReportProgress,
    ReportProgressReply,
    RequestCores,
    RequestCoresReply,
    ShareSetUpContext,
    StartPart,
    StopPart,
)
from hyperscale.jobs.worker_events import WorkerDown, WorkerUp
from hyperscale.sansio.core import Tick

PartCommand = PreparePart | ShareSetUpContext | StartPart | ChangePart | GrantRows | StopPart
WorkerCommand = PartCommand | RenewLeases | ListAttempts | AcknowledgeResult
WorkerAnnouncement = (
    AnnounceSetUp | AnnounceReady | AnnounceRows | AnnouncePrepareFailed | DeliverResult
)
WorkerReply = PartCommandReply | RenewLeasesReply | ListAttemptsReply

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """This node was elected. `workers` are those that membership sees."""

    term: int
    workers: tuple[str, ...]
    time_ms: int  # the time of the group, by which the ages of committed state are measured
    is_estimate: bool = False  # all replicas restarted, so that nobody knows the time exactly


@dataclass(frozen=True, slots=True)
class EventApplied:
    """The group's machine applied an event, of this or of an earlier leader."""

    event: CommittedEvent
    reply: CommittedReply


@dataclass(frozen=True, slots=True)
class ProposalFailed:
    """The event was not committed, or its outcome is unknown."""

    event: CommittedEvent


@dataclass(frozen=True, slots=True)
class WorkersHeld:
    """The silence of these workers, and of no others, is attributed to the network for now."""

    workers: frozenset[str]


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """The outcome of a `SendCommand`. `reply` None: no reply. `refused_s`: since when connections
    to the worker are refused, if they are."""

    worker: str
    command: WorkerCommand
    reply: WorkerReply | None
    rtt_s: float | None = None
    refused_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerAnnounced:
    """A worker announced a change of an attempt. It repeats the message until acknowledged."""

    message: WorkerAnnouncement


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """The reports of one worker; answered by `AnswerProgress` with the same token."""

    progress: ReportProgress
    token: Any = None
    backpressure: Backpressure = Backpressure.NONE


@dataclass(frozen=True, slots=True)
class CoresAnswered:
    """The allocator's reply to a request for cores, at once or later."""

    reply: RequestCoresReply


@dataclass(frozen=True, slots=True)
class LeadershipConfirmed:
    """A majority of the group took this node for its leader after the question was asked."""

    question: int


LeaderEvent = (
    BecameLeader
    | EventApplied
    | ProposalFailed
    | WorkerUp
    | WorkerDown
    | WorkersHeld
    | CommandAnswered
    | WorkerAnnounced
    | ProgressReported
    | CoresAnswered
    | LeadershipConfirmed
    | Tick
)

# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Propose:
    """Propose an event to the group. `EventApplied` or `ProposalFailed` follows."""

    event: CommittedEvent


@dataclass(frozen=True, slots=True)
class SendCommand:
    """Call a worker. `CommandAnswered` must follow, except after an `AcknowledgeResult`."""

    worker: str
    command: WorkerCommand


@dataclass(frozen=True, slots=True)
class SendCoreRequest:
    """Call the allocator. `CoresAnswered` follows if it replies; the call may get lost."""

    request: RequestCores


@dataclass(frozen=True, slots=True)
class SendRelease:
    """Tell the allocator that a request or a grant is over. May get lost."""

    release: ReleaseCores


@dataclass(frozen=True, slots=True)
class ConfirmLeadership:
    """Ask a majority of the group whether this node still leads. If it does,
    `LeadershipConfirmed` follows with the same number; otherwise nothing."""

    question: int


@dataclass(frozen=True, slots=True)
class AnswerProgress:
    """Reply to a `ProgressReported`."""

    token: Any
    reply: ReportProgressReply


@dataclass(frozen=True, slots=True)
class LogJobError:
    """Log a bug that one job ran into. The job is ended; others are not affected."""

    job: str
    error: Exception


LeaderEffect = (
    Propose
    | SendCommand
    | SendCoreRequest
    | SendRelease
    | ConfirmLeadership
    | AnswerProgress
    | LogJobError
)
