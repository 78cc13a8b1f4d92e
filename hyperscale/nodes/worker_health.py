"""What a manager knows about the health of its workers, and which of them may get work.

Membership says whether a worker is live; the worker announces readiness and progress itself. The
decisions are made in `health`; this module keeps their inputs and exposes their results.
"""

from collections import Counter

from hyperscale.health.progress import WorkProgress
from hyperscale.health.routing import HealthSignals, RoutingDecision
from hyperscale.membership.events import LIVING, MemberChanged, MemberDied, MemberState
from hyperscale.nodes.messages import metadata_of
from hyperscale.telemetry.metrics import Family, gauge
from hyperscale.wire.roles import Role


class WorkerHealth:
    """The health signals of the workers that one manager knows."""

    def __init__(self) -> None:
        self._signals: dict[str, HealthSignals] = {}

    def changed(self, change: MemberChanged | MemberDied) -> None:
        """Take a change of a member into account."""
        member = change.member
        if member.role is not Role.WORKER or isinstance(change, MemberDied):
            return  # a death is followed by a change of the member's state
        if member.state is MemberState.UNCONFIRMED:
            return
        if member.state is MemberState.LEFT:
            self._signals.pop(member.node, None)
            return
        metadata = metadata_of(member.metadata)
        self._signals[member.node] = HealthSignals(
            is_live=member.state in LIVING,
            # A suspect may be dead: it keeps its parts and gets no new ones.
            is_ready=member.state is MemberState.ALIVE
            and metadata is not None
            and metadata.is_ready,
            progress=WorkProgress.IDLE if metadata is None else metadata.progress,
        )

    def decision(self, node: str) -> RoutingDecision | None:
        """Return whether a worker gets work; None if the node is not a worker."""
        signals = self._signals.get(node)
        return None if signals is None else signals.decision()

    def collect(self) -> list[Family]:
        """Return the metrics of this module."""
        counts = Counter(signals.decision() for signals in self._signals.values())
        return [
            gauge(
                "hyperscale_workers",
                "Workers by routing decision",
                *(({"decision": str(each)}, counts[each]) for each in RoutingDecision),
            )
        ]
