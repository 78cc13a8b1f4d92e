"""What a manager knows about the health of its workers, and which of them may get work.

Membership says whether a worker is live; the worker announces readiness and progress itself. The
decisions are made in `health`; this module keeps them.
"""

from collections import Counter

from hyperscale.health.signals import RoutingDecision, WorkProgress, routing_decision
from hyperscale.membership.events import LIVING, MemberChanged, MemberDied, MemberState
from hyperscale.nodes.messages import metadata_of
from hyperscale.telemetry.metrics import Family, gauge
from hyperscale.wire.roles import Role


class WorkerHealth:
    """The routing decisions about the workers that one manager knows."""

    def __init__(self) -> None:
        self._decisions: dict[str, RoutingDecision] = {}

    def changed(self, change: MemberChanged | MemberDied) -> None:
        """Take a change of a member into account."""
        member = change.member
        if member.role is not Role.WORKER or isinstance(change, MemberDied):
            return  # a death is followed by a change of the member's state
        if member.state is MemberState.UNCONFIRMED:
            return
        if member.state is MemberState.LEFT:
            self._decisions.pop(member.node, None)
            return
        metadata = metadata_of(member.metadata)
        self._decisions[member.node] = routing_decision(
            is_live=member.state in LIVING,
            # A suspect may be dead: it keeps its parts and gets no new ones.
            is_ready=member.state is MemberState.ALIVE
            and metadata is not None
            and metadata.is_ready,
            progress=WorkProgress.IDLE if metadata is None else metadata.progress,
        )

    def decision(self, node: str) -> RoutingDecision | None:
        """Return whether a worker gets work; None if the node is not a worker."""
        return self._decisions.get(node)

    def collect(self) -> list[Family]:
        """Return the metrics of this module."""
        counts = Counter(self._decisions.values())
        return [
            gauge(
                "hyperscale_workers",
                "Workers by routing decision",
                *(({"decision": str(each)}, counts[each]) for each in RoutingDecision),
            )
        ]
