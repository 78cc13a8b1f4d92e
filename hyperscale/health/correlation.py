"""When many fall silent at once it is the network's fault, and evicting them makes it worse.

Three nodes, or more than half of them, within 30 s hold the eviction of each; a single node is
never held. The hold ends after 30 s: if they are dead after all, their work must go on. A death
that is proven is never held and never counts.
"""

from typing import Annotated

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class CorrelationConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    window_s: Seconds = 30.0
    nodes: Annotated[int, Meta(ge=2, le=10_000)] = 3
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    hold_s: Seconds = 30.0


class CorrelationGuard:
    """Which failures came together."""

    def __init__(self, config: CorrelationConfig | None = None) -> None:
        self._config = config or CorrelationConfig()
        self._failed_s: dict[str, float] = {}

    def failed(self, node: str, *, is_certain: bool, now_s: float) -> None:
        """A node stopped being live. Only the first time counts."""
        if is_certain:
            self._failed_s.pop(node, None)
        else:
            self._failed_s.setdefault(node, now_s)

    def recovered(self, node: str) -> None:
        self._failed_s.pop(node, None)

    def suspects(self, *, now_s: float) -> list[str]:
        """Those that stopped being live and may be held. Who did so long ago is forgotten: they
        came with nobody any more."""
        since_s = now_s - self._config.hold_s - self._config.window_s
        self._failed_s = {node: at_s for node, at_s in self._failed_s.items() if at_s > since_s}
        return list(self._failed_s)

    def is_held(self, node: str, *, nodes: int, now_s: float) -> bool:
        """Whether the eviction of `node`, one of `nodes` known ones, has to wait."""
        failed_s = self._failed_s.get(node)
        c = self._config
        if failed_s is None or now_s >= failed_s + c.hold_s:
            return False
        together = sum(abs(other - failed_s) <= c.window_s for other in self._failed_s.values())
        if together < 2:
            return False
        return together >= c.nodes or together > nodes * c.share
