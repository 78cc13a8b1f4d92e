"""The maintenance of groups on a simulated node."""

from collections.abc import Callable
from typing import Any

from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.core_events import LeadershipTransferRequested, VoterChangeRequested
from hyperscale.ledger.group_maintenance import (
    CommitDecision,
    CommitRecord,
    GroupMaintenance,
    HandOverHistory,
    HistoryStateReceived,
    MaintenanceEffect,
    MaintenanceEvent,
    MaintenanceTiming,
    RequestHistoryState,
    Step,
    StepEnded,
)
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.topology import encode_decision
from hyperscale.ledger.topology_policy import TierHealth
from hyperscale.sansio.core import Tick
from tests.simulation.kernel import Host
from tests.simulation.ledger.observed import ObservedCore
from tests.simulation.ledger.pending_work import PendingWork
from tests.simulation.ledger.routing import CALL_S, Command, Router, record_command
from tests.simulation.ledger.store import CrashableStore
from tests.simulation.ledger.tier import Tier

TIMING = MaintenanceTiming(pass_s=0.4, unfit_s=0.0)
POLL_S = 0.1
DEAD_FACTOR = 200.0
"""A second without a process counts as so many: replacing a voter takes minutes."""


class Maintenance:
    """Feeds the maintenance core of one simulated node and performs its effects."""

    def __init__(
        self,
        host: Host,
        tier: Tier,
        store: CrashableStore,
        core: ObservedCore,
        pending: PendingWork,
        router: Router,
    ) -> None:
        self._host = host
        self._tier = tier
        self._store = store
        self._core = core
        self._pending = pending
        self._router = router
        self._maintenance = GroupMaintenance(
            core, health=self._health, live_jobs=_live_jobs, timing=TIMING
        )

    def begin(self) -> None:
        self._pending.after(TIMING.pass_s * self._host.world.rng.random(), self._wake)

    def _wake(self) -> None:
        now_s = self._host.world.now_s
        at_s = self._maintenance.wake_at_s()
        if at_s is not None and at_s <= now_s:
            self._feed(Tick())
        self._pending.after(POLL_S, self._wake)

    def _feed(self, event: MaintenanceEvent | Tick) -> None:
        now_s = self._host.world.now_s
        for effect in self._maintenance.handle(event, now_s=now_s):
            self._perform(effect)

    def _perform(self, effect: MaintenanceEffect) -> None:
        match effect:
            case LeadershipTransferRequested() | VoterChangeRequested():
                self._core.handle(effect, now_s=self._host.world.now_s)
            case RequestHistoryState(group=group, node=node):
                self._feed(HistoryStateReceived(group, node, is_complete=True))
            case _:
                self._host.note("STEP", effect)
                self._take_step(effect, lambda answer: self._answered(effect.group, answer))

    def _answered(self, group: int, answer: Any) -> None:
        is_done = answer[0] == "done" if isinstance(answer, tuple) else bool(answer)
        self._feed(StepEnded(group, is_done))

    def _take_step(self, step: Step, told: Callable[[Any], None]) -> None:
        match step:
            case CommitDecision(decision=decision):
                self._router.routed(Command(MANAGEMENT, "", encode_decision(decision)), told)
            case CommitRecord(target=target, record=record):
                self._router.routed(record_command(target, record), told)
            case HandOverHistory(group=group):
                self._hand_over_history(group, told)

    def _hand_over_history(self, group: int, told: Callable[[Any], None]) -> None:
        core = self._core
        heir = core.topology.groups.get(core.topology.heir_of(core.topology.groups[group].heir))
        rows = [row for row in self._store.history.values() if row[1] == group]
        voters = [] if heir is None else [self._router.address_of(n) for n in heir.settled]
        waiting = [address for address in voters if address != self._host.address]

        def next_one(answer: Any) -> None:
            if answer is not True:
                told(False)
            elif waiting:
                self._pending.ask(waiting.pop(), ("keep", rows), next_one, CALL_S)
            else:
                told(True)

        self._pending.keep(core.disk.history_ticket, lambda: next_one(True))

    def _health(self) -> TierHealth:
        world, down = self._host.world, self._tier.down_since_s
        dead: dict[int, float] = {}
        for number, node in self._core.topology.nodes.items():
            if node.name in down:
                dead[number] = (world.now_s - down[node.name]) * DEAD_FACTOR
        unfit = frozenset(n for n in self._core.topology.nodes if not self._is_fit(n))
        return TierHealth(dead_s=dead, unfit=unfit)

    def _is_fit(self, number: int) -> bool:
        address = self._router.address_of(number)
        return address not in self._tier.unfit and address not in self._tier.down_since_s


def _live_jobs(machine: Machine) -> int:
    assert isinstance(machine, JobMachine)
    return sum(1 for _ in machine.jobs())
