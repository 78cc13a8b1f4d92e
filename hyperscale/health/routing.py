"""The three signals of a node together, and what to do with it.

| live | ready | progress | decision |
|---|---|---|---|
| no | any | any | EVICT |
| yes | any | stuck | DRAIN |
| yes | no | other | HOLD |
| yes | yes | stalled | INVESTIGATE |
| yes | yes | progressing, idle | ROUTE |

Busy is not dead, and stuck gets no work.
"""

from enum import StrEnum

from msgspec import Struct

from hyperscale.health.progress import WorkProgress


class RoutingDecision(StrEnum):
    ROUTE = "route"
    INVESTIGATE = "investigate"
    HOLD = "hold"
    DRAIN = "drain"
    EVICT = "evict"


class HealthSignals(Struct, frozen=True, kw_only=True):
    is_live: bool
    is_ready: bool
    progress: WorkProgress = WorkProgress.IDLE

    def decision(self) -> RoutingDecision:
        """The gravest that applies."""
        if not self.is_live:
            return RoutingDecision.EVICT
        if self.progress is WorkProgress.STUCK:
            return RoutingDecision.DRAIN
        if not self.is_ready:
            return RoutingDecision.HOLD
        if self.progress is WorkProgress.STALLED:
            return RoutingDecision.INVESTIGATE
        return RoutingDecision.ROUTE
