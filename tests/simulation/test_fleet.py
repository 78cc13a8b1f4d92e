"""Membership under faults: random schedules, kept scenarios, and mutants that must be caught."""

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from hyperscale.membership.core import Membership
from hyperscale.membership.events import MetadataChanged, SendDatagram
from hyperscale.membership.messages import METADATA_BYTES_MAX
from hyperscale.wire.registry import REGISTRY, SizeClass
from hyperscale.wire.roles import Role
from tests.simulation.campaign import campaign, is_noticed, seconds_per_simulation, seeds_of_commit
from tests.simulation.fleet.monitor import FleetMonitor, views_agree
from tests.simulation.fleet.mutants import MUTANTS, Mutant
from tests.simulation.fleet.program import FleetConfig, MemberProgram
from tests.simulation.fleet.schedules import (
    CONVERGED_WITHIN_S,
    PROFILES,
    SCENARIOS,
    Plan,
    draw,
    load_scenario,
    run,
)
from tests.simulation.fleet.settled import Unobserved, settled_fleet
from tests.simulation.fleet.suite import FleetSuite
from tests.simulation.kernel import World

MUTANT_SEEDS = 40


@pytest.mark.timeout(300)
def test_random_schedules_violate_no_invariant_and_no_bound() -> None:
    tally = campaign(FleetSuite(), seeds_of_commit(), seconds=seconds_per_simulation())
    tally.raise_if_failed()
    assert tally.runs >= 1


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_schedules_pass(path: Path) -> None:
    run(load_scenario(path))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant: Mutant) -> None:
    suite = FleetSuite([mutant.profile], core=mutant.core, drains=mutant.drains)
    assert is_noticed(suite, (mutant.caught_by,), schedules=MUTANT_SEEDS)


@pytest.mark.parametrize("name", sorted({mutant.profile for mutant in MUTANTS}))
def test_the_schedules_that_catch_mutants_let_the_real_core_pass(name: str) -> None:
    suite = FleetSuite([name])
    campaign(suite, range(8)).raise_if_failed()


def test_a_schedule_is_drawn_from_its_seed_alone() -> None:
    for profile in PROFILES.values():
        assert draw(profile, 7) == draw(profile, 7)
        assert draw(profile, 7) != draw(profile, 8)


def test_every_size_from_three_to_fifty_is_drawn() -> None:
    sizes = {len(FleetSuite().draw(seed).roles) for seed in islice(range(5_000), 5_000)}
    assert min(sizes) == 3
    assert max(sizes) == 50


def test_a_monitor_that_is_not_strict_only_counts() -> None:
    monitor = FleetMonitor(strict=False, bounds=False)
    outcome = run(draw(PROFILES["deaths"], 3), monitor=monitor)
    assert outcome.findings is monitor.findings


def test_no_datagram_outgrows_its_room_under_any_name_and_load() -> None:
    sizes: list[int] = []

    def encoding(*args: Any, **kwargs: Any) -> Membership:
        core = Membership(*args, **kwargs)
        handle = core.handle

        def encoded(event: Any, *, now_s: float) -> list[Any]:
            effects = handle(event, now_s=now_s)
            sizes.extend(
                len(REGISTRY.encode(e.datagram)) for e in effects if isinstance(e, SendDatagram)
            )
            return effects

        core.handle = encoded  # type: ignore[method-assign]  # a spy, not a stub
        core.handle(MetadataChanged(b"m" * METADATA_BYTES_MAX), now_s=kwargs["now_s"])
        return core

    plan = draw(PROFILES["everything"], 3)
    renamed = {host: f"{host}-{'x' * 58}" for host in plan.roles}
    text = json.dumps(asdict(plan))
    for host, long in renamed.items():
        text = text.replace(f'"{host}"', f'"{long}"')
    run(Plan(**json.loads(text)), core=encoding)
    assert max(sizes) > SizeClass.DATAGRAM // 2


def test_a_node_of_another_cluster_is_refused_and_joins_nobody() -> None:
    world = World(1)
    hosts = ["n0", "n1", "n2", "stranger"]
    config = FleetConfig(
        roles=dict.fromkeys(hosts, Role.MANAGER),
        seeds=["n0", "n1"],
        isolation={"stranger": ("sim", "production")},
    )
    for address in hosts:
        world.add(address, lambda host: MemberProgram(host, config)).start()
    world.run(60.0)
    known = {a: len(world.hosts[a].program.core.table.living) for a in hosts}
    assert known == {"n0": 2, "n1": 2, "n2": 2, "stranger": 0}


@pytest.mark.parametrize("seed", range(6))
def test_members_that_start_in_any_order_suspect_nobody(seed: int) -> None:
    monitor = FleetMonitor()
    world = World(seed, monitor=monitor)
    monitor.world = world
    hosts = ["g0", "g1", "g2"]
    config = FleetConfig(roles=dict.fromkeys(hosts, Role.GATE), seeds=hosts)
    for address in hosts:
        host = world.add(address, lambda host: MemberProgram(host, config))
        world.at(3.0 * world.rng.random(), host.start)
    world.run(3.0)
    took_s = world.run_until(lambda: not views_agree(world), within_s=30.0)
    assert took_s is not None
    assert took_s < 5.0  # the longest wait for a seed that was not there yet, and a round
    world.run(30.0)
    assert monitor.findings.suspicions == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_partition_of_a_minute_heals_without_discovery(seed: int) -> None:
    monitor = FleetMonitor()
    world = World(seed, monitor=monitor)
    monitor.world = world
    hosts = [f"n{n}" for n in range(8)]
    config = FleetConfig(roles=dict.fromkeys(hosts, Role.MANAGER), seeds=hosts[:2], rejoin=False)
    for address in hosts:
        world.add(address, lambda host: MemberProgram(host, config)).start()
    world.run(20.0)
    halves = hosts[:4], hosts[4:]
    for ways in (halves, halves[::-1]):
        world.network.cut(*ways)
    world.run(80.0)
    apart = {a: len(world.hosts[a].program.core.table.living) for a in hosts}
    assert apart == dict.fromkeys(hosts, 3)
    world.network.heal()
    took_s = world.run_until(lambda: not views_agree(world), within_s=60.0)
    assert took_s is not None
    assert took_s <= CONVERGED_WITHIN_S


def test_settled_members_send_few_datagrams() -> None:
    world = World(1, monitor=Unobserved())
    addresses = [f"n{n:03d}" for n in range(150)]
    roles = {a: Role.MANAGER if n < 3 else Role.WORKER for n, a in enumerate(addresses)}
    settled_fleet(world, addresses, FleetConfig(roles=roles, seeds=addresses[:3], rejoin=False))
    world.run(10.0)
    per_second = world.network.sent / 10.0 / len(addresses)
    assert 5.0 < per_second < 7.0
    assert not any(h.program.core.lifecycle.suspects for h in world.hosts.values())
