"""May work be given to a node? By role, and in words why not.

Ready is what a node says of itself: it has room, it is not overloaded, it is not leaving. A node
that is not ready is not dead.
"""

from msgspec import Struct

from hyperscale.health.overload import OverloadLevel


class WorkerReadiness(Struct, frozen=True, kw_only=True):
    has_joined: bool = True
    accepts_work: bool = True
    capacity: int = 0
    overload: OverloadLevel = OverloadLevel.HEALTHY

    def why_not(self) -> tuple[str, ...]:
        return _named(
            ("no manager is known", not self.has_joined),
            ("draining", not self.accepts_work),
            ("no free capacity", self.capacity <= 0),
            ("overloaded", self.overload >= OverloadLevel.OVERLOADED),
        )

    @property
    def is_ready(self) -> bool:
        return not self.why_not()


class ManagerReadiness(Struct, frozen=True, kw_only=True):
    has_quorum: bool = True
    accepts_jobs: bool = True
    workers: int | None = None
    """Asked by whoever would send jobs; a manager about itself does not: workers join later."""
    overload: OverloadLevel = OverloadLevel.HEALTHY

    def why_not(self) -> tuple[str, ...]:
        return _named(
            ("no quorum", not self.has_quorum),
            ("draining", not self.accepts_jobs),
            ("no workers", self.workers is not None and self.workers <= 0),
            ("overloaded", self.overload >= OverloadLevel.OVERLOADED),
        )

    @property
    def is_ready(self) -> bool:
        return not self.why_not()


class GateReadiness(Struct, frozen=True, kw_only=True):
    datacenters: int = 0
    accepts_jobs: bool = True
    overload: OverloadLevel = OverloadLevel.HEALTHY

    def why_not(self) -> tuple[str, ...]:
        return _named(
            ("no datacenter is connected", self.datacenters <= 0),
            ("draining", not self.accepts_jobs),
            # A gate stands in for every job of every datacenter: it steps back earlier.
            (self.overload.name.lower(), self.overload >= OverloadLevel.STRESSED),
        )

    @property
    def is_ready(self) -> bool:
        return not self.why_not()


def _named(*conditions: tuple[str, bool]) -> tuple[str, ...]:
    return tuple(words for words, holds in conditions if holds)
