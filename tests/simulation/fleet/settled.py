"""A fleet whose members all know each other and have no updates left to gossip.

Joining a thousand simulated nodes takes longer than the measurements afterwards.
"""

from hyperscale.membership.core import Membership
from hyperscale.membership.formulas import push_pull_s
from hyperscale.membership.messages import ClaimedState, MemberUpdate
from hyperscale.membership.timers import TimerKind
from tests.simulation.fleet.program import FleetConfig, MemberProgram
from tests.simulation.kernel import Monitor, World


class Unobserved(Monitor):
    """A monitor that drops every change."""

    def after(self, host) -> None:  # type: ignore[no-untyped-def]  # the hot path of a benchmark
        program = host.program
        if program is not None and program.changes:
            program.changes = []


def settled_fleet(world: World, addresses: list[str], config: FleetConfig) -> None:
    """Start a process on every address, and make each know all the others."""
    for address in addresses:
        world.add(address, lambda host: MemberProgram(host, config)).start()
    cores = [world.hosts[address].program.core for address in addresses]
    known = [
        MemberUpdate(
            node=core.local.node,
            incarnation=core.local.incarnation,
            claim=ClaimedState.ALIVE,
            role=core.local.role,
            address=core.local.address,
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
    context = core.context
    context.effects = []
    for news in known:
        if news.node != core.local.node:
            core.merger.merge(news)
            core.lifecycle.confirm(core.table.peers[news.node])
    context.gossip.clear()
    context.timers.cancel(TimerKind.GOSSIP_ROUND, None)
    every_s = push_pull_s(context.config.push_pull_s, len(core.table))
    context.set_timer(TimerKind.PUSH_PULL_ROUND, None, every_s * context.rng.random())
    context.effects = []
