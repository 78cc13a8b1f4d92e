"""Proposals under way: each is made once until it is applied, fails, or takes too long."""

from typing import Any

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Checkpointed,
    Event,
    JobSubmitted,
    PartEnded,
    PartRedispatched,
    WorkflowDispatched,
    WorkflowEnded,
)
from hyperscale.jobs.leader.events import Propose
from hyperscale.jobs.leader.timeouts import LeaderTimeouts

_Key = tuple[Any, ...]


class Proposals:
    """When what was last proposed."""

    def __init__(self, timeouts: LeaderTimeouts) -> None:
        self._timeouts = timeouts
        self._again_at_s: dict[_Key, float] = {}

    def propose(self, event: Event, *, now_s: float) -> list[Propose]:
        """Propose the event, unless the same proposal is under way."""
        key = _key(event)
        again_at_s = self._again_at_s.get(key)
        if again_at_s is not None and now_s < again_at_s:
            return []
        self._again_at_s[key] = now_s + self._timeouts.proposal_s
        return [Propose(event)]

    def applied(self, event: Event) -> None:
        self._again_at_s.pop(_key(event), None)

    def failed(self, event: Event, *, now_s: float) -> None:
        """Allow the proposal again, but not at once."""
        key = _key(event)
        if key in self._again_at_s:
            self._again_at_s[key] = now_s + self._timeouts.repeat_s


def _key(event: Event) -> _Key:
    """The same for two proposals that decide the same thing."""
    what: _Key
    match event:
        case JobSubmitted():
            return ("submitted", event.key)
        case WorkflowDispatched():
            what = ("dispatched", event.workflow)
        case PartRedispatched():
            what = ("redispatched", event.workflow, event.part, event.attempt)
        case AttemptRevoked() | PartEnded():
            what = ("closed", event.workflow, event.part, event.attempt)
        case WorkflowEnded():
            what = ("ended", event.workflow)
        case Checkpointed():
            what = ("checkpointed", *((p.workflow, p.part) for p in event.parts[:1]))
        case _:
            what = (type(event).__name__,)
    return (event.job, *what)
