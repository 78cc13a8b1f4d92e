"""Events and effects of the owner of global jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from hyperscale.gates.committed.events import GlobalEvent
from hyperscale.gates.datacenters.monitor import DatacenterView
from hyperscale.gates.messages import (
    AssignmentCommand,
    AssignmentReply,
    AssignmentResultReply,
    DatacenterReport,
    ReportAssignmentReply,
)
from hyperscale.jobs.committed.events import Reply
from hyperscale.membership.coordinates import Coordinate
from hyperscale.sansio.core import Tick


class OwnerTimeouts(Struct, frozen=True, kw_only=True):
    """How long an owner waits for what."""

    retry_first_s: float = 0.5
    retry_most_s: float = 10.0
    call_s: float = 10.0  # an unanswered command counts as failed after this
    proposal_s: float = 30.0  # committing twice changes nothing
    repeat_s: float = 1.0  # before a failed proposal is made again
    tick_s: float = 0.5
    cooldown_s: float = 30.0  # a datacenter that failed is chosen last for so long
    under_way_s: float = 10.0  # how long an assignment may take to show in the figures
    stuck_s: float = 180.0  # no datacenter of a job heard for so long
    start_in_s: float = 0.2  # from the order to the start
    thresholds_s: float = 0.5
    breaker_failures: int = 5
    breaker_open_s: float = 30.0
    breaker_successes: int = 3


# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BecameOwner:
    """This gate was elected leader of the group."""

    term: int
    now_ms: int  # the time of the group, by which the ages of committed state are measured


@dataclass(frozen=True, slots=True)
class GlobalEventApplied:
    """The group's machine applied an event, of this or of an earlier owner."""

    event: GlobalEvent
    reply: Reply


@dataclass(frozen=True, slots=True)
class GlobalProposalFailed:
    """The event was not committed, or its outcome is unknown."""

    event: GlobalEvent


@dataclass(frozen=True, slots=True)
class DatacentersSeen:
    """What this gate knows about datacenters now."""

    views: Mapping[str, DatacenterView]
    local: Coordinate  # of this gate


@dataclass(frozen=True, slots=True)
class DatacentersRemoved:
    """Operators removed these datacenters for good, and no others: nothing runs there any more."""

    datacenters: frozenset[str]


@dataclass(frozen=True, slots=True)
class AssignmentAnswered:
    """The outcome of a `SendAssignment`. `reply` None: no reply, so the outcome is unknown."""

    datacenter: str
    command: AssignmentCommand
    reply: AssignmentReply | None


@dataclass(frozen=True, slots=True)
class DatacenterReported:
    """A datacenter reported; answered by `AnswerDatacenter` with the same token."""

    report: DatacenterReport
    token: Any = None


OwnerEvent = (
    BecameOwner
    | GlobalEventApplied
    | GlobalProposalFailed
    | DatacentersSeen
    | DatacentersRemoved
    | AssignmentAnswered
    | DatacenterReported
    | Tick
)

# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProposeGlobal:
    """Propose an event. `GlobalEventApplied` or `GlobalProposalFailed` follows."""

    event: GlobalEvent


@dataclass(frozen=True, slots=True)
class SendAssignment:
    """Call a manager of a datacenter. `AssignmentAnswered` must follow."""

    datacenter: str
    command: AssignmentCommand


@dataclass(frozen=True, slots=True)
class AnswerDatacenter:
    """Reply to a `DatacenterReported`."""

    token: Any
    reply: ReportAssignmentReply | AssignmentResultReply


@dataclass(frozen=True, slots=True)
class LogGlobalJobError:
    """Log a bug that one job ran into. The job is cancelled; others are not affected."""

    job: str
    error: Exception


OwnerEffect = ProposeGlobal | SendAssignment | AnswerDatacenter | LogGlobalJobError
