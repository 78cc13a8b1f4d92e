"""Whether many nodes fell silent together: then the network failed, and evictions make it worse.

`NODES` nodes, or more than `SHARE` of all, within `WINDOW_S` hold the eviction of each of them; a
single node is never held. The hold ends after `HOLD_S`: if the nodes are dead after all, other
nodes must take over their work. A certain death is never held and never counts.
"""

WINDOW_S = 30.0
NODES = 3
SHARE = 0.5
HOLD_S = 30.0


class CorrelationGuard:
    """Remembers which nodes fell silent when."""

    def __init__(self, *, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._failed_s: dict[str, float] = {}

    def failed(self, node: str, *, is_certain: bool, now_s: float) -> None:
        """Record that a node is no longer live. Only the first time counts."""
        if is_certain:
            self._failed_s.pop(node, None)
        else:
            self._failed_s.setdefault(node, now_s)

    def recovered(self, node: str) -> None:
        self._failed_s.pop(node, None)

    def suspects(self, *, now_s: float) -> list[str]:
        """Return the nodes whose eviction may be held; forget those that failed long ago."""
        since_s = now_s - self._hold_s - WINDOW_S
        self._failed_s = {node: at_s for node, at_s in self._failed_s.items() if at_s > since_s}
        return list(self._failed_s)

    def is_held(self, node: str, *, nodes: int, now_s: float) -> bool:
        """Return True if the eviction of `node`, one of `nodes` known ones, has to wait."""
        failed_s = self._failed_s.get(node)
        if failed_s is None or now_s >= failed_s + self._hold_s:
            return False
        together = sum(abs(other - failed_s) <= WINDOW_S for other in self._failed_s.values())
        return together >= 2 and (together >= NODES or together > nodes * SHARE)
