"""Random schedules for a datacenter: jobs and faults, drawn from one seed.

A schedule has two phases. First managers and workers start, jobs are submitted and some cancelled,
and faults happen while the invariants are checked. Then everything heals and every job must
end within a bound, and every request must be accounted for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.committed.events import (
    CancelRequested,
    JobOptions,
    JobSubmitted,
    LoadChanged,
    payload_digest,
)
from hyperscale.jobs.committed.keys import job_id, parse_job_id
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.messages import SHARED_MAX, Isolation
from hyperscale.ledger.group_clock import GroupClocks
from hyperscale.ledger.replica import key_slot_of
from hyperscale.plan import FeedPer, FeedPlan, Priority, StepKind, StepPlan, Take, WorkflowPlan
from hyperscale.plan import Plan as TestPlan
from hyperscale.plan.changes import ChangeKind, LoadChange
from hyperscale.plan.model import StateKind, StatePlan
from hyperscale.plan.shapes import constant
from tests.simulation.committed_log import Ledger
from tests.simulation.faults import Step, apply, heal, play
from tests.simulation.jobs.manager import ManagerProgram
from tests.simulation.jobs.monitor import JobMonitor, check_end
from tests.simulation.jobs.profiles import Profile
from tests.simulation.jobs.target import Target
from tests.simulation.jobs.worker import WorkerProgram
from tests.simulation.kernel import Host, World
from tests.simulation.network import Link
from tests.simulation.trace import Trace

SCOPE = "dc1"
FAULTS_FROM_S = 4.0
ENDED_WITHIN_S = 240.0
QUIET_WITHIN_S = 30.0
SKEWS_MS = (-600_000, -600_000, -5_000, 0, 5_000, 600_000, 600_000)


@dataclass
class Submission:
    at_s: float
    key: str
    workflows: list[dict[str, Any]]
    timeout_s: float | None = None
    cancel_s: float | None = None
    goes_on: bool = False  # in isolation
    changes: tuple[tuple[float, str], ...] = ()  # when, and the kind


@dataclass
class Plan:
    """One complete schedule."""

    profile: str
    seed: int
    managers: list[str]
    workers: dict[str, int]
    groups: int
    link: dict[str, float]
    steps: list[Step]
    jobs: list[Submission]
    faults_until_s: float
    is_steady: bool
    restored_within_s: float | None
    flaky: float
    is_exclusive_checked: bool
    sick: str | None = None


@dataclass
class Outcome:
    seed: int
    events: int
    virtual_s: float
    jobs: int
    statuses: dict[str, int]
    revoked: int
    restored_s: list[float]
    gaps_s: list[float]
    shared: int  # attempts that shared the cores of their job


@dataclass
class Setup:
    """The factories of programs; mutants replace some of them."""

    plan: Plan
    ledger: Ledger
    target: Target
    agent: Callable[..., Agent]
    leader: Callable[..., JobLeader]
    allocator: Callable[[], Allocator]
    clocks: Callable[[Host], GroupClocks]
    took_over: Callable[..., None]

    @staticmethod
    def group_of(request_id: str) -> int:
        return parse_job_id(request_id.split("/", maxsplit=1)[0]).group


@dataclass(frozen=True)
class Cores:
    """The cores under test, or mutants of them."""

    agent: Callable[..., Agent] = Agent
    leader: Callable[..., JobLeader] = JobLeader
    allocator: Callable[[], Allocator] = Allocator
    machine: Callable[[str, int], JobMachine] = JobMachine
    clocks: Callable[[Host], GroupClocks] = lambda _host: GroupClocks()
    obeys_leases: bool = True


# --- drawing -----------------------------------------------------------------------------


def _has_room(workers: dict[str, int], jobs: list[Submission]) -> bool:
    """Return True if the other workers can take all parts of any one worker at once: a worker runs
    at most `SHARED_MAX` executors per core, and a lost part may have to wait for one of them."""
    cores, largest = sum(workers.values()), max(workers.values())
    executors = cores + sum(len(job.workflows) for job in jobs)
    return executors <= SHARED_MAX * (cores - largest)


def draw(profile: Profile, seed: int) -> Plan:
    rng = Random(f"{profile.name}/{seed}")
    managers = [f"m{n}" for n in range(rng.choice(profile.managers))]
    workers = {f"w{n}": rng.choice((1, 1, 2, 3)) for n in range(rng.choice((2, 2, 3, 4)))}
    if profile.has_sick_worker:
        workers = dict.fromkeys(workers, 2)
    link = {
        "loss": rng.choice((0.0, 0.0, 0.3, 1.0)) * profile.loss_max,
        "duplicate": 0.05 * rng.random(),
        "delay_s": 0.0002 + 0.01 * rng.random() ** 3,
        "jitter_s": 0.0002 + 0.01 * rng.random() ** 2,
    }
    until_s = FAULTS_FROM_S + profile.faults_s
    steps = _Draw(rng, profile, managers, list(workers)).steps()
    return Plan(
        profile=profile.name,
        seed=seed,
        managers=managers,
        workers=workers,
        groups=rng.choice((1, 2)),
        link=link,
        steps=sorted((s for s in steps if s["at_s"] < until_s), key=lambda step: step["at_s"]),
        jobs=(jobs := [_job(rng, profile, number) for number in range(rng.choice((1, 2, 3)))]),
        faults_until_s=until_s,
        is_steady=profile.is_steady,
        restored_within_s=profile.restored_within_s if _has_room(workers, jobs) else None,
        flaky=profile.flaky,
        is_exclusive_checked=profile.is_exclusive_checked,
        sick=min(workers) if profile.has_sick_worker else None,
    )


def _job(rng: Random, profile: Profile, number: int) -> Submission:
    workflows: list[dict[str, Any]] = []
    for index in range(rng.choice((1, 1, 2, 3))):
        names = [each["name"] for each in workflows]
        is_test = rng.random() < 0.85
        priority = rng.choice(("auto", "auto", "low", "normal", "high"))
        if rng.random() < profile.exclusive:
            priority = "exclusive"
        workflows.append(
            {
                "name": f"W{index}",
                "depends": [name for name in names if rng.random() < 0.4],
                "duration_s": round(3.0 + (profile.longest_s - 3.0) * rng.random(), 2),
                "vus": rng.choice((1, 2, 5, 100)),
                "priority": priority,
                "is_test": is_test,
            }
        )
    at_s = round(1.0 + profile.faults_s * 0.5 * rng.random() ** 2, 3)
    job = Submission(at_s=at_s, key=f"key-{number}-{rng.random():.6f}", workflows=workflows)
    if rng.random() < profile.cancels:
        job.cancel_s = round(at_s + 20.0 * rng.random(), 3)
    job.goes_on = Random(job.key).random() < profile.goes_on
    workflows += _crowd(Random(f"crowd/{job.key}"), profile)
    _shape(Random(f"shape/{job.key}"), profile, job)
    _feed(Random(f"rows/{job.key}"), profile, job)
    if rng.random() < 0.1:
        job.timeout_s = round(5.0 + 30.0 * rng.random(), 1)
    return job


def _crowd(rng: Random, profile: Profile) -> list[dict[str, Any]]:
    """Return more independent workflows than a job has cores, for some of the jobs."""
    return [
        {
            "name": f"C{index}",
            "depends": [f"C{index - 1}"] if index and rng.random() < 0.2 else [],
            "duration_s": round(3.0 + (profile.longest_s - 3.0) * rng.random(), 2),
            "vus": rng.choice((1, 5)),
            "priority": rng.choice(("auto", "low", "high")),
            "is_test": rng.random() < 0.9,
        }
        for index in range(rng.choice((3, 5, 9)) if rng.random() < profile.crowds else 0)
    ]


def _shape(rng: Random, profile: Profile, job: Submission) -> None:
    """Give some workflows a shape, and some jobs changes of their load while they run."""
    for each in job.workflows:
        if each["is_test"] and rng.random() < profile.shaped:
            each["is_shaped"] = True
    if rng.random() < profile.changes:
        first_s = job.at_s + 15.0 * rng.random()
        kinds = rng.choice((("scale",), ("pause", "resume"), ("pause", "scale", "resume")))
        at_s = [first_s + 8.0 * n * rng.random() for n in range(len(kinds))]
        job.changes = tuple(zip((round(each, 3) for each in sorted(at_s)), kinds, strict=True))


def _feed(rng: Random, profile: Profile, job: Submission) -> None:
    """Give some workflows feeds that deal each row once: to iterations, to users, or both."""
    for each in job.workflows:
        if each["is_test"] and rng.random() < profile.rows:
            per = rng.choice((("iteration",), ("iteration",), ("vu",), ("iteration", "vu")))
            each["feeds"] = [(name, rng.choice((40, 500, 3_000, 20_000))) for name in per]


class _Draw:
    def __init__(
        self, rng: Random, profile: Profile, managers: list[str], workers: list[str]
    ) -> None:
        self.rng = rng
        self.profile = profile
        self.managers = managers
        self.workers = workers
        self.drawn: list[Step] = []

    def steps(self) -> list[Step]:
        p = self.profile
        self._down("crash", p.worker_crashes, self.workers)
        self._down("power", p.worker_power, self.workers)
        self._down("crash", p.leader_crashes, self.managers)
        self._pauses(p.worker_pauses, self.workers, (0.5, 3.0, 7.0, 12.0, 25.0))
        self._pauses(p.leader_pauses, self.managers, (0.5, 3.0, 7.0, 12.0))
        for _ in range(self._count(p.worker_cuts)):
            side = [self.rng.choice(self.workers)]
            if self.rng.random() < 0.3 and len(self.managers) > 1:
                side.append(self.rng.choice(self.managers))  # with a minority of managers
            self._cut(side)
        for _ in range(self._count(p.manager_cuts)):
            self._cut([self.rng.choice(self.managers)])
        for _ in range(self._count(p.deposals) if p.deposals else 0):
            step: Step = {"at_s": self._time(), "do": "depose"}
            step["for_s"] = self.rng.choice((15.0, 30.0))
            step["still_s"] = self.rng.choice((0.0, 3.0, 5.0, 7.0))
            self.drawn.append(step)
        for _ in range(self._count(p.blackouts) if p.blackouts else 0):
            at_s = self._time()
            for host in self.managers:
                self.drawn.append({"at_s": at_s, "do": "crash", "host": host})
                back_s = round(at_s + self.rng.choice((2.0, 6.0, 10.0, 25.0)), 3)
                self.drawn.append({"at_s": back_s, "do": "start", "host": host})
        for _ in range(self._count(p.skews) if p.skews else 0):
            skew: Step = {
                "at_s": self._time(),
                "do": "skew",
                "host": self.rng.choice(self.managers),
            }
            self.drawn.append({**skew, "ms": self.rng.choice(SKEWS_MS)})
        for _ in range(self._count(p.transfers)):
            self.drawn.append({"at_s": self._time(), "do": "transfer"})
        for _ in range(self._count(p.drains)):
            host = self.rng.choice(self.workers)
            self.drawn.append({"at_s": self._time(), "do": "tell", "host": host, "method": "drain"})
        return self.drawn

    def _count(self, expected: float) -> int:
        return round(expected * 2 * self.rng.random())

    def _time(self) -> float:
        return round(FAULTS_FROM_S + self.rng.random() * self.profile.faults_s, 3)

    def _down(self, how: str, expected: float, hosts: list[str]) -> None:
        for _ in range(self._count(expected)):
            host, at_s = self.rng.choice(hosts), self._time()
            self.drawn.append({"at_s": at_s, "do": how, "host": host})
            if self.rng.random() < self.profile.restarts:
                wait_s = self.rng.choice((0.1, 1.0, 4.0, 12.0))
                self.drawn.append({"at_s": round(at_s + wait_s, 3), "do": "start", "host": host})

    def _pauses(self, expected: float, hosts: list[str], lengths: tuple[float, ...]) -> None:
        for _ in range(self._count(expected)):
            host, for_s = self.rng.choice(hosts), self.rng.choice(lengths)
            self.drawn.append({"at_s": self._time(), "do": "pause", "host": host, "for_s": for_s})

    def _cut(self, side: list[str]) -> None:
        rest = [host for host in (*self.managers, *self.workers) if host not in side]
        step: Step = {"at_s": self._time(), "do": "cut", "from": side, "to": rest}
        step["both"] = self.rng.random() >= 0.3
        step["for_s"] = self.rng.choice((1.0, 4.0, 9.0, 15.0, 30.0))
        self.drawn.append(step)


# --- playing -----------------------------------------------------------------------------


def run(plan: Plan, *, cores: Cores | None = None, trace: Trace | None = None) -> Outcome:
    """Run a schedule; raise `Violation` if an invariant or a bound does not hold."""
    cores = cores or Cores()
    monitor = JobMonitor()
    world = World(plan.seed, monitor=monitor, trace=trace)
    world.network.link = Link(**plan.link)
    ledger = Ledger(
        world,
        plan.managers,
        plan.groups,
        lambda g: cores.machine(SCOPE, g),
        time_of=lambda host, group: host.program.time_ms(group, world.now_s),
    )
    target = Target(
        world,
        obeys_leases=cores.obeys_leases,
        is_exclusive_checked=plan.is_exclusive_checked,
        flaky=plan.flaky,
        sick=plan.sick,
    )
    setup = Setup(
        plan,
        ledger,
        target,
        cores.agent,
        cores.leader,
        cores.allocator,
        cores.clocks,
        monitor.took_over,
    )
    monitor.begin(world, plan, ledger, target)
    for name in plan.managers:
        world.add(name, lambda host: ManagerProgram(host, setup)).start()
    for name in plan.workers:
        world.add(name, lambda host: WorkerProgram(host, setup)).start()
    play(world, [step for step in plan.steps if step["do"] not in ("transfer", "depose")])
    for step in plan.steps:
        if step["do"] == "transfer":
            world.at(step["at_s"], ledger.transfer)
        elif step["do"] == "depose":
            world.at(step["at_s"], partial(_depose, world, ledger, plan, step))
    jobs = [_submit(world, ledger, plan, job) for job in plan.jobs]
    world.run(plan.faults_until_s)
    _heal(world)
    # Jobs may have to wait for each other.
    work_s = sum(each["duration_s"] for job in plan.jobs for each in job.workflows)
    within_s = max(ENDED_WITHIN_S, 1.5 * work_s)
    took_s = world.run_until(
        lambda: len(ledger.records) == len(plan.jobs), within_s=within_s, every_s=0.5
    )
    if took_s is None:
        open_ = [job for job in jobs if job not in ledger.records]
        world.fail(f"not ended {within_s:.0f} s after everything healed: {open_}")
    quiet = world.run_until(monitor.is_quiet, within_s=QUIET_WITHIN_S, every_s=0.5)
    if quiet is None:
        world.fail(f"not quiet {QUIET_WITHIN_S} s after the last job: {monitor.unrest()}")
    world.run(world.now_s + 1.0)
    check_end(world, plan, ledger, target)
    return monitor.outcome()


def _submit(world: World, ledger: Ledger, plan: Plan, job: Submission) -> str:
    """Submit a job, repeatedly until it is committed, and cancel it if the schedule says so."""
    group = key_slot_of(job.key) % plan.groups + 1
    names = tuple(each["name"] for each in job.workflows)
    workflows = tuple(_workflow(each, names) for each in job.workflows)
    test = TestPlan(file="shop.py", workflows=workflows)
    isolation = Isolation.CONTINUE if job.goes_on else Isolation.STOP
    options = JobOptions(timeout_s=job.timeout_s, on_isolation=isolation)
    event = JobSubmitted(
        key=job.key,
        digest=payload_digest(test, "b" * 64, options),
        plan=test,
        bundle="b" * 64,
        options=options,
    )
    name = job_id(SCOPE, group, job.key)
    cancel = CancelRequested(job=name, reason="enough", by="test")
    ledger.submit(group, name, event, at_s=job.at_s, cancel=cancel, cancel_s=job.cancel_s)
    for number, (at_s, kind) in enumerate(job.changes):
        change = LoadChange(
            id=f"{job.key}/{number}",
            kind=ChangeKind(kind),
            workflow="W0" if kind == "scale" else "",
            vus=20 if kind == "scale" else None,
        )
        world.at(at_s, partial(ledger.commit_when_led, group, LoadChanged(job=name, change=change)))
    return name


def _workflow(each: dict[str, Any], names: tuple[str, ...]) -> WorkflowPlan:
    """Return the plan of a workflow; each gives a value to those that depend on it."""
    depends = tuple(each["depends"])
    kind = StepKind.TEST if each["is_test"] else StepKind.ACTION
    return WorkflowPlan(
        name=each["name"],
        vus=each["vus"],
        duration_s=each["duration_s"],
        timeout_s=5.0,
        priority=Priority(each["priority"]),
        is_test=each["is_test"],
        depends=depends,
        states=(
            StatePlan(
                name="token",
                kind=StateKind.PROVIDE,
                workflows=names,
                keys=("token",),
                is_list=each["vus"] % 2 == 0,
            ),
            StatePlan(name="take", kind=StateKind.USE, workflows=depends, keys=("token",)),
        ),
        feeds=tuple(
            FeedPlan(name=per, take=Take.ONCE, per=FeedPer(per), rows=rows, digest=0)
            for per, rows in each.get("feeds", ())
        ),
        stages=constant(each["vus"], each["duration_s"]) if each.get("is_shaped") else (),
        steps=(StepPlan(name="hit", kind=kind), *(_AROUND if each["vus"] % 2 else ())),
    )


_AROUND = (
    StepPlan(name="open", kind=StepKind.SETUP),
    StepPlan(name="close", kind=StepKind.TEARDOWN),
)


def _depose(world: World, ledger: Ledger, plan: Plan, step: Step) -> None:
    leader = ledger.groups[world.rng.randint(1, plan.groups)].leader
    if leader is None:
        return
    side = [leader, world.rng.choice(list(plan.workers))]
    rest = [host for host in (*plan.managers, *plan.workers) if host not in side]
    apply(world, {"do": "cut", "from": side, "to": rest, "for_s": step["for_s"]})
    apply(world, {"do": "pause", "host": leader, "for_s": step["still_s"]})


def _heal(world: World) -> None:
    world.network.slow.clear()
    for host in world.hosts.values():
        program = host.program
        if isinstance(program, WorkerProgram) and program.agent.is_draining:
            host.stop("exit")
    heal(world)
