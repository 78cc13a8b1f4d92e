"""Random schedules of faults for a tier: profiles, and the run of one seed.

A run has two phases. First faults happen while clients work and the invariants are checked after
every event. Then everything heals, whoever is down is started again, and within a bound every
group must have a leader, all replicas must agree, and every node must get a job committed.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from hyperscale._native import GroupImage
from hyperscale.ledger.core import LedgerLimits
from hyperscale.ledger.replica import KEY_SLOTS, Replica
from hyperscale.ledger.topology import Founded, GroupCreated, NodeJoined, Topology
from hyperscale.ledger.topology_policy import MANAGEMENT_VOTERS_MAX, VOTERS
from tests.ledger.linearizability import check
from tests.simulation import faults
from tests.simulation.kernel import World
from tests.simulation.ledger.client import ClientProgram, Workload
from tests.simulation.ledger.monitor import Findings, LedgerMonitor
from tests.simulation.ledger.mutants import REAL, Mutant
from tests.simulation.ledger.program import LedgerProgram, show
from tests.simulation.ledger.store import CrashableStore, GroupFile
from tests.simulation.ledger.tier import Tier
from tests.simulation.trace import Trace

SCENARIOS = Path(__file__).parent / "scenarios"
SETTLED_WITHIN_S = 60.0
PROBED_WITHIN_S = 30.0
_VOTER, _LEARNER = 0x08, 0x10  # tags of a configuration, as the consensus core encodes it


@dataclass(frozen=True)
class Profile:
    """The faults of a schedule, and their relative frequency."""

    name: str
    kinds: dict[str, float]
    steps: tuple[int, int] = (2, 7)
    lasts_s: tuple[float, float] = (1.0, 2.5)
    joiners: int = 0
    """With these nothing is late by more than a node takes to leave a group and come back: the
    links between nodes are streams, and what is under way on one dies with it."""
    loss: float = 0.15
    slow_sync: float = 0.0
    crash_on_vote: float = 0.0


_STRIKES = {"crash": 3.0, "power": 1.0, "pause": 2.0, "cut": 3.0, "oneway": 1.5, "slow": 1.0}
_MOVES = {"move": 3.0, "drain_group": 1.0, "transfer": 2.0, "unfit": 1.0}
_SEATS = {"join": 2.0, "drain": 1.0, "wipe": 1.0, "gone": 1.0}

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("strikes", _STRIKES | {"transfer": 1.0}),
        Profile(
            "disks",
            {"crash": 3.0, "power": 2.0, "fail_disk": 2.0, "outage": 1.5, "transfer": 1.0},
            slow_sync=0.15,
            loss=0.05,
        ),
        Profile("slots", _MOVES | {"crash": 1.5, "cut": 1.5, "pause": 1.0}, loss=0.1),
        Profile(
            "seats", _SEATS | {"crash": 1.5, "cut": 1.0}, joiners=2, lasts_s=(1.8, 3.5), loss=0.1
        ),
        Profile(
            "everything",
            _STRIKES | _MOVES | _SEATS | {"fail_disk": 0.5, "outage": 0.5, "skew": 1.0},
            steps=(3, 9),
            joiners=2,
            lasts_s=(1.8, 4.0),
            slow_sync=0.05,
        ),
    )
}


BALLOTS = Profile(
    "ballots", {"outage": 2.0, "cut": 1.0}, steps=(4, 8), lasts_s=(2.0, 3.5), crash_on_vote=0.3
)
"""Constant elections, and nodes that restart between two candidates: for mutants only."""


@dataclass
class Plan:
    """A whole run as data."""

    profile: str
    seed: int
    nodes: list[str]
    joiners: list[str]
    groups: int
    limits: dict[str, int]
    link: dict[str, float]
    steps: list[faults.Step]
    lasts_s: float
    clients: int = 3
    slow_sync: float = 0.0
    crash_on_vote: float = 0.0


@dataclass
class Outcome:
    """The result of a run."""

    nodes: int
    events: int
    virtual_s: float
    settled_s: float
    findings: Findings = field(default_factory=Findings)
    answered: int = 0
    unknown: int = 0


# -- drawing ------------------------------------------------------------------------------


def draw(profile: Profile, seed: int) -> Plan:
    """Return the plan of a seed; it depends on the seed alone."""
    rng = Random(f"{profile.name}-{seed}")
    count = rng.choice((3, 3, 3, 3, 5)) if profile.name != "everything" else rng.choice((3, 4, 5))
    nodes = [f"n{number}" for number in range(count)]
    joiners = [f"n{count + extra}" for extra in range(profile.joiners)]
    lasts_s = rng.uniform(*profile.lasts_s)
    lossy = rng.random() < 0.7
    plan = Plan(
        profile=profile.name,
        seed=seed,
        nodes=nodes,
        joiners=joiners,
        groups=rng.choice((1, 2, 2, 3)),
        limits={
            "election_ticks": 7,
            "heartbeat_ticks": 3,
            "snapshot_entries": rng.choice((6, 15, 40)),
            "trailing_entries": rng.choice((0, 2, 10)),
        },
        link={
            "loss": profile.loss * rng.random() if lossy else 0.0,
            "delay_s": 0.001,
            "jitter_s": rng.choice((0.001, 0.01, 0.05)),
            "duplicate": 0.2 * rng.random() if lossy else 0.0,
            "spike": 0.05 * rng.random() if lossy else 0.0,
            "spike_s": rng.choice((0.1, 0.5, 2.0) if not joiners else (0.1, 0.3)),
        },
        steps=[],
        lasts_s=lasts_s,
        clients=rng.choice((2, 3, 4)),
        slow_sync=profile.slow_sync,
        crash_on_vote=profile.crash_on_vote,
    )
    kinds = dict(profile.kinds)
    if kinds.pop("wipe", 0.0) and rng.random() < 0.35:
        # One lost disk of three is what is promised to do no harm: nobody else leaves for good.
        for kind in ("drain", "gone"):
            del kinds[kind]
        plan.steps += _drawn("wipe", round(rng.uniform(0.6, lasts_s), 3), plan, rng)
    is_wiped = bool(plan.steps)
    for _ in range(rng.randint(*profile.steps)):
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        at_s = round(0.6 + (lasts_s - 0.6) * rng.random(), 3)
        steps = _drawn(kind, at_s, plan, rng)
        for step in steps:
            if is_wiped and step["do"] == "start":
                step["at_s"] = min(step["at_s"], at_s + 0.3)
        plan.steps += steps
    plan.steps.sort(key=lambda step: step["at_s"])
    return plan


def _drawn(kind: str, at_s: float, plan: Plan, rng: Random) -> list[faults.Step]:
    everyone = [*plan.nodes, *plan.joiners]
    host = rng.choice(plan.nodes)
    down_s = rng.choice((0.05, 0.3, 1.0, 2.5))
    step: faults.Step = {"at_s": at_s, "do": kind, "host": host}
    match kind:
        case "crash" | "power" | "wipe" | "gone":
            how = "crash" if kind in ("wipe", "gone") else kind
            for_s = 3.0 + rng.random() if kind == "gone" else down_s
            begin = step | {"do": how, "wipe": kind == "wipe"}
            return [begin, {"at_s": at_s + for_s, "do": "start", "host": host}]
        case "outage":
            begins = [{"at_s": at_s, "do": "power", "host": each} for each in plan.nodes]
            ends = [
                {"at_s": at_s + 0.1 + 0.5 * rng.random(), "do": "start", "host": each}
                for each in plan.nodes
            ]
            return [*begins, *ends]
        case "pause":
            return [step | {"for_s": rng.choice((0.2, 0.7, 1.5))}]
        case "slow":
            return [step | {"delay_s": rng.choice((0.05, 0.3)), "for_s": 1.0}]
        case "cut" | "oneway":
            rng.shuffle(everyone)
            side = rng.randint(1, max(1, len(everyone) // 2))
            cut = {"from": everyone[:side], "to": everyone[side:], "both": kind == "cut"}
            for_s = rng.choice((0.3, 0.8, 2.0))
            return [{"at_s": at_s, "do": "cut", "for_s": for_s, **cut}]
        case "skew":
            return [step | {"ms": rng.choice((-30_000, 500, 20_000))}]
        case "join":
            joining = rng.choice(plan.joiners)
            return [{"at_s": at_s, "do": "start", "host": joining}]
        case "fail_disk":
            fail = step | {"do": "tell", "method": "fail_disk"}
            return [fail, {"at_s": at_s + 0.2 + down_s, "do": "start", "host": host}]
    return [_told(kind, at_s, plan, rng)]


def _told(kind: str, at_s: float, plan: Plan, rng: Random) -> faults.Step:
    """Return an action on a program; its meaning depends on the state at that time."""
    group = rng.randint(1, plan.groups)
    step = {"at_s": at_s, "do": "tell", "host": rng.choice(plan.nodes), "method": kind}
    match kind:
        case "transfer":
            args: list[Any] = [rng.randint(0, plan.groups), rng.randrange(5)]
        case "move":
            args = [group, rng.randint(1, plan.groups + 1), rng.randint(1, 3)]
        case "drain_group":
            args = [group]
        case _:
            args = [rng.choice(plan.nodes)]
    return step | {"args": args}


# -- a tier -------------------------------------------------------------------------------


def founded(nodes: list[str], groups: int, *, seats: int = VOTERS) -> dict[str, CrashableStore]:
    """Return the disks of a tier that was just founded: groups are decided, not yet created."""
    topology = Topology()
    topology.decide(Founded(len(nodes)))
    numbers = {address: topology.decide(NodeJoined(address, address)).number for address in nodes}
    seats = min(seats, len(nodes))
    for group in range(1, groups + 1):
        voters = tuple(sorted((group - 1 + n) % len(nodes) + 1 for n in range(seats)))
        slots = tuple(range(group - 1, KEY_SLOTS, groups))
        topology.decide(GroupCreated(group, voters, slots))
    first = Replica(0, topology).snapshot()
    managers = list(numbers.values())[: min(len(nodes), MANAGEMENT_VOTERS_MAX)]
    conf = bytes(b for number in managers for b in (_VOTER, number))
    conf += bytes(
        b for number in numbers.values() if number not in managers for b in (_LEARNER, number)
    )
    image = GroupImage(0, (1, 0, 1), (1, 1, conf, first), [])
    stores: dict[str, CrashableStore] = {}
    for address, number in numbers.items():
        store = stores[address] = CrashableStore()
        store.meta["number"] = str(number).encode()
        store.groups[0] = GroupFile.of(image)
    return stores


def tier_of(plan: Plan, monitor: LedgerMonitor, mutant: Mutant) -> Tier:
    stores = founded(plan.nodes, plan.groups)
    for address in plan.joiners:
        stores[address] = CrashableStore()
    if mutant.store is not None:
        for address, store in stores.items():
            stores[address] = mutant.store()
            stores[address].groups, stores[address].meta = store.groups, store.meta
    return Tier(
        stores=stores,
        limits=LedgerLimits(**plan.limits),
        core=mutant.core,
        observer=monitor,
        machine=mutant.machine,
        newer={} if mutant.newer is None else dict.fromkeys(plan.nodes[::2], mutant.newer),
        slow_sync=plan.slow_sync,
        crash_on_vote=plan.crash_on_vote,
        stale_snapshots=mutant.stale_snapshots,
        acks_early=mutant.acks_early,
    )


# -- running ------------------------------------------------------------------------------


def run(plan: Plan, *, mutant: Mutant = REAL, trace: Trace | None = None) -> Outcome:
    """Run a plan; raise `Violation` if an invariant is broken."""
    monitor = LedgerMonitor()
    world = World(plan.seed, monitor=monitor, trace=trace)
    world.show = show
    monitor.world = world
    tier = monitor.tier = tier_of(plan, monitor, mutant)
    for name, value in plan.link.items():
        setattr(world.network.link, name, value)
    for address in [*plan.nodes, *plan.joiners]:
        world.add(address, lambda host: LedgerProgram(host, tier))
    workload = Workload(list(plan.nodes), sends_newer=bool(tier.newer))
    clients = [f"c{number}" for number in range(plan.clients)]
    for address in clients:
        world.add(address, lambda host: ClientProgram(host, workload))
    for address in [*plan.nodes, *clients]:
        world.hosts[address].start()
    faults.play(world, plan.steps)
    world.run(plan.lasts_s)
    settled_s = _heal(world, tier, monitor)
    _probe(world, monitor, workload, clients)
    found = check(workload.history.operations)
    if found is not None:
        world.fail(f"not linearizable: {found}")
    if workload.stale:
        world.fail(f"a session did not see its write: {workload.stale[0]}")
    return Outcome(
        nodes=len(plan.nodes) + len(plan.joiners),
        events=world.events,
        virtual_s=world.now_s,
        settled_s=settled_s,
        findings=monitor.findings,
        answered=workload.answered,
        unknown=workload.unknown,
    )


def _heal(world: World, tier: Tier, monitor: LedgerMonitor) -> float:
    world.run(world.now_s)  # what was due at this very moment
    world.network.heal()
    world.network.slow.clear()
    tier.unfit.clear()
    tier.slow_sync = tier.crash_on_vote = 0.0
    link = world.network.link
    link.loss = link.duplicate = link.spike = 0.0
    link.jitter_s = 0.001
    for host in world.hosts.values():
        host.clock_skew_ms = 0
        if host.paused:
            host.resume()
        if host.program is None and (host.life > 0 or host.address not in tier.stores):
            host.start()
    took_s = world.run_until(lambda: not monitor.unsettled(), within_s=SETTLED_WITHIN_S)
    if took_s is None:
        world.fail(f"{SETTLED_WITHIN_S:.0f} s after healing: {monitor.unsettled()}")
        return 0.0
    return took_s


def _probe(world: World, monitor: LedgerMonitor, workload: Workload, clients: list[str]) -> None:
    """Have each node commit a command."""
    programs: list[ClientProgram] = [world.hosts[address].program for address in clients]
    for at, program in enumerate(programs):
        program.probe(
            [(f"p{at}.{n}", node) for n, node in enumerate(workload.nodes[at :: len(programs)])]
        )
    took_s = world.run_until(
        lambda: not any(program.probes for program in programs), within_s=PROBED_WITHIN_S
    )
    if took_s is None:
        left = [probe for program in programs for probe in program.probes]
        world.fail(f"no progress: {left} not committed {PROBED_WITHIN_S:.0f} s after healing")
    if world.run_until(lambda: not monitor.unsettled(), within_s=SETTLED_WITHIN_S) is None:
        world.fail(f"in the end: {monitor.unsettled()}")
    monitor.unsettled(is_final=True)
    monitor.check_all()


# -- scenarios ----------------------------------------------------------------------------


def save_scenario(plan: Plan, name: str, why: str) -> Path:
    SCENARIOS.mkdir(exist_ok=True)
    path = SCENARIOS / f"{name}.json"
    path.write_text(json.dumps({"why": why, **asdict(plan)}, indent=1) + "\n")
    return path


def load_scenario(path: Path) -> Plan:
    data = json.loads(path.read_text())
    data.pop("why")
    return Plan(**data)
