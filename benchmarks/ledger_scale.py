"""The cost of a tier as it grows from 10 to 100 nodes: small groups beside one group of all.

Every node is the real core, the network and the disks are simulated without faults. Every node
brings the same load, so the totals over all nodes divided by the commits are what each node bears
for each commit it brings: messages sent, entries written to disks, calls passed on to a leader.
What the tier says while nobody commits anything is measured before and taken off.
"""

import time
from dataclasses import dataclass
from typing import Any

from benchmarks.lab import save
from hyperscale.ledger.core import LedgerLimits
from hyperscale.ledger.topology_policy import VOTERS
from tests.simulation.kernel import Monitor, World
from tests.simulation.ledger.client import encoded_submission
from tests.simulation.ledger.observed import ObservedCore, Observer
from tests.simulation.ledger.program import LedgerProgram, show
from tests.simulation.ledger.schedules import founded
from tests.simulation.ledger.tier import Tier

SIZES = (10, 25, 50, 100)
COMMITS_PER_NODE = 6
SPACING_S = 0.5
FLAT = 1.5
"""How much more a commit may cost with ten times the nodes."""


class Counting(Observer):
    """Counts the entries handed to disks."""

    def __init__(self) -> None:
        self.entries = 0

    def wrote(self, group: int, entries: Any) -> None:
        if group:
            self.entries += len(entries)


@dataclass
class Cost:
    nodes: int
    groups: int
    voters: int
    messages: float
    entries: float
    passed_on: float
    idle_per_node_s: float
    state_bytes: int
    seconds: float


def measure(nodes: int, groups: int, voters: int) -> Cost:
    began_s = time.monotonic()
    world = World(nodes, monitor=Monitor())
    world.show = show
    world.network.link.jitter_s = 0.0005
    addresses = [f"n{number:03d}" for number in range(nodes)]
    counting = Counting()
    tier = Tier(
        stores=founded(addresses, groups, seats=voters),
        limits=LedgerLimits(),
        core=ObservedCore,
        observer=counting,
        manages=False,
    )
    for address in addresses:
        world.add(address, lambda host: LedgerProgram(host, tier)).start()
    programs: list[LedgerProgram] = [world.hosts[address].program for address in addresses]
    world.run(6.0)
    _spread(world, programs, groups)
    idle_s = 3.0
    before = world.network.sent
    world.run(world.now_s + idle_s)
    idle_per_s = (world.network.sent - before) / idle_s
    committed: list[float] = []
    passed: list[float] = []
    for program in programs:
        _count_asks(program, passed)
    sent, entries, began_at_s = world.network.sent, counting.entries, world.now_s
    for round_ in range(COMMITS_PER_NODE):
        for at, program in enumerate(programs):
            when_s = world.now_s + SPACING_S * (round_ + (at * 0.618) % 1.0)
            world.at(when_s, _submitting(program, f"{at}.{round_}", committed))
    world.run(world.now_s + SPACING_S * COMMITS_PER_NODE + 2.0)
    wanted = nodes * COMMITS_PER_NODE
    if len(committed) != wanted:
        raise SystemExit(f"{len(committed)} of {wanted} commits, with {nodes} nodes")
    messages = world.network.sent - sent - idle_per_s * (world.now_s - began_at_s)
    core = programs[0].core
    assert core is not None
    return Cost(
        nodes=nodes,
        groups=groups,
        voters=min(voters, nodes),
        messages=messages / wanted,
        entries=(counting.entries - entries) / wanted,
        passed_on=len(passed) / wanted,
        idle_per_node_s=idle_per_s / nodes,
        state_bytes=len(core.topology.snapshot()),
        seconds=time.monotonic() - began_s,
    )


def _spread(world: World, programs: list[LedgerProgram], groups: int) -> None:
    """Spread the leaderships over the nodes, as the topology policy would."""
    for group in range(1, groups + 1):
        for program in programs:
            program.transfer(group, group)
    world.run(world.now_s + 2.0)


def _count_asks(program: LedgerProgram, passed: list[float]) -> None:
    ask = program.host.ask

    def counted(to: str, message: Any, token: Any, *, within_s: float = 5.0) -> None:
        passed.append(program.host.world.now_s)
        ask(to, message, token, within_s=within_s)

    program.host.ask = counted  # type: ignore[method-assign]  # a meter, not a stub


def _submitting(program: LedgerProgram, key: str, committed: list[float]) -> Any:
    def told(answer: tuple[Any, ...]) -> None:
        if answer[0] == "done":
            committed.append(program.host.world.now_s)

    return lambda: program.submit(key, encoded_submission(key), told)


def main() -> None:
    small = [measure(nodes, nodes, VOTERS) for nodes in SIZES]
    whole = [measure(nodes, 1, nodes) for nodes in SIZES]
    lines = [
        "# A tier as it grows",
        "",
        "Simulated without faults; every node brings the same load. Per commit, over all nodes:",
        "consensus messages, log entries written, calls passed on to a leader. Small groups: as",
        "many as nodes, 3 voters each. One group: all nodes vote. Idle: messages each node sends",
        "per second while nothing is committed. State: what group 0 keeps (slots included).",
        "",
        "| nodes | small groups: messages | entries | passed on | idle/node/s | state |"
        " one group: messages | entries | idle/node/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {a.nodes} | {a.messages:.1f} | {a.entries:.1f} | {a.passed_on:.2f} "
        f"| {a.idle_per_node_s:.1f} | {a.state_bytes / 1024:.1f} KiB "
        f"| {b.messages:.1f} | {b.entries:.1f} | {b.idle_per_node_s:.1f} |"
        for a, b in zip(small, whole, strict=True)
    ]
    first, last = small[0], small[-1]
    bytes_each = (last.state_bytes - first.state_bytes) / (last.nodes - first.nodes)
    lines += [
        "",
        f"From {first.nodes} to {last.nodes} nodes a commit costs "
        f"{last.messages / first.messages:.2f} x the messages and "
        f"{last.entries / first.entries:.2f} x the entries in small groups, "
        f"{whole[-1].messages / whole[0].messages:.1f} x and "
        f"{whole[-1].entries / whole[0].entries:.1f} x in one group of all. Group 0's state grows "
        f"by {bytes_each:.0f} bytes for each node and its group, and no job is in it.",
    ]
    data = {"small": [vars(cost) for cost in small], "whole": [vars(cost) for cost in whole]}
    save("ledger_scale", "\n".join(lines), data)
    if last.messages > FLAT * first.messages or last.entries > FLAT * first.entries:
        raise SystemExit("a commit costs more in a larger tier of small groups")
    if whole[-1].messages < 3 * whole[0].messages:
        raise SystemExit("one group of all nodes should cost more: the set-up shows nothing")
