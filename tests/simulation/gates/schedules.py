"""Schedules of gates and datacenters: drawn from a seed, played, and checked.

Safety, at any time:
 1. no datacenter begins a job twice, and no virtual user of a job runs in two datacenters
 2. every job ends once; its replicas agree
At the end, after everything healed:
 3. every job has ended, and so has every part of it in every datacenter; all results are settled
 4. the end of a part is the same in the datacenter and at the gates
 5. the requests of a job are those of its datacenters, each counted once
 6. a datacenter is lost, or a job stuck, only if datacenters could not be reached for long, or if
    an operator removed it; the result of a lost one is kept as late
 7. every change of the load reached every part that ran for long enough, once and in order
 8. the users of a job are all there, also after parts of it went to other datacenters
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from hyperscale.gates.committed.events import (
    GlobalCancelRequested,
    GlobalJobSubmitted,
    GlobalLoadChanged,
    GlobalOptions,
    LossPolicy,
    encode_global,
    global_digest,
)
from hyperscale.gates.committed.machine import GlobalJobMachine
from hyperscale.gates.committed.state import (
    AssignmentStatus,
    DatacenterAssignment,
    GlobalJob,
    Withdrawal,
    decode_global_job,
)
from hyperscale.gates.messages import AssignJob
from hyperscale.gates.owner.core import GlobalJobOwner
from hyperscale.gates.vacancies import target_of
from hyperscale.jobs.committed.events import JobOptions, JobStatus
from hyperscale.jobs.committed.keys import job_id, parse_job_id
from hyperscale.ledger.replica import key_slot_of
from hyperscale.plan import Plan as TestPlan
from hyperscale.plan import StepKind, StepPlan, WorkflowPlan
from hyperscale.plan.changes import ChangeKind, LoadChange
from tests.simulation.committed_log import Ledger
from tests.simulation.faults import Step, heal, play
from tests.simulation.gates.datacenter import (
    Datacenter,
    DatacenterProgram,
    LocalJob,
    decode_requests,
    digest_of,
)
from tests.simulation.gates.gate import GateProgram
from tests.simulation.gates.profiles import Profile
from tests.simulation.kernel import World
from tests.simulation.network import Link
from tests.simulation.trace import Trace

SCOPE = "global"
FAULTS_FROM_S = 1.0
QUIET_WITHIN_S = 60.0
CHANGED_WITHIN_S = 45.0


@dataclass
class Submission:
    at_s: float
    key: str
    vus: int
    duration_s: float
    options: GlobalOptions
    cancel_s: float | None = None
    changes: list[tuple[float, LoadChange]] = field(default_factory=list)


@dataclass
class Plan:
    """One complete schedule."""

    profile: str
    seed: int
    gates: list[str]
    datacenters: dict[str, int]  # cores by name
    groups: int
    link: dict[str, float]
    steps: list[Step]
    jobs: list[Submission]
    faults_until_s: float
    refusals: float
    retries: float
    slow: float
    failures: float
    lost_acks: float
    queues: float
    unready: float
    is_lossless: bool
    ended_within_s: float


@dataclass
class Outcome:
    seed: int
    events: int
    virtual_s: float
    jobs: int
    statuses: dict[str, int]
    replaced: int
    lost: int
    late: int
    recalled: int  # parts that spilled over
    joined: int  # parts that joined late
    changes: int


@dataclass(frozen=True)
class Cores:
    """The cores under test, or mutants of them."""

    owner: Callable[..., GlobalJobOwner] = GlobalJobOwner
    machine: Callable[[str, int], GlobalJobMachine] = GlobalJobMachine
    digest: Callable[[AssignJob], str] = digest_of


class Target:
    """What is loaded by whom."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._accepted: set[tuple[str, str]] = set()
        self._begun: dict[str, dict[str, LocalJob]] = {}  # by job and datacenter
        self.removed: set[str] = set()  # an operator vouches that nothing runs there

    def accepted(self, datacenter: str, job: LocalJob) -> None:
        if (datacenter, job.job) in self._accepted:
            self._world.fail(f"{datacenter} accepted {job.job} twice")
        self._accepted.add((datacenter, job.job))

    def begin(self, datacenter: str, job: LocalJob) -> None:
        begun = self._begun.setdefault(job.job, {})
        if datacenter in begun:
            self._world.fail(f"{datacenter} begins {job.job} twice")
        for other, running in begun.items():
            if other in self.removed:
                continue
            for mine, theirs in zip(
                job.command.plan.workflows, running.command.plan.workflows, strict=True
            ):
                ours = range(mine.first_vu, mine.first_vu + mine.vus)
                if set(ours) & set(range(theirs.first_vu, theirs.first_vu + theirs.vus)):
                    self._world.fail(
                        f"users of {job.job} run twice, in {datacenter} and in {other}"
                    )
        begun[datacenter] = job


@dataclass
class Setup:
    """The parts of a running schedule; mutants replace some of them."""

    plan: Plan
    ledger: Ledger
    target: Target
    owner: Callable[..., GlobalJobOwner]
    digest: Callable[[AssignJob], str]
    datacenters: dict[str, Datacenter] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)


# --- drawing -----------------------------------------------------------------------------


def draw(profile: Profile, seed: int) -> Plan:
    rng = Random(f"gates/{profile.name}/{seed}")
    gates = [f"g{n}" for n in range(rng.choice(profile.gates))]
    datacenters = {f"dc{n}": rng.choice((2, 4, 8)) for n in range(rng.choice((2, 3, 4)))}
    until_s = FAULTS_FROM_S + profile.faults_s
    steps = _steps(rng, profile, gates, list(datacenters))
    return Plan(
        profile=profile.name,
        seed=seed,
        gates=gates,
        datacenters=datacenters,
        groups=rng.choice((1, 2)),
        link={
            "loss": rng.choice((0.0, 0.3, 1.0)) * profile.loss_max,
            "duplicate": 0.05 * rng.random(),
            "delay_s": 0.001 + 0.08 * rng.random(),
            "jitter_s": 0.001 + 0.05 * rng.random() ** 2,
        },
        steps=sorted((s for s in steps if s["at_s"] < until_s), key=lambda step: step["at_s"]),
        jobs=[_job(rng, profile, n, list(datacenters)) for n in range(rng.choice((1, 2, 4)))],
        faults_until_s=until_s,
        refusals=profile.refusals,
        retries=profile.retries,
        slow=profile.slow,
        failures=profile.failures,
        lost_acks=profile.lost_acks,
        queues=profile.queues,
        unready=profile.unready,
        is_lossless=profile.is_lossless,
        ended_within_s=profile.ended_within_s,
    )


def _job(rng: Random, profile: Profile, number: int, datacenters: list[str]) -> Submission:
    count = rng.randint(1, len(datacenters))
    is_named = rng.random() < 0.4
    at_s = round(1.0 + min(40.0, profile.faults_s) * 0.7 * rng.random() ** 2, 3)
    options = GlobalOptions(
        datacenters=tuple(rng.sample(datacenters, count)) if is_named else (),
        datacenter_count=count,
        fallback=rng.random() < 0.5,
        policy=rng.choice(list(LossPolicy)),
        vus_per_datacenter=rng.random() < 0.2,
        timeout_s=round(10.0 + 60.0 * rng.random(), 1) if rng.random() < 0.15 else None,
        start_timeout_s=rng.choice((5.0, 30.0)),
        lost_after_s=20.0,
        spill_over_s=rng.choice((3.0, 10.0)) if rng.random() < 0.4 else None,
        # With a short timeout nothing could be assigned after a cut of all links.
        job=JobOptions(dispatch_timeout_s=60.0),
    )
    return Submission(
        at_s=at_s,
        key=f"key-{number}-{rng.random():.6f}",
        vus=rng.choice((4, 10, 33)),
        duration_s=round(2.0 + 18.0 * rng.random(), 2),
        options=options,
        cancel_s=round(at_s + 25.0 * rng.random(), 3) if rng.random() < profile.cancels else None,
        changes=_changes(rng, at_s) if rng.random() < profile.changes else [],
    )


def _changes(rng: Random, at_s: float) -> list[tuple[float, LoadChange]]:
    """Draw changes of a load: scales, and a pause that ends."""
    changes: list[tuple[float, LoadChange]] = []
    for number in range(rng.randint(0, 2)):
        target = rng.choice((0, 7, 50))
        change = LoadChange(id=f"scale-{number}", kind=ChangeKind.SCALE, vus=target)
        changes.append((round(at_s + 15.0 * rng.random(), 3), change))
    if rng.random() < 0.6:
        paused_s = round(at_s + 12.0 * rng.random(), 3)
        resumed_s = round(paused_s + rng.choice((1.0, 5.0, 20.0)), 3)
        changes.append((paused_s, LoadChange(id="pause", kind=ChangeKind.PAUSE)))
        changes.append((resumed_s, LoadChange(id="resume", kind=ChangeKind.RESUME)))
    return sorted(changes, key=lambda each: each[0])


def _steps(rng: Random, profile: Profile, gates: list[str], datacenters: list[str]) -> list[Step]:
    steps: list[Step] = []

    def count(expected: float) -> int:
        return round(expected * 2 * rng.random())

    def time_s() -> float:
        return round(FAULTS_FROM_S + rng.random() * min(60.0, profile.faults_s), 3)

    for hosts, expected in (
        (gates, profile.gate_crashes),
        (datacenters, profile.datacenter_crashes),
    ):
        for _ in range(count(expected)):
            host, at_s = rng.choice(hosts), time_s()
            steps.append({"at_s": at_s, "do": rng.choice(("crash", "power")), "host": host})
            back_s = round(at_s + rng.choice((0.2, 2.0, 10.0)), 3)
            steps.append({"at_s": back_s, "do": "start", "host": host})
    for _ in range(count(profile.gate_pauses)):
        for_s = rng.choice((1.0, 5.0, 12.0))
        host = rng.choice(gates)
        steps.append({"at_s": time_s(), "do": "pause", "host": host, "for_s": for_s})
    for hosts, expected in ((gates, profile.gate_cuts), (datacenters, profile.datacenter_cuts)):
        for _ in range(count(expected)):
            side = [rng.choice(hosts)]
            if hosts is datacenters and rng.random() < 0.3 and len(gates) > 1:
                side.append(rng.choice(gates))  # a gate on the same side
            rest = [host for host in (*gates, *datacenters) if host not in side]
            step: Step = {"at_s": time_s(), "do": "cut", "from": side, "to": rest}
            step["both"] = rng.random() >= 0.3
            step["for_s"] = rng.choice(profile.cuts_s)
            steps.append(step)
    steps += [{"at_s": time_s(), "do": "transfer"} for _ in range(count(profile.transfers))]
    removed = rng.sample(datacenters, min(count(profile.removals), len(datacenters) - 1))
    steps += [{"at_s": time_s(), "do": "remove", "host": name} for name in removed]
    return steps


# --- playing -----------------------------------------------------------------------------


def run(plan: Plan, *, cores: Cores | None = None, trace: Trace | None = None) -> Outcome:
    """Run a schedule; raise `Violation` if an invariant does not hold."""
    cores = cores or Cores()
    world = World(plan.seed, trace=trace)
    world.network.link = Link(**plan.link)
    ledger = Ledger(
        world,
        plan.gates,
        plan.groups,
        lambda group: cores.machine(SCOPE, group),
        encode=encode_global,
        decode_record=decode_global_job,
    )
    setup = Setup(plan, ledger, Target(world), cores.owner, cores.digest)
    setup.target.removed = setup.removed
    setup.datacenters = {name: Datacenter(name) for name in plan.datacenters}
    for name in plan.gates:
        world.add(name, lambda host: GateProgram(host, setup)).start()
    for name in plan.datacenters:
        world.add(name, lambda host: DatacenterProgram(host, setup)).start()
    play(world, [step for step in plan.steps if step["do"] not in ("transfer", "remove")])
    for step in plan.steps:
        if step["do"] == "transfer":
            world.at(step["at_s"], ledger.transfer)
        elif step["do"] == "remove":
            world.at(step["at_s"], partial(_remove, world, setup, step["host"]))
    jobs = [_submit(world, ledger, plan, job) for job in plan.jobs]
    world.run(plan.faults_until_s)
    heal(world)
    if not _ends(world, lambda: len(ledger.records) == len(jobs), plan.ended_within_s):
        open_ = [job for job in jobs if job not in ledger.records]
        world.fail(f"not ended {plan.ended_within_s} s after everything healed: {open_}")
    if not _ends(world, lambda: not _unsettled(setup), QUIET_WITHIN_S):
        world.fail(f"not settled {QUIET_WITHIN_S} s after the last job: {_unsettled(setup)}")
    world.run(world.now_s + 1.0)
    return _check_end(world, setup)


def _remove(world: World, setup: Setup, datacenter: str) -> None:
    """Remove a datacenter, as an operator does."""
    setup.removed.add(datacenter)
    for host in world.hosts.values():
        if isinstance(host.program, GateProgram):
            host.program.removed(world.now_s)
            host.settle()


def _ends(world: World, holds: Callable[[], bool], within_s: float) -> bool:
    return world.run_until(holds, within_s=within_s, every_s=0.5) is not None


def _unsettled(setup: Setup) -> list[str]:
    return [
        f"{name}: {job.job} {job.ended_as}"
        for name, datacenter in setup.datacenters.items()
        for job in datacenter.jobs.values()
        if job.ended_as is None or not job.is_settled
    ]


def _check_end(world: World, setup: Setup) -> Outcome:
    ledger, plan = setup.ledger, setup.plan
    for group in range(1, plan.groups + 1):
        digests = {
            host.program.machines[group].snapshot()
            for host in world.hosts.values()
            if isinstance(host.program, GateProgram)
        }
        if len(digests) != 1:
            world.fail(f"replicas of group {group} differ")
    statuses: dict[str, int] = {}
    lost = late = replaced = recalled = joined = 0
    for job, record in ledger.records.items():
        statuses[record.status.value] = statuses.get(record.status.value, 0) + 1
        row = ledger.truth[parse_job_id(job).group].job(job)
        late += sum(each.is_late for each in row.assignments) if row else 0
        lost += sum(each.status is AssignmentStatus.LOST for each in record.assignments)
        replaced += sum(bool(each.replaced_by) for each in record.assignments)
        recalled += sum(each.withdrawn is Withdrawal.RECALLED for each in record.assignments)
        joined += sum(
            each.datacenter not in record.started_with
            for each in record.assignments
            if (local := setup.datacenters[each.datacenter].jobs.get(job)) and local.started_s
        )
        _check_job(world, setup, record, row)
    return Outcome(
        seed=plan.seed,
        events=world.events,
        virtual_s=world.now_s,
        jobs=len(plan.jobs),
        statuses=statuses,
        replaced=replaced,
        lost=lost,
        late=late,
        recalled=recalled,
        joined=joined,
        changes=sum(len(record.changes) for record in ledger.records.values()),
    )


def _check_job(world: World, setup: Setup, record: GlobalJob, row: GlobalJob | None) -> None:
    expected = reported = 0
    for assignment in record.assignments:
        local = setup.datacenters[assignment.datacenter].jobs.get(record.id)
        _check_assignment(world, setup, record, assignment, local)
        if assignment.status is AssignmentStatus.FINISHED:
            reported += decode_requests(assignment.result)
            expected += local.requests if local else 0
        elif assignment.status is AssignmentStatus.LOST and local is not None and row is not None:
            kept = row.assignment(assignment.datacenter)
            if kept is None or not kept.is_late:
                world.fail(f"the late result of {assignment.datacenter} is not kept")
    if reported != expected:
        world.fail(f"{record.id}: {reported} requests are reported, {expected} were sent")
    if setup.plan.is_lossless and "stuck" in record.reason:
        world.fail(f"{record.id} is taken for stuck, although its datacenters could be reached")
    assigned = {each.datacenter for each in record.assignments}
    for name, datacenter in setup.datacenters.items():
        if record.id in datacenter.jobs and name not in assigned:
            world.fail(f"{name} runs {record.id}, which was not assigned to it")
    if all(each.is_completed for each in record.counted()) and record.assignments:
        if record.status is not JobStatus.COMPLETED:
            world.fail(f"{record.id} is {record.status.value}, but every part completed")
    elif record.status is JobStatus.COMPLETED:
        world.fail(f"{record.id} is completed, but not every part is")
    _check_users(world, record)


def _check_users(world: World, record: GlobalJob) -> None:
    """Check that the parts of a job that completed are the whole job."""
    is_scaled = any(each.change.kind is ChangeKind.SCALE for each in record.changes)
    if record.status is not JobStatus.COMPLETED or is_scaled or record.options.vus_per_datacenter:
        return
    (plan,) = record.plan.workflows
    users = sum(
        target_of(each.workflows[plan.name], plan.name, each.changes.all)
        for each in record.counted()
    )
    if users != plan.vus:
        world.fail(f"{record.id} completed with {users:g} of {plan.vus} users")


def _check_assignment(
    world: World,
    setup: Setup,
    record: GlobalJob,
    assignment: DatacenterAssignment,
    local: LocalJob | None,
) -> None:
    name = f"{record.id} in {assignment.datacenter}"
    if assignment.status is AssignmentStatus.REFUSED and local is not None:
        world.fail(f"{name} was refused and runs")
    is_removed = assignment.datacenter in setup.removed
    if assignment.status is AssignmentStatus.LOST and setup.plan.is_lossless and not is_removed:
        world.fail(f"{name} was lost, although it could be reached")
    if not assignment.has_ended:
        world.fail(f"{name} has not ended")
    if assignment.status is AssignmentStatus.FINISHED:
        ended_as = JobStatus.CANCELLED if local is None else local.ended_as
        if assignment.ended_as is not ended_as:
            world.fail(f"{name} ended as {ended_as}, the gates have {assignment.ended_as}")
    if local is not None:
        _check_changes(world, setup, record, assignment, local)


def _check_changes(
    world: World,
    setup: Setup,
    record: GlobalJob,
    assignment: DatacenterAssignment,
    local: LocalJob,
) -> None:
    """Check that a part got the changes of its load in order, and all of them if it could."""
    wanted, got = assignment.changes.all, local.changes
    if got != wanted[: len(got)]:
        world.fail(f"{record.id} in {assignment.datacenter} got {got} of the changes {wanted}")
    made_s = max((each.at_ms / 1000 - 1000.0 for each in record.changes), default=0.0)
    since_s = max(made_s, setup.plan.faults_until_s)
    is_gone = assignment.datacenter in setup.removed or local.cancel is not None
    if len(got) < len(wanted) and local.ended_s - since_s > CHANGED_WITHIN_S and not is_gone:
        world.fail(f"{record.id} in {assignment.datacenter} got {len(got)} of {wanted}")


def _submit(world: World, ledger: Ledger, plan: Plan, job: Submission) -> str:
    """Submit a job, repeatedly until it is committed, and cancel it if the schedule says so."""
    group = key_slot_of(job.key) % plan.groups + 1
    step = StepPlan(name="hit", kind=StepKind.TEST)
    workflow = WorkflowPlan(
        name="Load", vus=job.vus, duration_s=job.duration_s, timeout_s=5.0, steps=(step,)
    )
    test = TestPlan(file="shop.py", workflows=(workflow,))
    event = GlobalJobSubmitted(
        key=job.key,
        digest=global_digest(test, "b" * 64, job.options),
        plan=test,
        bundle="b" * 64,
        options=job.options,
    )
    name = job_id(SCOPE, group, job.key)
    cancel = GlobalCancelRequested(job=name, reason="enough", by="test")
    ledger.submit(group, name, event, at_s=job.at_s, cancel=cancel, cancel_s=job.cancel_s)
    if job.changes:
        world.at(job.changes[0][0], lambda: _change(world, ledger, group, name, job.changes))
    if world.rng.random() < 0.3:  # the acknowledgement was lost
        world.at(job.at_s + 3.0, lambda: ledger.commit_when_led(group, event))
    return name


def _change(
    world: World, ledger: Ledger, group: int, job: str, changes: list[tuple[float, LoadChange]]
) -> None:
    """Change the load of a job, one change after the other, each as soon as the group is led."""
    known = ledger.groups[group]
    (_, change), later = changes[0], changes[1:]
    is_led = known.leader is not None and known.lost_s is None
    if not is_led or ledger.truth[group].job(job) is None:
        world.after(0.5, lambda: _change(world, ledger, group, job, changes))
        return
    event = GlobalLoadChanged(job=job, change=change)
    ledger.commit(group, event)
    if world.rng.random() < 0.2:  # the acknowledgement was lost
        ledger.commit(group, event)
    if later:
        at_s = max(later[0][0], world.now_s)
        world.at(at_s, lambda: _change(world, ledger, group, job, later))
