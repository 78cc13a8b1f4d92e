"""A fleet that has long found itself: every member knows every other, nothing is left to tell.

Joining a thousand simulated nodes takes longer than what is to be measured afterwards.
"""

from hyperscale.membership.core import Membership
from hyperscale.membership.formulas import push_pull_s
from hyperscale.membership.messages import ClaimedState, MemberUpdate
from hyperscale.membership.timers import TimerKind
from tests.simulation.fleet.program import FleetConfig, MemberProgram
from tests.simulation.kernel import Monitor, World


class Unobserved(Monitor):
    """Looks at nothing and lets changes go."""

    def after(self, host) -> None:  # type: ignore[no-untyped-def]  # the hot path of a benchmark
        program = host.program
        if program is not None and program.changes:
            program.changes = []


def settled_fleet(world: World, addresses: list[str], config: FleetConfig) -> None:
    """Starts a process on every address and lets each know all the others."""
    for address in addresses:
        world.add(address, lambda host: MemberProgram(host, config)).start()
    cores = [world.hosts[address].program.core for address in addresses]
    known = [
        MemberUpdate(
            node=core.node,
            incarnation=core.incarnation,
            claim=ClaimedState.ALIVE,
            role=core.station.role,
            address=core.station.address,
        )
        for core in cores
    ]
    for core in cores:
        _meet(core, known)
    for address in addresses:
        host = world.hosts[address]
        host.program.stop_discovery()
        host.settle()


def _meet(core: Membership, known: list[MemberUpdate]) -> None:
    station = core.station
    station.effects = []
    for news in known:
        if news.node != core.node:
            core.rumours.take(news)
            core.judge.answered(core.roster.peers[news.node])
    station.gossip.items.clear()
    station.gossip._bytes = 0
    station.deadlines.cancel(TimerKind.GOSSIP_ROUND, None)
    every_s = push_pull_s(station.config.push_pull_s, len(core.roster))
    station.set(TimerKind.SYNC_ROUND, None, every_s * station.rng.random())
    station.deadlines._rebuild()
    station.audit.entries.clear()
    station.effects = []
