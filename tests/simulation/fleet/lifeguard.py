"""The set-up of the Lifeguard paper (arXiv 1707.00788, §V): 128 members, some of them slow.

A slow member's sends and receives hang for a while, again and again, while its timers run: it
cannot know that it is the slow one. *Interval* experiments count false positives: healthy
members declared failed (FP), and those of them seen at healthy members (FP-). *Threshold*
experiments block members once, for long, and measure when the healthy ones declare them failed,
first and last.

Four detectors: SWIM and Lifeguard with the paper's numbers (hearsay of a failure is believed, a
suspicion that runs out is a verdict), and our core with Lifeguard's parts switched off and on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from hyperscale.membership.core import Membership
from hyperscale.membership.events import MemberDied
from hyperscale.membership.local_node import LocalIdentity
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import ClaimedState
from hyperscale.membership.settings import MembershipConfig
from hyperscale.membership.timers import TimerKind
from hyperscale.wire.roles import Role
from tests.simulation.fleet.monitor import views_agree
from tests.simulation.fleet.program import FleetConfig
from tests.simulation.fleet.settled import settled_fleet
from tests.simulation.kernel import Host, Monitor, World

MEMBERS = 128
PAPER_SUSPICION_S = 10.5  # alpha 5 * log10(128) * 1 s
PAPER_SUSPICION_MAX_S = 63.0  # beta 6
WARM_UP_S = 5.0
INTERVAL_S = 75.0

OURS = MembershipConfig()
LIFEGUARD_OFF: dict[str, Any] = {"health_score_max": 0, "nacks": False, "buddy_system": False}


def hearsay_believed(
    identity: LocalIdentity, config: MembershipConfig, **kwargs: Any
) -> Membership:
    """As the papers have it: no last look, no watching of successors, hearsay kills."""
    core = Membership(identity, config, **kwargs)
    lifecycle = core.lifecycle

    def condemned(peer: MemberRecord, by: str) -> None:
        lifecycle.mark_dead(peer, ClaimedState.SILENT, is_from_gossip=True)

    def run_out(node: str) -> None:
        lifecycle.mark_dead(core.table.peers[node], ClaimedState.SILENT, is_from_gossip=False)

    lifecycle.suspect_strongly = condemned  # type: ignore[method-assign]
    core.timer_handlers[TimerKind.SUSPICION] = run_out
    return core


@dataclass(frozen=True)
class Detector:
    name: str
    config: MembershipConfig
    core: Callable[..., Membership] = Membership


def _config(**changes: Any) -> MembershipConfig:
    return msgspec.structs.replace(OURS, **changes)


_LOOK_S = OURS.final_probe_s
DETECTORS = (
    Detector(
        "SWIM, as in the paper",
        _config(
            ring_successors=0,
            suspicion_min_s=PAPER_SUSPICION_S,
            suspicion_max_s=PAPER_SUSPICION_S + _LOOK_S,
            **LIFEGUARD_OFF,
        ),
        hearsay_believed,
    ),
    Detector(
        "Lifeguard, as in the paper",
        _config(
            ring_successors=0,
            suspicion_min_s=PAPER_SUSPICION_S,
            suspicion_max_s=PAPER_SUSPICION_MAX_S + _LOOK_S,
        ),
        hearsay_believed,
    ),
    Detector(
        "ours, Lifeguard off",
        _config(suspicion_max_s=OURS.suspicion_min_s + _LOOK_S, **LIFEGUARD_OFF),
    ),
    Detector("ours", OURS),
)


@dataclass
class Counted(Monitor):
    """Deaths declared, by whom and of whom."""

    slow: set[str] = field(default_factory=set)
    false_positives: int = 0
    at_healthy: int = 0
    declared_s: dict[str, list[float]] = field(default_factory=dict)
    is_counting: bool = False

    def after(self, host: Host) -> None:
        program = host.program
        if program is None or not program.changes:
            return
        changes, program.changes = program.changes, []
        for change in changes:
            if type(change) is MemberDied and self.is_counting:
                self._died(host, change)

    def _died(self, host: Host, died: MemberDied) -> None:
        target = died.member.address
        is_healthy = host.address not in self.slow
        if target not in self.slow:
            self.false_positives += 1
            self.at_healthy += is_healthy
        elif is_healthy:
            self.declared_s.setdefault(target, []).append(host.world.now_s)


def _fleet(detector: Detector, seed: int) -> tuple[World, Counted]:
    """All members know each other, as long as it takes for their rounds to fall apart."""
    monitor = Counted()
    world = World(seed, monitor=monitor)
    world.network.link.delay_s, world.network.link.jitter_s = 0.0005, 0.0005
    addresses = [f"n{n:03d}" for n in range(MEMBERS)]
    fleet = FleetConfig(
        membership=detector.config,
        core=detector.core,
        roles=dict.fromkeys(addresses, Role.MANAGER),
        seeds=addresses[:3],
        rejoin=False,
    )
    settled_fleet(world, addresses, fleet)
    world.run(WARM_UP_S)
    if views_agree(world):
        raise AssertionError(f"the fleet has not settled: {views_agree(world)}")
    monitor.is_counting = True
    return world, monitor


def interval(
    detector: Detector, *, slow: int, blocked_s: float, free_s: float, seed: int
) -> tuple[int, int]:
    """FP and FP- over a while in which some members hang again and again."""
    world, monitor = _fleet(detector, seed)
    rng = Random(seed)
    chosen = rng.sample(list(world.hosts.values()), slow)
    monitor.slow = {host.address for host in chosen}
    ends_s = world.now_s + INTERVAL_S
    for host in chosen:
        _hang(world, host, blocked_s, free_s, ends_s)
    world.run(ends_s)
    return monitor.false_positives, monitor.at_healthy


def _hang(world: World, host: Host, blocked_s: float, free_s: float, ends_s: float) -> None:
    def block() -> None:
        if world.now_s < ends_s:
            host.block()
            world.after(blocked_s, unblock)

    def unblock() -> None:
        host.unblock()
        world.after(free_s, block)

    block()


def threshold(detector: Detector, *, slow: int, seed: int) -> list[tuple[float, float]]:
    """First and last declaration at healthy members, of each member blocked for good."""
    world, monitor = _fleet(detector, seed)
    chosen = Random(seed).sample(list(world.hosts.values()), slow)
    monitor.slow = {host.address for host in chosen}
    began_s = world.now_s
    for host in chosen:
        host.block()
    healthy = MEMBERS - slow

    def is_known() -> bool:
        times = monitor.declared_s.values()
        return len(times) == slow and all(len(each) == healthy for each in times)

    world.run_until(is_known, within_s=90.0)
    return [
        (min(times) - began_s, max(times) - began_s)
        for times in monitor.declared_s.values()
        if len(times) == healthy
    ]
