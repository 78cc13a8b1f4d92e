"""Probes of datacenters: when one is suspected, unreachable and back."""

from collections.abc import Callable
from random import Random

import pytest

from hyperscale.gates.datacenters.health import DatacenterHealth
from hyperscale.gates.datacenters.monitor import (
    DatacenterChanged,
    DatacenterForgotten,
    DatacenterMonitor,
    DatacenterRegistered,
    MonitorEffect,
    ProbeAcked,
    Reachability,
    SendProbe,
)
from hyperscale.sansio.core import Tick
from tests.gates.test_datacenter_health import figures

Answers = Callable[[SendProbe], float | None]
"""Returns the round trip of a probe; None: it is lost."""


class ProbedDatacenters:
    """A monitor on virtual time, and the datacenters that answer it."""

    def __init__(self, *datacenters: str, is_silent: bool = False) -> None:
        self.monitor = DatacenterMonitor()
        self.now_s = 0.0
        self.answers: Answers = lambda probe: None if is_silent else 0.05
        self.term = 1
        self.changes: list[tuple[float, str, Reachability, DatacenterHealth]] = []
        self.probes: list[SendProbe] = []
        self._acks: list[tuple[float, SendProbe]] = []
        for name in datacenters:
            managers = tuple(f"{name}-m{n}" for n in range(3))
            self._do(self.monitor.handle(DatacenterRegistered(name, managers), now_s=0.0))

    def run(self, for_s: float) -> None:
        until_s = self.now_s + for_s
        while True:
            wake_s = self.monitor.wake_at_s()
            times = [at_s for at_s, _ in self._acks] + ([] if wake_s is None else [wake_s])
            if not times or min(times) > until_s:
                break
            self.now_s = max(self.now_s, *[min(times)])
            due = [ack for ack in self._acks if ack[0] <= self.now_s]
            self._acks = [ack for ack in self._acks if ack[0] > self.now_s]
            for _, probe in due:
                self.ack(probe)
            self._do(self.monitor.handle(Tick(), now_s=self.now_s))
        self.now_s = until_s

    def ack(self, probe: SendProbe, *, is_leader: bool = False, term: int | None = None) -> None:
        acked = ProbeAcked(
            probe.datacenter,
            probe.manager,
            probe.nonce,
            figures(),
            term=self.term if term is None else term,
            is_leader=is_leader,
        )
        self._do(self.monitor.handle(acked, now_s=self.now_s))

    def reachability(self, name: str) -> Reachability:
        return self.monitor.views(now_s=self.now_s)[name].reachability

    def health(self, name: str) -> DatacenterHealth:
        return self.monitor.views(now_s=self.now_s)[name].health

    def when(self, name: str, reachability: Reachability) -> float:
        return next(c[0] for c in self.changes if c[1] == name and c[2] is reachability)

    def _do(self, effects: list[MonitorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, DatacenterChanged):
                self.changes.append(
                    (self.now_s, effect.datacenter, effect.reachability, effect.health)
                )
                continue
            self.probes.append(effect)
            rtt_s = self.answers(effect)
            if rtt_s is not None:
                self._acks.append((self.now_s + rtt_s, effect))


def test_a_datacenter_is_unreachable_until_its_first_ack() -> None:
    world = ProbedDatacenters("east")
    assert world.reachability("east") is Reachability.UNREACHABLE
    world.run(0.1)
    assert world.reachability("east") is Reachability.REACHABLE
    assert world.health("east") is DatacenterHealth.HEALTHY


def test_two_or_three_managers_are_probed_every_two_seconds() -> None:
    world = ProbedDatacenters("east")
    world.run(10.1)
    assert len(world.probes) == 6 * 3
    assert {probe.manager for probe in world.probes} == {"east-m0", "east-m1", "east-m2"}


def test_silence_is_suspected_after_13_and_unreachable_after_43_seconds() -> None:
    world = ProbedDatacenters("east", "west", "south")
    world.run(10.5)
    silent_s = world.now_s
    world.answers = lambda probe: None if probe.datacenter == "east" else 0.05
    world.run(60.0)
    suspected_s = world.when("east", Reachability.SUSPECTED) - silent_s
    assert 11.0 <= suspected_s <= 15.0
    unreachable_s = world.changes[-1][0] - silent_s
    assert world.changes[-1][1:3] == ("east", Reachability.UNREACHABLE)
    assert 41.0 <= unreachable_s <= 45.0
    assert world.reachability("west") is Reachability.REACHABLE


def test_any_ack_makes_a_datacenter_reachable_again() -> None:
    world = ProbedDatacenters("east", "west", "south")
    world.run(5.0)
    world.answers = lambda probe: None if probe.datacenter == "east" else 0.05
    world.run(60.0)
    assert world.reachability("east") is Reachability.UNREACHABLE
    world.answers = lambda probe: 0.05 if probe.manager != "east-m0" else None
    world.run(2.1)
    assert world.reachability("east") is Reachability.REACHABLE


def test_one_manager_that_answers_is_enough_while_the_others_elect_a_leader() -> None:
    world = ProbedDatacenters("east")
    world.run(1.0)
    world.changes.clear()

    def storm(probe: SendProbe) -> float | None:
        return 0.05 if probe.manager == f"east-m{probe.nonce % 3}" else None

    world.answers = storm
    world.run(120.0)
    assert world.changes == []


def test_300_ms_and_5_percent_loss_for_ten_minutes_suspect_nobody() -> None:
    world = ProbedDatacenters("east", "west")
    world.run(1.0)
    world.changes.clear()
    rng = Random(5)
    world.answers = lambda probe: None if rng.random() < 0.0975 else 0.3 * (0.9 + rng.random())
    world.run(600.0)
    assert all(change[2] is Reachability.REACHABLE for change in world.changes)
    assert world.reachability("east") is Reachability.REACHABLE


def test_figures_that_are_old_make_a_datacenter_degraded_within_ten_seconds() -> None:
    world = ProbedDatacenters("east", "west")
    world.run(10.0)
    world.answers = lambda probe: None if probe.datacenter == "east" else 0.05
    world.run(10.0)
    assert world.health("east") is DatacenterHealth.DEGRADED
    assert world.health("west") is DatacenterHealth.HEALTHY


def test_many_silent_datacenters_are_the_network_and_unreachable_waits_but_not_for_ever() -> None:
    world = ProbedDatacenters("east", "west", "south")
    world.run(10.5)
    silent_s = world.now_s
    world.answers = lambda probe: None
    world.run(60.0)
    assert {world.reachability(n) for n in ("east", "west", "south")} == {Reachability.SUSPECTED}
    world.run(20.0)
    assert {world.reachability(n) for n in ("east", "west", "south")} == {Reachability.UNREACHABLE}
    assert world.changes[-1][0] - silent_s <= 75.0


def test_an_ack_that_no_probe_asked_for_is_ignored() -> None:
    world = ProbedDatacenters("east", is_silent=True)
    world.run(1.0)
    world.ack(SendProbe("east", "east-m0", 999))
    assert world.reachability("east") is Reachability.UNREACHABLE


def test_a_late_ack_shows_that_the_datacenter_is_there_but_is_no_measurement() -> None:
    world = ProbedDatacenters("east", is_silent=True)
    world.run(9.0)
    world.ack(world.probes[0])
    assert world.reachability("east") is Reachability.REACHABLE
    assert world.monitor.views(now_s=world.now_s)["east"].rtt_s is None


def test_figures_of_an_old_leader_are_not_believed() -> None:
    world = ProbedDatacenters("east")
    world.run(1.0)
    world.ack(world.probes[0], is_leader=True, term=7)
    before = world.monitor.views(now_s=world.now_s)["east"]
    world.run(0.5)
    world.ack(world.probes[1], is_leader=True, term=6)
    assert world.monitor.views(now_s=world.now_s)["east"].age_s == pytest.approx(before.age_s + 0.5)


def test_a_forgotten_datacenter_is_not_probed() -> None:
    world = ProbedDatacenters("east")
    world.run(1.0)
    world.monitor.handle(DatacenterForgotten("east"), now_s=world.now_s)
    world.probes.clear()
    world.run(10.0)
    assert not world.probes
    assert not world.monitor.views(now_s=world.now_s)
