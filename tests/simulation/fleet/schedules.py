"""Random schedules for a fleet: profiles of what may go wrong, and the run of one seed.

A run has two phases. First nodes start, join, and faults happen while the invariants are
checked after every event. Then everything heals, whoever is down may be started again, and all
views must agree within a bound.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from hyperscale.membership.core import Membership
from hyperscale.membership.settings import MembershipConfig
from hyperscale.wire.roles import Role
from tests.simulation.faults import Step, play
from tests.simulation.fleet.monitor import Findings, FleetMonitor, views_agree
from tests.simulation.fleet.program import FleetConfig, MemberProgram, show
from tests.simulation.kernel import World
from tests.simulation.network import Link
from tests.simulation.trace import Trace

JOIN_LOSS_MAX = 0.05
CONVERGED_WITHIN_S = 15.0
_LASTS_S = 5.0
_NEXT_TRY_S = 15.0 * 1.25
"""The longest wait of discovery between two tries of a seed."""
AWAKE_MIN_S = 5.0
"""Between two stalls of a node: one that never wakes for longer is not stalled, it is down."""


@dataclass(frozen=True)
class Profile:
    """What may happen in a schedule. Rates are expected events per run."""

    name: str
    nodes: tuple[int, int] = (3, 50)
    faults_s: float = 30.0
    loss_min: float = 0.0
    loss_max: float = 0.2
    duplicate_max: float = 0.05
    delay_max_s: float = 0.02
    spike_max: float = 0.02
    crashes: float = 0.0
    power_losses: float = 0.0
    mass_share: float = 0.0
    """Chance that a crash or power loss takes up to 40 % of the fleet at once."""
    restarts: float = 0.5
    """Chance that what went down comes back within the faults phase."""
    wipe: float = 0.2
    stalls: float = 0.0
    stall_max_s: float = 5.0
    cuts: float = 0.0
    one_way: float = 0.4
    waves: int = 0
    """So many times, a few seconds apart, a quarter of the fleet loses power at once."""
    splits: int = 0
    """Cuts in two halves that last until the end."""
    leaves: float = 0.0
    skews: float = 0.0
    slows: float = 0.0
    rejoin: float = 0.5
    """Chance that discovery goes on contacting seeds after the join."""


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("deaths", crashes=2.0, power_losses=1.5, mass_share=0.15, leaves=0.5),
        Profile("stalls", stalls=8.0, crashes=0.5, power_losses=0.5, slows=1.0),
        Profile("cuts", cuts=3.0, crashes=0.5, stalls=1.0),
        Profile(
            "everything",
            crashes=1.5,
            power_losses=1.0,
            mass_share=0.1,
            stalls=4.0,
            cuts=1.5,
            leaves=0.5,
            skews=0.5,
            slows=0.5,
            wipe=0.4,
        ),
        Profile("blackout", nodes=(8, 30), waves=2, loss_max=0.02),
        Profile("split", splits=1, rejoin=0.0),
        Profile("naps", nodes=(3, 12), stalls=60.0, loss_min=0.15),
    )
}


@dataclass
class Plan:
    """One schedule, complete: what a scenario file holds."""

    profile: str
    seed: int
    roles: dict[str, str]
    seeds: list[str]
    rejoin: bool
    link: dict[str, float]
    steps: list[Step]
    faults_until_s: float
    restart_after: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    seed: int
    nodes: int
    events: int
    virtual_s: float
    joined_s: float
    converged_s: float
    findings: Findings
    digest: str = ""


def draw(profile: Profile, seed: int) -> Plan:
    """The schedule of a seed."""
    rng = Random(f"{profile.name}/{seed}")
    low, high = profile.nodes
    # Small fleets are where k and the relays run out, large ones where gossip works hard; most
    # runs are small because they cost little.
    count = round(low * (high / low) ** (rng.random() ** 2))
    hosts = [f"n{n:02d}" for n in range(count)]
    managers = min(count, rng.choice((1, 2, 3, 3, 5)))
    roles = {
        host: str(Role.MANAGER if at < managers else Role.WORKER) for at, host in enumerate(hosts)
    }
    if rng.random() < 0.2:
        roles = dict.fromkeys(hosts, str(Role.MANAGER if rng.random() < 0.5 else Role.GATE))
        managers = count
    seeds = hosts[: rng.randint(1, managers)]
    link = {
        "loss": max(profile.loss_min, rng.choice(_LOSSES) * profile.loss_max),
        "duplicate": profile.duplicate_max * rng.random(),
        "delay_s": 0.0002 + profile.delay_max_s * rng.random() ** 3,
        "jitter_s": 0.0002 + profile.delay_max_s * rng.random() ** 2,
        "spike": profile.spike_max * rng.random(),
        "spike_s": 0.1,
    }
    steps = [{"at_s": round(rng.random() * 3.0, 3), "do": "start", "host": host} for host in hosts]
    rejoin = rng.random() < profile.rejoin
    # Without discovery nobody finds a seed that starts anew: then seeds stay up.
    mortals = hosts if rejoin or len(seeds) == count else hosts[len(seeds) :]
    drawn = _Draw(rng, profile, hosts, mortals)
    until_s = _FAULTS_FROM_S + profile.faults_s
    steps += [step for step in drawn.steps() if step["at_s"] < until_s]
    return Plan(
        profile=profile.name,
        seed=seed,
        roles=roles,
        seeds=seeds,
        rejoin=rejoin or len(seeds) == count,
        link=link,
        steps=sorted(steps, key=lambda step: step["at_s"]),
        faults_until_s=until_s,
        restart_after=[host for host in hosts if host in seeds or rng.random() < 0.7],
    )


_FAULTS_FROM_S = 15.0
_LOSSES = (0.0, 0.05, 0.25, 0.5, 1.0)


class _Draw:
    """Draws the faults of one schedule; keeps track of who is busy until when."""

    def __init__(self, rng: Random, profile: Profile, hosts: list[str], mortals: list[str]) -> None:
        self.rng = rng
        self.profile = profile
        self.hosts = hosts
        self.mortals = mortals
        self.drawn: list[Step] = []

    def steps(self) -> list[Step]:
        profile = self.profile
        self._down("crash", profile.crashes)
        self._down("power", profile.power_losses)
        for _ in range(self._count(profile.stalls)):
            self._stall()
        for _ in range(self._count(profile.cuts)):
            self._cut()
        self._waves()
        for _ in range(profile.splits):
            self._split()
        for _ in range(self._count(profile.leaves)):
            host = self.rng.choice(self.mortals)
            self.drawn.append({"at_s": self._time(), "do": "tell", "host": host, "method": "leave"})
        for _ in range(self._count(profile.skews)):
            skew = {"at_s": self._time(), "do": "skew", "host": self._host()}
            self.drawn.append({**skew, "ms": self.rng.choice((-3_600_000, -20_000, 60_000))})
        for _ in range(self._count(profile.slows)):
            slow = {"at_s": self._time(), "do": "slow", "host": self._host(), "for_s": 10.0}
            self.drawn.append({**slow, "delay_s": round(0.15 * self.rng.random(), 3)})
        return self.drawn

    def _count(self, expected: float) -> int:
        """A number of events: now none, now twice as many."""
        return round(expected * 2 * self.rng.random())

    def _time(self) -> float:
        return round(_FAULTS_FROM_S + self.rng.random() * self.profile.faults_s, 3)

    def _host(self) -> str:
        return self.rng.choice(self.hosts)

    def _down(self, how: str, expected: float) -> None:
        for _ in range(self._count(expected)):
            at_s = self._time()
            count = 1
            if self.rng.random() < self.profile.mass_share:
                count = max(1, int(len(self.mortals) * 0.4 * self.rng.random()))
            for host in self.rng.sample(self.mortals, count):
                wipe = self.rng.random() < self.profile.wipe
                self.drawn.append({"at_s": at_s, "do": how, "host": host, "wipe": wipe})
                if self.rng.random() < self.profile.restarts:
                    back_s = round(at_s + self.rng.choice((0.05, 0.5, 2.0, 8.0, 20.0)), 3)
                    self.drawn.append({"at_s": back_s, "do": "start", "host": host})

    def _waves(self) -> None:
        at_s = _FAULTS_FROM_S + 1.0
        victims = self.rng.sample(self.mortals, len(self.mortals))
        size = max(1, len(self.hosts) // 4)
        for wave in range(self.profile.waves):
            for host in victims[wave * size : (wave + 1) * size]:
                self.drawn.append({"at_s": round(at_s, 3), "do": "power", "host": host})
            at_s += 3.0 + 3.0 * self.rng.random()

    def _split(self) -> None:
        half = sorted(self.rng.sample(self.hosts, len(self.hosts) // 2))
        rest = [host for host in self.hosts if host not in half]
        cut = {"at_s": _FAULTS_FROM_S + 1.0, "do": "cut", "from": half, "to": rest}
        self.drawn.append({**cut, "for_s": self.profile.faults_s})

    def _stall(self) -> None:
        host, at_s = self._host(), self._time()
        lasts_s = round(self.profile.stall_max_s * self.rng.choice((0.2, 0.5, 0.9, 1.0)), 3)
        others = [s for s in self.drawn if s["do"] == "pause" and s["host"] == host]
        for other in others:
            ends_s = other["at_s"] + other["for_s"]
            if at_s < ends_s + AWAKE_MIN_S and other["at_s"] < at_s + lasts_s + AWAKE_MIN_S:
                return
        self.drawn.append({"at_s": at_s, "do": "pause", "host": host, "for_s": lasts_s})

    def _cut(self) -> None:
        rng = self.rng
        size = rng.choice((1, 1, max(1, len(self.hosts) // 2), rng.randint(1, len(self.hosts) - 1)))
        side = sorted(rng.sample(self.hosts, size))
        rest = [host for host in self.hosts if host not in side]
        if rng.random() < 0.25:
            rest = sorted(rng.sample(rest, rng.randint(1, len(rest))))
        step: Step = {"at_s": self._time(), "do": "cut", "from": side, "to": rest}
        step["both"] = rng.random() >= self.profile.one_way
        step["for_s"] = rng.choice((1.0, 4.0, 10.0, 20.0, 30.0))
        self.drawn.append(step)


def run(
    plan: Plan,
    *,
    core: Any = Membership,
    drains: bool = True,
    config: MembershipConfig | None = None,
    trace: Trace | None = None,
    monitor: FleetMonitor | None = None,
) -> Outcome:
    """Plays a schedule; raises `Violation` where an invariant or a bound does not hold."""
    monitor = monitor or FleetMonitor()
    world = World(plan.seed, monitor=monitor, trace=trace)
    monitor.world, world.show = world, show
    world.network.link = Link(**plan.link)
    # Joining takes a while under heavy loss, which is not what the bounds are about.
    world.network.link.loss = min(JOIN_LOSS_MAX, plan.link["loss"])
    lossy: Step = {"at_s": _FAULTS_FROM_S - 3.0, "do": "link", "loss": plan.link["loss"]}
    play(world, [lossy])
    fleet = FleetConfig(
        membership=config or MembershipConfig(),
        core=core,
        roles={host: Role(role) for host, role in plan.roles.items()},
        seeds=plan.seeds,
        rejoin=plan.rejoin,
        drains=drains,
    )
    for address in plan.roles:
        world.add(address, lambda host: MemberProgram(host, fleet))
    play(world, plan.steps)
    _observe_disturbances(world, monitor, plan.steps)
    started_s = max(s["at_s"] for s in plan.steps if s["do"] == "start" and s["at_s"] <= 3.0)
    world.run(started_s)
    joined_s = world.run_until(
        lambda: not views_agree(world, suspects=True), within_s=_FAULTS_FROM_S - started_s
    )
    if joined_s is None:
        world.fail(
            f"not all have joined {world.now_s - started_s:.1f} s after the last start: "
            f"{views_agree(world, suspects=True)}"
        )
    world.run(plan.faults_until_s)
    converged_s = _heal(world, monitor, plan)
    return Outcome(
        seed=plan.seed,
        nodes=len(plan.roles),
        events=world.events,
        virtual_s=world.now_s,
        joined_s=joined_s or 0.0,
        converged_s=converged_s,
        findings=monitor.findings,
        digest=trace.digest if trace is not None else "",
    )


def _heal(world: World, monitor: FleetMonitor, plan: Plan) -> float:
    """The second phase: no faults any more; all views must agree."""
    world.network.heal()
    world.network.slow.clear()
    world.network.link = replace(world.network.link, loss=min(0.02, plan.link["loss"]))
    monitor.disturb()
    for host in world.hosts.values():
        host.clock_skew_ms = 0
        if host.paused:
            host.resume()
        host.unblock()
        if host.is_up and host.program.core.local.is_leaving:
            host.stop("exit")
        if not host.is_up and host.address in plan.restart_after:
            host.start()
    # Who has met nobody yet waits for its next try at the seeds.
    alone = any(h.is_up and not h.program.core.table.living for h in world.hosts.values())
    within_s = CONVERGED_WITHIN_S + (_NEXT_TRY_S if alone else 0.0)
    healed_s = world.now_s
    while True:
        left_s = healed_s + within_s - world.now_s
        agreed_s = world.run_until(lambda: not views_agree(world), within_s=max(left_s, 0.0))
        if agreed_s is None:
            world.fail(f"no common view {within_s} s after everything healed: {views_agree(world)}")
        converged_s = world.now_s - healed_s
        # It must also last: one that agrees by chance, with suspicions pending, is not settled.
        world.run(world.now_s + _LASTS_S)
        if not views_agree(world):
            return converged_s


def _observe_disturbances(world: World, monitor: FleetMonitor, steps: list[Step]) -> None:
    for step in steps:
        if step["do"] in ("cut", "slow"):
            world.at(step["at_s"], monitor.disturb)
            world.at(step["at_s"] + step["for_s"], monitor.disturb)


SCENARIOS = Path(__file__).parent / "scenarios"


def load_scenario(path: Path) -> Plan:
    """A schedule that once found something, kept whole."""
    data = json.loads(path.read_text())
    del data["name"], data["why"]
    return Plan(**data)


def save_scenario(plan: Plan, name: str, why: str) -> Path:
    """Keeps a schedule under a name that says what it shows."""
    data = {"name": name, "why": why, **asdict(plan)}
    steps = ",\n  ".join(json.dumps(step) for step in data.pop("steps"))
    path = SCENARIOS / f"{name}.json"
    path.write_text(f'{json.dumps(data, indent=1)[:-2]},\n "steps": [\n  {steps}\n ]\n}}\n')
    return path
