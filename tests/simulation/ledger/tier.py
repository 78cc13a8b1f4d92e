"""The shared state of the nodes of a simulated tier: disks, limits and disk faults."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import LedgerLimits
from hyperscale.ledger.machine import Machine
from tests.simulation.ledger.observed import ObservedCore, Observer
from tests.simulation.ledger.store import CrashableStore


@dataclass
class Tier:
    stores: dict[str, CrashableStore]
    limits: LedgerLimits
    core: Callable[..., ObservedCore]
    observer: Observer
    machine: Callable[[str, int], Machine] = JobMachine
    newer: dict[str, Callable[[str, int], Machine]] = field(default_factory=dict)
    """The machines of nodes that run a newer version, by address."""
    sync_s: tuple[float, float] = (0.001, 0.004)
    slow_sync: float = 0.0
    """Share of syncs that take up to `slow_sync_s`."""
    slow_sync_s: float = 0.3
    down_since_s: dict[str, float] = field(default_factory=dict)
    unfit: set[str] = field(default_factory=set)
    stale_snapshots: bool = False
    acks_early: bool = False
    crash_on_vote: float = 0.0
    """Share of votes after which the voter crashes and restarts at once."""
    manages: bool = True
    """False: no maintenance, groups stay as they were founded."""
