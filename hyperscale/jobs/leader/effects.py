"""What a job leader wants done. Whoever drives it performs effects in order."""

from dataclasses import dataclass

from hyperscale.jobs.committed.events import Event
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    ListAttempts,
    PreparePart,
    ReleaseCores,
    RenewLeases,
    RequestCores,
    StartPart,
    StopPart,
)

Command = PreparePart | StartPart | StopPart | RenewLeases | ListAttempts | AcknowledgeResult


@dataclass(frozen=True, slots=True)
class Propose:
    """To the group's log. When applied, `JobLeader.applied`; if not, `proposal_failed`."""

    event: Event


@dataclass(frozen=True, slots=True)
class Send:
    """A call to a worker; `JobLeader.answered` must follow, except after a AcknowledgeResult."""

    worker: str
    command: Command


@dataclass(frozen=True, slots=True)
class Ask:
    """A call to the allocator; its answer goes to `JobLeader.cores`. May fail silently."""

    wish: RequestCores


@dataclass(frozen=True, slots=True)
class Release:
    """To the allocator; may get lost."""

    release: ReleaseCores


@dataclass(frozen=True, slots=True)
class Confirm:
    """Do most managers of the group take this one for its leader, asked from now on? If so,
    `JobLeader.confirmed` with the same number; if not, or if nobody knows, nothing."""

    question: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """A job could not be looked at: to be told to people."""

    job: str
    error: Exception


Effect = Propose | Send | Ask | Release | Confirm | Trouble
