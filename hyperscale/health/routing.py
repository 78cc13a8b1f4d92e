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

from hyperscale.health.progress import Progress


class Routing(StrEnum):
    ROUTE = "route"
    INVESTIGATE = "investigate"
    HOLD = "hold"
    DRAIN = "drain"
    EVICT = "evict"


class HealthSignals(Struct, frozen=True, kw_only=True):
    is_live: bool
    is_ready: bool
    progress: Progress = Progress.IDLE

    def decision(self) -> Routing:
        """The gravest that applies."""
        if not self.is_live:
            return Routing.EVICT
        if self.progress is Progress.STUCK:
            return Routing.DRAIN
        if not self.is_ready:
            return Routing.HOLD
        if self.progress is Progress.STALLED:
            return Routing.INVESTIGATE
        return Routing.ROUTE
