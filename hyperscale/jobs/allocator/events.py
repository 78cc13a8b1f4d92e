"""Events and effects of the allocator.

A message that needs no reply is an event itself: a worker announced its cores (`AnnounceCores`), or
a job leader gave up a request, a grant or one share of a grant (`ReleaseCores`).
"""

from dataclasses import dataclass
from typing import Any

from hyperscale.jobs.messages import AnnounceCores, ReleaseCores, RequestCores, RequestCoresReply
from hyperscale.jobs.worker_events import WorkerDown, WorkerUp
from hyperscale.sansio.core import Tick


@dataclass(frozen=True, slots=True)
class BecameAllocator:
    """This node leads the management group now; `workers` are alive according to membership."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LostAllocator:
    """This node no longer leads the management group."""


@dataclass(frozen=True, slots=True)
class CoresRequested:
    """A job leader made or repeated a request. `AnswerRequest` returns the token."""

    request: RequestCores
    token: Any = None


AllocatorEvent = (
    BecameAllocator
    | LostAllocator
    | WorkerUp
    | WorkerDown
    | AnnounceCores
    | CoresRequested
    | ReleaseCores
    | Tick
)


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Answer the `CoresRequested` event with this token: granted, queued or refused."""

    token: Any
    reply: RequestCoresReply


@dataclass(frozen=True, slots=True)
class SendGrant:
    """Send a grant to the job leader whose request waited for it.

    The message may get lost: job leaders repeat requests and get the same grant again.
    """

    leader: str
    reply: RequestCoresReply


AllocatorEffect = AnswerRequest | SendGrant
