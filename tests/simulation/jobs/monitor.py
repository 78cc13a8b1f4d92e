"""The invariants of running jobs, and what is measured on the way.

Safety, at any time (most of it at the target, see `target`):
 1. no slot of a workflow is loaded by two executors at once; no attempt begins twice
 2. no core is held by two attempts; an exclusive workflow runs alone; an attempt without a core
    runs only where its job has one, 64 per worker at most
 3. every job ends once; its replicas agree
 4. the result of a part is that of its open attempt; dependents begin after their dependencies
 5. setup does not run after its commit; load begins with the committed context; teardown runs once,
    after all load
    no row of a feed that deals each row once is used twice
At the end:
 6. every job has ended, nothing runs, every result is acknowledged, no core is held
 7. reported <= target <= reported + gaps; a row that a lost attempt could use was used or is named
    in a gap
Bounds, in the schedules they are meant for:
 8. a change of leaders restarts no part
 9. the load of a crashed worker runs again within 5 s after its death was detected
10. the committed age of a job is the time that has passed, whatever wall clocks show
11. a part does not return to a worker on which it failed while there is another, also under another
    leader; a sick worker fails no job
12. a part with a shape takes it up where the other parts are; an executor that comes to its end
    knows the changes of its load
"""

from typing import TYPE_CHECKING

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Checkpointed,
    Event,
    JobFinished,
    JobStatus,
    JobSubmitted,
    LoadChanged,
    PartEnded,
    PartRedispatched,
    Reply,
    WorkflowDispatched,
    WorkflowSetUp,
)
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.jobs.committed.state import Job
from hyperscale.jobs.leader.statistics import decode_report
from hyperscale.jobs.messages import AttemptId
from hyperscale.plan import FeedPer
from hyperscale.plan.rows import feeds_once
from tests.simulation.kernel import Host, Monitor, World

if TYPE_CHECKING:
    from tests.simulation.committed_log import Ledger
    from tests.simulation.jobs.schedules import Outcome, Plan
    from tests.simulation.jobs.target import Target


_FAILED = (JobStatus.FAILED, JobStatus.PARTIAL)
AGE_ERROR_S = 3.0
"""A manager that restarts may lead before it has applied an entry of the last second or two."""


class JobMonitor(Monitor):
    world: World
    plan: "Plan"
    ledger: "Ledger"
    target: "Target"

    def begin(self, world: World, plan: "Plan", ledger: "Ledger", target: "Target") -> None:
        self.world, self.plan, self.ledger, self.target = world, plan, ledger, target
        self.revoked = 0
        self.estimated: set[int] = set()  # groups whose time was estimated after a restart
        self.submitted_s: dict[str, float] = {}  # by job
        ledger.on_commit = self._committed

    # --- what the kernel says -------------------------------------------------------------

    def stopping(self, host: Host, how: str) -> None:
        """Executors die with their worker's process."""
        if host.address in self.plan.workers:
            self.target.gone_s.clear()  # the bound holds for a single death
        for executor in self._executors(host):
            executor.die(is_lost=True)
            self.target.leave(executor)
        # With most cores lost there may be no room, even on shared cores.
        workers = self.plan.workers
        left = sum(
            cores
            for name, cores in workers.items()
            if name != host.address and self.world.hosts[name].is_running
        )
        if 2 * left < sum(workers.values()):
            self.target.gone_s.clear()

    def paused(self, host: Host) -> None:
        """Pause the agent alone, or the whole machine."""
        if self.world.rng.random() < 0.5:
            for executor in self._executors(host):
                executor.freeze()

    def resumed(self, host: Host, stood_s: float) -> None:
        for executor in self._executors(host):
            executor.thaw()

    def _executors(self, host: Host):  # type: ignore[no-untyped-def]  # Executors, or none
        executors = getattr(host.program, "executors", {})
        return [executor for made in executors.values() for executor in made]

    # --- what is committed ----------------------------------------------------------------

    def took_over(self, group: int, *, is_estimate: bool) -> None:
        """Note that a manager leads a group; `is_estimate`: it does not know the group's time."""
        if is_estimate:
            self.estimated.add(group)

    def _committed(self, group: int, event: Event, reply: Reply) -> None:
        if not reply.ok:
            return
        if isinstance(event, JobSubmitted):
            self.submitted_s.setdefault(reply.job, self.world.now_s)
        if isinstance(event, JobFinished):
            if self.plan.sick is not None and event.status in _FAILED:
                self.world.fail(f"a sick worker fails a job: {event}")
            if group not in self.estimated:
                self._check_age(event.job)
        if isinstance(event, WorkflowDispatched | PartRedispatched):
            job = self.ledger.truth[group].job(event.job)
            assert job is not None
            for name in job.plan_of(event.workflow).depends:
                if job.workflows[name].ended_as is not JobStatus.COMPLETED:
                    self.world.fail(f"{event.workflow} is dispatched before {name} has completed")
        if isinstance(event, PartRedispatched) and self.plan.sick is not None:
            self._check_excluded(group, event)
        if isinstance(event, WorkflowSetUp | PartEnded):
            self._set_up(event)
        if isinstance(event, Checkpointed | LoadChanged):
            self._note_load(group, event)
        if isinstance(event, AttemptRevoked) and reply.code.value == "ok":
            self.revoked += 1
            attempt_id = AttemptId(event.job, event.workflow, event.part, event.attempt)
            self.target.revoked.add(attempt_id)
            has_run = bool(event.report) or event.elapsed_s > 0
            if self.plan.is_steady and has_run and not self.ledger.was_leaderless:
                self.world.fail(f"a change of leaders restarts a part: {event}")

    def _note_load(self, group: int, event: Checkpointed | LoadChanged) -> None:
        """Note when workflows began, and when their load was changed, as it is committed."""
        truth = self.ledger.truth[group]
        job = truth.job(event.job)
        for name, workflow in {} if job is None else job.workflows.items():
            key = event.job, name
            if workflow.began_ms and group not in self.estimated:
                age_s = (truth._state.now_ms - workflow.began_ms) / 1000
                self.target.started_s.setdefault(key, self.world.now_s - age_s)
            known = self.target.changed_s.setdefault(key, [])
            known += [self.world.now_s] * (len(workflow.changes) - len(known))

    def _check_excluded(self, group: int, event: PartRedispatched) -> None:
        job = self.ledger.truth[group].job(event.job)
        segments = job.workflows[event.workflow].parts[event.part].segments
        failed = {each.worker for each in segments if each.costs_retry}
        if event.worker in failed and set(self.plan.workers) - failed:
            self.world.fail(f"a part returns to a worker on which it failed: {event}")

    def _check_age(self, job: str) -> None:
        record = self.ledger.records[job]
        age_s = (record.times.ended_ms - record.times.submitted_ms) / 1000
        true_s = self.world.now_s - self.submitted_s[job]
        if abs(age_s - true_s) > AGE_ERROR_S:
            self.world.fail(f"job {job} is {true_s:.1f} s old, and {age_s:.1f} s are committed")

    def _set_up(self, event: WorkflowSetUp | PartEnded) -> None:
        """Note what setup left, as the replicas have it."""
        group = parse_job_id(event.job).group
        job = self.ledger.truth[group].job(event.job)
        left = b"" if job is None else job.workflows[event.workflow].set_up
        key = event.job, event.workflow
        if left and self.target.committed.setdefault(key, left) != left:
            self.world.fail(f"the committed context of {key} has changed")

    # --- the end --------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        return not self.unrest()

    def unrest(self) -> str:
        if self.target.active:
            return f"load goes on: {list(self.target.active)}"
        for name in self.plan.workers:
            program = self.world.hosts[name].program
            if program is not None and not program.agent.is_idle:
                return f"{name} is not idle: {program.agent.attempts}"
        for name in self.plan.managers:
            program = self.world.hosts[name].program
            if program.allocator.is_leading and program.allocator.waiting:
                return f"requests wait at {name}"
            for group, leader in program.leaders.items():
                if len(leader.state.attempts):
                    return f"{name} still leads attempts of group {group}"
        return ""

    def outcome(self) -> "Outcome":
        from tests.simulation.jobs.schedules import Outcome  # noqa: PLC0415  they use each other

        statuses: dict[str, int] = {}
        gaps_s = []
        for record in self.ledger.records.values():
            statuses[record.status.value] = statuses.get(record.status.value, 0) + 1
            for workflow in record.workflows.values():
                gaps_s += [gap.seconds for gap in workflow.gaps]
        return Outcome(
            seed=self.plan.seed,
            events=self.world.events,
            virtual_s=self.world.now_s,
            jobs=len(self.ledger.records),
            statuses=statuses,
            revoked=self.revoked,
            restored_s=self.target.restored_s,
            gaps_s=gaps_s,
            shared=len(self.target.shared),
        )


def check_end(world: World, plan: "Plan", ledger: "Ledger", target: "Target") -> None:
    for group, truth in ledger.truth.items():
        for name in plan.managers:
            program = world.hosts[name].program
            if program.machines[group].snapshot() != truth.snapshot():
                world.fail(f"{name} has another state of group {group}")
    for job, name in target.committed:
        workflow = ledger.records[job].workflows[name]
        if not workflow.teardown_problem and (job, name) not in target.torn_down:
            world.fail(f"teardown was forgotten: {job} {name}")
    for job, record in ledger.records.items():
        _check_record(world, job, record, target.counts.get(job, 0))
        _check_rows(world, record, target)
    if target.places:
        world.fail(f"cores are still held: {list(target.places)}")
    if plan.restored_within_s is not None:
        late = [each for each in target.restored_s if each > plan.restored_within_s]
        if late:
            world.fail(f"load was back only {max(late):.2f} s after a crash")


def _check_record(world: World, job: str, record: Job, arrived: int) -> None:
    end = outcome_of(record)
    reported = sum(stats.total_counts().sent for stats in end.stats.values())
    most = reported + sum(gap.requests_max for gap in end.gaps)
    if not reported <= arrived <= most:
        world.fail(
            f"job {job}: {arrived} requests arrived, {reported} are reported, {most} at most"
        )
    for name, workflow in record.workflows.items():
        for index, part in enumerate(workflow.parts):
            report = decode_report(part.report)
            if part.has_ended and report is not None:
                _check_part(world, f"{job} {name} part {index}", part.attempt, report.rss_bytes)


def _check_rows(world: World, record: Job, target: "Target") -> None:
    for name, workflow in record.workflows.items():
        lost = [rows for gap in workflow.gaps for rows in gap.rows]
        for feed in feeds_once(record.plan_of(name), FeedPer.ITERATION):
            named = {
                rows.first + rows.step * place
                for rows in lost
                if rows.feed == feed.name
                for place in range(rows.count)
            }
            used = target.rows.get((record.id, name, feed.name), {})
            for part in workflow.load_parts:
                assert part.rows is not None
                slots = range(part.first_slot, part.first_slot + part.cores)
                over = {
                    slot + number * workflow.slots
                    for slot in slots
                    for number in range(part.rows.first)
                }
                missing = {row for row in over if row < feed.rows} - named - used.keys()
                if missing:
                    world.fail(f"{record.id} {name}: rows {sorted(missing)[:5]} are nowhere")


def _check_part(world: World, which: str, attempt: int, stamped: int) -> None:
    # Every executor reports its attempt as a count; a merged report holds the sum.
    if stamped % attempt:
        world.fail(f"{which}: attempt {attempt} is decided by the result of another")
