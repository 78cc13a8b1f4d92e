"""The three signals of a node together, and what to do with it.

| live | ready | progress | decision |
|---|---|---|---|
| no | any | any | EVICT |
| yes | any | stuck | DRAIN |
| yes | no | other | HOLD |
| yes | yes | stalled | INVESTIGATE |
| yes | yes | progressing, idle | ROUTE |

Busy is not dead, stuck gets no work, and when many fail at once nobody is evicted in haste.
"""

from enum import StrEnum

from msgspec import Struct

from hyperscale.health.correlation import CorrelationConfig, CorrelationGuard
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
    is_certain: bool = False
    """A death that is proven (its process refused), not inferred from silence."""

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


class Verdict(Struct, frozen=True):
    is_evicted: bool
    reason: str


_KEPT = Verdict(False, "eviction criteria not met")
_UNKNOWN = Verdict(False, "unknown node")
_EVICTED = Verdict(True, "eviction criteria met")
_HELD = Verdict(False, "systemic failure detected, holding eviction")


class NodeHealth:
    """The signals of every node this one gives work to."""

    def __init__(self, correlation: CorrelationConfig | None = None) -> None:
        self._signals: dict[str, HealthSignals] = {}
        self._guard = CorrelationGuard(correlation)

    def update(self, node: str, signals: HealthSignals, *, now_s: float) -> Routing:
        self._signals[node] = signals
        if signals.is_live:
            self._guard.recovered(node)
        else:
            self._guard.failed(node, is_certain=signals.is_certain, now_s=now_s)
        return signals.decision()

    def forget(self, node: str) -> None:
        self._signals.pop(node, None)
        self._guard.recovered(node)

    def decision(self, node: str) -> Routing | None:
        """None for a node nobody has told about."""
        signals = self._signals.get(node)
        return None if signals is None else signals.decision()

    def routable(self) -> list[str]:
        """Nodes that may get work now; those to be investigated only if there is no other."""
        decisions = {node: signals.decision() for node, signals in self._signals.items()}
        best = [node for node, decision in decisions.items() if decision is Routing.ROUTE]
        return best or [n for n, decision in decisions.items() if decision is Routing.INVESTIGATE]

    def verdict(self, node: str, *, now_s: float) -> Verdict:
        """Whether the work of a node is taken away now."""
        signals = self._signals.get(node)
        if signals is None:
            return _UNKNOWN
        if signals.decision() is not Routing.EVICT:
            return _KEPT
        if self._guard.is_held(node, nodes=len(self._signals), now_s=now_s):
            return _HELD
        return _EVICTED
