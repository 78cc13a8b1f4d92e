"""The steps of `stewardship` on a simulated node: whoever leads has its groups kept in order."""

from collections.abc import Callable
from typing import Any

from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.maintenance import Bequeath, Commit, Decide, Request, Steps, Steward
from hyperscale.ledger.placement import Sight
from hyperscale.ledger.topology import encode_decision
from tests.simulation.kernel import Host
from tests.simulation.ledger.errands import Errands
from tests.simulation.ledger.observed import ObservedCore
from tests.simulation.ledger.routing import CALL_S, Command, Router, record_command
from tests.simulation.ledger.store import CrashableStore
from tests.simulation.ledger.tier import Tier

PASS_S = 0.4
DEAD_FACTOR = 200.0
"""A second without a process counts as so many: replacing a voter takes minutes."""


class Duties:
    def __init__(
        self,
        host: Host,
        tier: Tier,
        store: CrashableStore,
        core: ObservedCore,
        errands: Errands,
        router: Router,
    ) -> None:
        self._host = host
        self._tier = tier
        self._store = store
        self._core = core
        self._errands = errands
        self._router = router
        self._busy: dict[int, Steps] = {}
        self._steward = Steward(core, sight=self._sight, is_fit=self._is_fit, live_jobs=_live_jobs)

    def begin(self) -> None:
        self._errands.after(PASS_S * self._host.world.rng.random(), self._pass)

    def _pass(self) -> None:
        for group, steps in self._steward.duties().items():
            if group not in self._busy:
                self._busy[group] = steps
                self._advance(group, steps, None)
        self._errands.after(PASS_S, self._pass)

    def _advance(self, group: int, steps: Steps, answer: Any) -> None:
        try:
            request = steps.send(answer)
        except StopIteration:
            self._busy.pop(group, None)
            return
        self._host.note("STEP", request)
        self._carry_out(request, lambda told: self._told(group, steps, told))

    def _told(self, group: int, steps: Steps, answer: Any) -> None:
        if isinstance(answer, tuple) and answer[0] != "done":
            steps.close()  # whoever leads then does it again
            self._busy.pop(group, None)
        else:
            self._advance(group, steps, answer)

    def _carry_out(self, request: Request, told: Callable[[Any], None]) -> None:
        match request:
            case Decide(decision=decision):
                self._router.routed(Command(MANAGEMENT, "", encode_decision(decision)), told)
            case Commit(group=group, record=record):
                self._router.routed(record_command(group, record), told)
            case Bequeath(group=group):
                self._bequeath(group, told)

    def _bequeath(self, group: int, told: Callable[[Any], None]) -> None:
        core = self._core
        heir = core.topology.groups.get(core.topology.heir_of(core.topology.groups[group].heir))
        rows = [row for row in self._store.history.values() if row[1] == group]
        voters = [] if heir is None else [self._router.address_of(n) for n in heir.settled]
        waiting = [address for address in voters if address != self._host.address]

        def next_one(answer: Any) -> None:
            if answer is not True:
                told(False)
            elif waiting:
                self._errands.ask(waiting.pop(), ("keep", rows), next_one, CALL_S)
            else:
                told(True)

        self._errands.keep(core.history_ticket, lambda: next_one(True))

    def _sight(self) -> Sight:
        world, down = self._host.world, self._tier.down_since_s
        dead: dict[int, float] = {}
        for number, node in self._core.topology.nodes.items():
            if node.name in down:
                dead[number] = (world.now_s - down[node.name]) * DEAD_FACTOR
        unfit = frozenset(n for n in self._core.topology.nodes if not self._is_fit(n))
        leading = {group: self._core.leader_of(group) for group in self._core.topology.groups}
        return Sight(dead_s=dead, unfit=unfit, leading=leading)

    def _is_fit(self, number: int) -> bool:
        address = self._router.address_of(number)
        return address not in self._tier.unfit and address not in self._tier.down_since_s


def _live_jobs(machine: Machine) -> int:
    assert isinstance(machine, JobMachine)
    return sum(1 for _ in machine.jobs())
