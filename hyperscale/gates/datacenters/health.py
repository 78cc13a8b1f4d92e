"""The health class of a datacenter, from what its managers say in acks.

Full is not broken: a BUSY datacenter queues jobs, an UNHEALTHY one could not run them. A class is
left only when several acks in a row agree, so that one bad second moves no jobs.
"""

from enum import IntEnum

from msgspec import Struct

from hyperscale.wire.registry import nested

WORSE_ACKS = 2
BETTER_ACKS = 3
"""How many acks in a row must report a worse or a better class before it counts."""


class DatacenterHealth(IntEnum):
    """From best to worst."""

    HEALTHY = 0
    BUSY = 1
    DEGRADED = 2
    UNHEALTHY = 3


@nested
class DatacenterFigures(Struct, frozen=True, kw_only=True):
    """What a datacenter's managers say about it as a whole."""

    managers: int
    healthy_managers: int
    workers: int  # registered ones; a dead one counts until its record is dropped
    healthy_workers: int
    total_cores: int = 0
    available_cores: int = 0  # of healthy workers
    queue_depth: int = 0
    active_jobs: int = 0
    ready_managers: int | None = None  # None: as many as are healthy


def classify(figures: DatacenterFigures) -> DatacenterHealth:
    """Return the class that one ack reports."""
    if figures.healthy_managers <= 0 or figures.workers <= 0 or figures.healthy_workers <= 0:
        return DatacenterHealth.UNHEALTHY
    ready = figures.healthy_managers if figures.ready_managers is None else figures.ready_managers
    has_workers = figures.healthy_workers >= figures.workers // 2 + 1
    has_managers = min(figures.healthy_managers, ready) >= figures.managers // 2 + 1
    if not (has_workers and has_managers):
        return DatacenterHealth.DEGRADED
    if figures.available_cores <= 0:
        return DatacenterHealth.BUSY
    return DatacenterHealth.HEALTHY


class HealthFilter:
    """The class that counts: it follows the reported one after several acks in a row."""

    def __init__(self) -> None:
        self.current: DatacenterHealth | None = None
        self._candidate = DatacenterHealth.UNHEALTHY
        self._direction = 0  # 1: recent acks report a worse class, -1: a better one
        self._acks = 0  # in a row, in that direction

    def reported(self, health: DatacenterHealth) -> bool:
        """Take the class of one ack; return True if the class that counts has changed."""
        if self.current is None:
            self.current = health
            return True
        direction = (health > self.current) - (health < self.current)
        if direction != self._direction:
            self._direction, self._acks = direction, 0
        if direction == 0:
            return False
        # Of different classes in a row, the one nearest to the current class counts.
        nearest = min if direction > 0 else max
        self._candidate = nearest(self._candidate, health) if self._acks else health
        self._acks += 1
        if self._acks < (WORSE_ACKS if direction > 0 else BETTER_ACKS):
            return False
        self.current, self._direction = self._candidate, 0
        return True
