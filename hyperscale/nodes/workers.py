"""What a manager makes of its workers: three signals each, and where work may go.

Live is what membership says, ready and progress what the worker says of itself. The decisions
are `health`'s; here they are only fed, shown and asked for.
"""

import time
from collections import Counter

from hyperscale.health.progress import Progress
from hyperscale.health.routing import HealthSignals, NodeHealth, Routing
from hyperscale.membership.events import Changed, Died, State
from hyperscale.membership.messages import Claim
from hyperscale.nodes.messages import metadata_of
from hyperscale.nodes.metrics import Family, gauge
from hyperscale.wire.roles import Role

_PROGRESS = {str(each): each for each in Progress}


class Workers:
    """The workers one manager knows."""

    def __init__(self) -> None:
        self._health = NodeHealth()
        self._certain: set[str] = set()
        self._names: dict[str, None] = {}

    def changed(self, change: Changed | Died) -> None:
        """Something became known about a member."""
        member = change.member
        if member.role is not Role.WORKER:
            return
        if isinstance(change, Died):
            if change.evidence is Claim.REFUSED:
                self._certain.add(member.node)
            return  # what follows from it comes as a change
        if member.state is State.UNCONFIRMED:
            return
        if member.state is State.LEFT:
            self._health.forget(member.node)
            self._names.pop(member.node, None)
            return
        is_live = member.state in (State.ALIVE, State.SUSPECT)
        if is_live:
            self._certain.discard(member.node)
        said = metadata_of(member.metadata)
        self._names[member.node] = None
        self._health.update(
            member.node,
            HealthSignals(
                is_live=is_live,
                # A suspect may be dead: it keeps what it has and gets nothing new.
                is_ready=member.state is State.ALIVE and said is not None and said.is_ready,
                progress=_PROGRESS.get(said.progress, Progress.IDLE) if said else Progress.IDLE,
                is_certain=member.node in self._certain,
            ),
            now_s=time.monotonic(),
        )

    def decision(self, node: str) -> str:
        """What to do with a worker; empty for a node that is none."""
        return str(self._health.decision(node) or "")

    def collect(self) -> list[Family]:
        counts = Counter(self._health.decision(node) for node in self._names)
        return [
            gauge(
                "hyperscale_workers",
                "Workers by what is done with them",
                *(({"decision": str(each)}, counts[each]) for each in Routing),
            )
        ]
