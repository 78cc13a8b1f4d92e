"""What an owner remembers about datacenters beside what probes say: round trips, recent failures,
and cores that it assigned a moment ago.
"""

from collections.abc import Mapping

from hyperscale.gates.datacenters.monitor import DatacenterView
from hyperscale.gates.owner.events import OwnerTimeouts
from hyperscale.membership.coordinates import Coordinate


class DatacenterTable:
    """Datacenters as the owner of jobs sees them when it chooses among them."""

    def __init__(self, timeouts: OwnerTimeouts) -> None:
        self._timeouts = timeouts
        self.views: Mapping[str, DatacenterView] = {}
        self.local = Coordinate()
        self.rtts_s: dict[str, float] = {}
        self.removed: frozenset[str] = frozenset()  # for good, by an operator
        self._cooling_until_s: dict[str, float] = {}
        self._under_way: dict[str, list[tuple[float, int]]] = {}  # until when, cores

    def seen(self, views: Mapping[str, DatacenterView], local: Coordinate) -> None:
        self.views, self.local = views, local
        for name, view in views.items():
            if view.rtt_s is not None:
                self.rtts_s[name] = view.rtt_s

    def cool_down(self, datacenter: str, *, now_s: float) -> None:
        """Choose a datacenter last for a while, because it failed."""
        self._cooling_until_s[datacenter] = now_s + self._timeouts.cooldown_s

    def cooling(self, *, now_s: float) -> frozenset[str]:
        return frozenset(name for name, until_s in self._cooling_until_s.items() if until_s > now_s)

    def assigned(self, datacenter: str, users: int, *, now_s: float) -> None:
        """Count cores for these users until they can be expected to show in the figures."""
        view = self.views.get(datacenter)
        free = view.figures.available_cores if view and view.figures else 0
        under_way = (now_s + self._timeouts.under_way_s, min(users, max(0, free)))
        self._under_way.setdefault(datacenter, []).append(under_way)

    def cores_under_way(self, *, now_s: float) -> dict[str, int]:
        """Return the cores that were assigned a moment ago and may not be in the figures yet."""
        self._under_way = {
            name: [each for each in assigned if each[0] > now_s]
            for name, assigned in self._under_way.items()
        }
        return {
            name: sum(cores for _, cores in assigned) for name, assigned in self._under_way.items()
        }
