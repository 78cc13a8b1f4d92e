"""What a manager makes of its workers: three signals each, and where work may go.

Live is what membership says, ready and progress what the worker says of itself. The decisions
are `health`'s; here they are only fed, shown and asked for.
"""

from collections import Counter

from hyperscale.health.progress import WorkProgress
from hyperscale.health.routing import HealthSignals, RoutingDecision
from hyperscale.membership.events import LIVING, MemberChanged, MemberDied, MemberState
from hyperscale.nodes.messages import metadata_of
from hyperscale.nodes.metrics import Family, gauge
from hyperscale.wire.roles import Role

_PROGRESS = {str(each): each for each in WorkProgress}


class Workers:
    """The workers one manager knows."""

    def __init__(self) -> None:
        self._signals: dict[str, HealthSignals] = {}

    def changed(self, change: MemberChanged | MemberDied) -> None:
        """Something became known about a member."""
        member = change.member
        if member.role is not Role.WORKER or isinstance(change, MemberDied):
            return  # what follows from a death comes as a change
        if member.state is MemberState.UNCONFIRMED:
            return
        if member.state is MemberState.LEFT:
            self._signals.pop(member.node, None)
            return
        said = metadata_of(member.metadata)
        self._signals[member.node] = HealthSignals(
            is_live=member.state in LIVING,
            # A suspect may be dead: it keeps what it has and gets nothing new.
            is_ready=member.state is MemberState.ALIVE and said is not None and said.is_ready,
            progress=_PROGRESS.get(said.progress, WorkProgress.IDLE) if said else WorkProgress.IDLE,
        )

    def decision(self, node: str) -> str:
        """What to do with a worker; empty for a node that is none."""
        signals = self._signals.get(node)
        return "" if signals is None else str(signals.decision())

    def collect(self) -> list[Family]:
        counts = Counter(signals.decision() for signals in self._signals.values())
        return [
            gauge(
                "hyperscale_workers",
                "Workers by what is done with them",
                *(({"decision": str(each)}, counts[each]) for each in RoutingDecision),
            )
        ]
