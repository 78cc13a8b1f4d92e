"""A run on one machine as a state machine, without I/O.

Events go in (`handle`), effects come out; time is an argument. The driver (`runner.drive`) owns
the executors, the clock and the signals, and performs effects in order.

Vocabulary: a workflow *waits* for its dependencies and then for cores, is *prepared* on its
executors, *runs* in one slot per executor, and *ends* with a status. A *stop* ends the whole
run early, for one reason; a second interrupt kills the executors. A workflow for which no core is
left *shares* the cores of those that run: it gets one further executor, and inherits a core as
soon as another workflow leaves one.
"""

from collections.abc import Iterable, Sequence

from hyperscale.config import GRACE_S, format_duration
from hyperscale.errors import InputError, RunError
from hyperscale.execution.protocol import (
    ExecutorDied,
    ExecutorEvent,
    SlotFinished,
    SlotReport,
    SlotSetUp,
)
from hyperscale.jobs.dependencies import blocked_by, ready
from hyperscale.jobs.provisioner import (
    SHARED_NICE,
    SHARED_PER_WORKER_MAX,
    Provisioner,
    is_exclusive,
)
from hyperscale.plan import Plan, WorkflowPlan
from hyperscale.plan.context import Namespace, encode_received, namespace_of, received_by
from hyperscale.reporting.build import WorkflowOutcome
from hyperscale.reporting.results import RunStatus
from hyperscale.runner.events import (
    ExecutorReported,
    KillExecutors,
    LoadChangeRequested,
    PoolReady,
    PrepareTeardown,
    PrepareWorkflow,
    RunEffect,
    RunEvent,
    RunInterrupted,
    ShareSetup,
    StartExecutors,
    StopExecutors,
    WeighExecutors,
    WorkflowPrepared,
)
from hyperscale.runner.executor_table import ExecutorTable
from hyperscale.runner.local_workflow import LocalWorkflow, RunStop, WorkflowPhase
from hyperscale.runner.run_load import RunLoad
from hyperscale.sansio.core import Tick
from hyperscale.stats.holds import hold_warnings
from hyperscale.stats.shared_cores import sharing_note
from hyperscale.stats.thresholds import abort_verdict
from hyperscale.stats.view import RunView

ABORT_CHECK_EVERY_S = 0.5


class LocalRun:
    """The state of a run over executors 0 … `cores` - 1, one per core, and up to
    `shared_max` further ones for workflows that share cores. Owns no clock, task or process."""

    def __init__(
        self,
        plan: Plan,
        *,
        cores: int,
        timeout_s: float | None = None,
        shared_max: int = SHARED_PER_WORKER_MAX,
    ) -> None:
        self.plan = plan
        self._provisioner = Provisioner(cores)
        self._timeout_s = timeout_s
        self._workflows = {workflow.name: LocalWorkflow(workflow) for workflow in plan.workflows}
        self.statistics = [workflow.stats for workflow in self._workflows.values()]
        self._executors = ExecutorTable(cores=cores, shared_max=shared_max)
        self._namespaces: dict[str, Namespace] = {}
        self._stop: RunStop | None = None
        self._interrupts = 0
        self._load = RunLoad(plan)
        self._began_s: float | None = None  # None: the executors are not ready yet
        self._abort_check_s: float | None = None  # None: no running workflow can abort the run
        self.input_error: InputError | None = None  # found before anything ran: there is no result
        self.interrupted_by: str | None = None
        self.aborted_by = ""  # the workflow whose threshold ended the run

    # --- queries --------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return all(workflow.phase is WorkflowPhase.ENDED for workflow in self._workflows.values())

    def wake_at_s(self) -> float | None:
        """Return when the next `Tick` is due; None if nothing is scheduled."""
        scheduled_s = (self._abort_check_s, self._timeout_at_s())
        return min((at_s for at_s in scheduled_s if at_s is not None), default=None)

    def _timeout_at_s(self) -> float | None:
        if self._timeout_s is None or self._began_s is None or self._stop is not None:
            return None
        return self._began_s + self._timeout_s

    @property
    def status(self) -> RunStatus:
        """The status of the run as a whole, once it is over."""
        if self._stop is not None and not self.aborted_by:
            return self._stop.status
        statuses = [workflow.status for workflow in self._workflows.values()]
        if all(status is RunStatus.COMPLETED for status in statuses):
            return RunStatus.COMPLETED
        return RunStatus.PARTIAL if RunStatus.COMPLETED in statuses else RunStatus.FAILED

    def outcomes(self, *, since_s: float = 0.0) -> list[WorkflowOutcome]:
        """Return how each workflow ended; `since_s` is the time at which the run began."""
        return [self._load.outcome_of(each, since_s=since_s) for each in self._workflows.values()]

    def view(self, *, now_s: float) -> RunView:
        workflows = self._workflows.values()
        saturation: dict[str, str | None] = {}
        for workflow in workflows:
            saturation |= hold_warnings(workflow.stats)
            saturation[workflow.plan.name] = workflow.saturation.live_warning()
        note = sharing_note({name: w.shared_cores for name, w in self._workflows.items()})
        return RunView(
            file=self.plan.file,
            elapsed_s=0.0 if self._began_s is None else now_s - self._began_s,
            workflows=tuple(workflow.view(now_s=now_s) for workflow in workflows),
            saturated=any(workflow.saturation.is_saturated for workflow in workflows),
            warnings=(*self.plan.warnings, *filter(None, (note,))),
            saturation={name: text for name, text in saturation.items() if text},
        )

    def nice_of(self, name: str) -> int | None:
        """Return the CPU weight of a workflow's executors; None: that of every executor."""
        workflow = self._workflows[name]
        return SHARED_NICE[workflow.plan.priority] if workflow.shared_cores else None

    def workflow_of(self, executor: int) -> str | None:
        """Return the workflow that an executor holds a slot of."""
        found = self._holder(executor)
        return None if found is None else found.plan.name

    # --- decisions ------------------------------------------------------------------------

    def handle(self, event: RunEvent, *, now_s: float) -> list[RunEffect]:
        match event:
            case PoolReady():
                self._began_s = now_s
                return self._grant()
            case WorkflowPrepared(workflow=name, error=error):
                return self._on_prepared(self._workflows[name], error, now_s)
            case ExecutorReported(executor=executor, event=reported):
                return self._on_executor(executor, reported)
            case LoadChangeRequested():
                return self._load.change(event, self._workflows, now_s=now_s)
            case RunInterrupted(by=by):
                return self._on_interrupt(by)
            case Tick():
                return self._on_tick(now_s)

    def _grant(self) -> list[RunEffect]:
        """Give executors to workflows that are ready; cancel those that never can be."""
        self._cancel_blocked()
        if self._stop is not None:
            return []
        workflows = self._workflows.items()
        completed = [name for name, w in workflows if w.status is RunStatus.COMPLETED]
        begun = [name for name, w in workflows if w.phase is not WorkflowPhase.WAITING]
        waiting = ready(self.plan.workflows, completed, begun)
        received = {}
        for plan in waiting:
            try:
                context = received_by(plan, self.plan.workflows, self._namespaces)
            except RunError as error:
                self._end(self._workflows[plan.name], RunStatus.FAILED, str(error))
                return self._grant()
            received[plan.name] = encode_received(context)
        given = self._give_executors(waiting)
        weighed = self._note_sharing()
        effects: list[RunEffect] = [
            WeighExecutors(tuple(w.holds), SHARED_NICE[w.plan.priority])
            for w in weighed
            if w not in given
        ]
        for workflow in given:
            workflow.become(WorkflowPhase.PREPARING)
            name, executors = workflow.plan.name, tuple(workflow.holds)
            effects.append(PrepareWorkflow(name, executors, received[name]))
        return effects

    def _give_executors(self, waiting: Sequence[WorkflowPlan]) -> list[LocalWorkflow]:
        """Deal the free cores; each workflow left without one gets an executor beside the others,
        unless it or one of them is exclusive."""
        active = self._active()
        if any(is_exclusive(workflow.plan) for workflow in active):
            return []
        given = []
        for grant in self._provisioner.grant(waiting, busy=self._executors.busy):
            workflow = self._workflows[grant.name]
            workflow.take_executors(self._executors.take_cores(grant.threads))
            given.append(workflow)
        if any(is_exclusive(workflow.plan) for workflow in given):
            return given
        for plan in waiting:
            workflow = self._workflows[plan.name]
            if not workflow.holds and not is_exclusive(plan):
                workflow.take_executors(self._executors.take_shared())
                if workflow.holds:
                    given.append(workflow)
        return given

    def _note_sharing(self) -> list[LocalWorkflow]:
        """Note which workflows share cores now; return those that did not before."""
        active = self._active()
        if not self._executors.is_sharing:
            return []
        begin = [workflow for workflow in active if not workflow.shared_cores]
        for workflow in active:
            workflow.shared_cores = max(workflow.shared_cores, self._executors.busy)
        return begin

    def _on_prepared(
        self, workflow: LocalWorkflow, error: RunError | InputError | None, now_s: float
    ) -> list[RunEffect]:
        if workflow.phase is WorkflowPhase.ENDED:
            return []  # it was stopped, or all its executors died, before this event
        if workflow.phase is WorkflowPhase.TEARING_DOWN:
            if error is None:
                return [StartExecutors(tuple(workflow.holds))]
            return self._torn_down(workflow, f"teardown could not run: {error}")
        if error is not None:
            return self._on_prepare_failed(workflow, error)
        workflow.become(WorkflowPhase.RUNNING)
        if workflow.stop is not None:
            # The stop came during preparation; slots whose assignment was still on its way to
            # an executor have not received it. No slot starts.
            return [StopExecutors(tuple(workflow.holds), workflow.stop.reason)]
        effects = self._load.start(workflow, now_s=now_s)
        if self._abort_check_s is None and any(t.abort_on_fail for t in workflow.thresholds):
            self._abort_check_s = now_s + ABORT_CHECK_EVERY_S
        return effects

    def _on_prepare_failed(
        self, workflow: LocalWorkflow, error: RunError | InputError
    ) -> list[RunEffect]:
        executor, *others = workflow.holds
        self._release(workflow, others)
        has_run = bool(self._load.began_s or workflow.setup.context)
        if workflow.stop is not None:
            return self._finish(workflow, executor, workflow.stop.status, workflow.stop.reason)
        if not isinstance(error, InputError) or has_run:
            return self._finish(workflow, executor, RunStatus.FAILED, str(error))
        self._release(workflow, [executor])
        self._end(workflow, RunStatus.FAILED, str(error))
        self.input_error = error
        return self._stop_all(RunStop(RunStatus.CANCELLED, "nothing ran: bad input"), 0.0)

    def _on_executor(self, executor: int, event: ExecutorEvent) -> list[RunEffect]:
        workflow = self._holder(executor)
        if workflow is None:
            return []  # the executor holds no slot
        if workflow.phase is WorkflowPhase.TEARING_DOWN:
            return self._on_teardown(workflow, event)
        return self._on_slot(workflow, executor, event)

    def _on_slot(
        self, workflow: LocalWorkflow, executor: int, event: ExecutorEvent
    ) -> list[RunEffect]:
        slot = workflow.holds[executor]
        match event:
            case SlotReport(report=report):
                workflow.take(report)
                return []
            case SlotSetUp(context=context):
                is_last = workflow.note_set_up(executor, context)
                return [ShareSetup(tuple(workflow.holds), workflow.setup.context)] * is_last
            case SlotFinished():
                workflow.note_end(slot, event)
            case ExecutorDied(reason=reason):
                if self._interrupts < 2:  # else the second interrupt has killed it
                    number = f" {slot + 1} of {workflow.cores}" if workflow.cores > 1 else ""
                    workflow.faults.append(f"executor{number} failed: {reason}")
            case _:
                return []
        if len(workflow.holds) > 1:
            self._release(workflow, [executor])
            return []
        return self._finish(workflow, executor, *self._conclusion(workflow))

    def _conclusion(self, workflow: LocalWorkflow) -> tuple[RunStatus, str | None]:
        status, error = workflow.conclusion()
        if status is RunStatus.COMPLETED:
            plan, provided = workflow.plan, workflow.provided.values()
            try:
                self._namespaces[plan.name] = namespace_of(plan, provided)
            except RunError as problem:
                return RunStatus.FAILED, str(problem)
        return status, error

    # --- setup and teardown of a workflow ---------------------------------------------------

    def _finish(
        self, workflow: LocalWorkflow, executor: int, status: RunStatus, error: str | None
    ) -> list[RunEffect]:
        """End a workflow whose slots have ended; before that, tear down what was set up, on the
        last of its executors."""
        setup = workflow.setup
        if not setup.context or not workflow.plan.is_torn_down_once or self._interrupts > 1:
            self._release(workflow, [executor])
            self._end(workflow, status, error)
            return self._grant()
        setup.end = status, error
        workflow.become(WorkflowPhase.TEARING_DOWN)
        return [PrepareTeardown(workflow.plan.name, executor, workflow.cores, setup.context)]

    def _on_teardown(self, workflow: LocalWorkflow, event: ExecutorEvent) -> list[RunEffect]:
        match event:
            case SlotReport(report=report):
                workflow.take(report)
            case SlotFinished(report=report):
                workflow.take(report)
                return self._torn_down(workflow)
            case ExecutorDied(reason=reason):
                return self._torn_down(workflow, f"teardown did not end: {reason}")
        return []

    def _torn_down(self, workflow: LocalWorkflow, problem: str | None = None) -> list[RunEffect]:
        workflow.setup.problem = problem and f"{workflow.plan.name}: {problem}"
        self._release(workflow, workflow.holds)
        self._end(workflow, *workflow.setup.conclusion(problem))
        return self._grant()

    def _on_interrupt(self, by: str) -> list[RunEffect]:
        self._interrupts += 1
        self.interrupted_by = self.interrupted_by or by
        if self._interrupts == 1:
            return self._stop_all(RunStop(RunStatus.CANCELLED, f"interrupted by {by}"))
        held = self._held(*WorkflowPhase)
        return [KillExecutors(held, f"interrupted twice by {by}")] if held else []

    def _on_tick(self, now_s: float) -> list[RunEffect]:
        timeout_at_s = self._timeout_at_s()
        if timeout_at_s is not None and now_s >= timeout_at_s:
            reason = f"the run's timeout of {format_duration(self._timeout_s or 0)} was over"
            return self._stop_all(RunStop(RunStatus.TIMEOUT, reason))
        if self._abort_check_s is not None and now_s >= self._abort_check_s:
            self._abort_check_s = None if self._stop else now_s + ABORT_CHECK_EVERY_S
            return [] if self._stop else self._abort_on_threshold()
        return []

    def _abort_on_threshold(self) -> list[RunEffect]:
        for workflow in self._workflows.values():
            if workflow.phase is not WorkflowPhase.RUNNING:
                continue
            verdict = abort_verdict(workflow.thresholds, workflow.stats)
            if verdict is not None:
                name, what = workflow.plan.name, verdict.describe()
                self.aborted_by = name
                workflow.stop = RunStop(RunStatus.FAILED, f"stopped by its threshold {what}")
                others = f"stopped by the threshold of {name}: {what}"
                return self._stop_all(RunStop(RunStatus.CANCELLED, others))
        return []

    def _stop_all(self, cause: RunStop, grace_s: float = GRACE_S) -> list[RunEffect]:
        """End the run early: start nothing new and stop everything that runs."""
        self._stop = self._stop or cause
        for workflow in self._workflows.values():
            if workflow.phase is WorkflowPhase.WAITING:
                self._end(workflow, RunStatus.CANCELLED, f"never started: {cause.reason}")
            elif workflow.phase is not WorkflowPhase.ENDED:
                workflow.stop = workflow.stop or cause
        # What was set up is torn down also when the run ends early.
        held = self._held(WorkflowPhase.PREPARING, WorkflowPhase.RUNNING)
        return [StopExecutors(held, cause.reason, grace_s)] if held else []

    # --- state -----------------------------------------------------------------------

    def _cancel_blocked(self) -> None:
        failed = [
            name
            for name, workflow in self._workflows.items()
            if workflow.status not in (None, RunStatus.COMPLETED)
        ]
        for name, cause in blocked_by(self.plan.workflows, failed).items():
            workflow = self._workflows[name]
            if workflow.phase is WorkflowPhase.WAITING:
                self._end(workflow, RunStatus.CANCELLED, f"dependency failed: {cause}")

    def _end(self, workflow: LocalWorkflow, status: RunStatus, error: str | None) -> None:
        """The only writer of a workflow's status."""
        workflow.become(WorkflowPhase.ENDED)
        workflow.status, workflow.error = status, error

    def _active(self) -> list[LocalWorkflow]:
        return [workflow for workflow in self._workflows.values() if workflow.holds]

    def _release(self, workflow: LocalWorkflow, executors: Iterable[int]) -> None:
        for executor in list(executors):
            del workflow.holds[executor]
            self._executors.release(executor)

    def _holder(self, executor: int) -> LocalWorkflow | None:
        return next((w for w in self._workflows.values() if executor in w.holds), None)

    def _held(self, *phases: WorkflowPhase) -> tuple[int, ...]:
        """Return the executors of workflows in these phases."""
        workflows = [w for w in self._workflows.values() if w.phase in phases]
        return tuple(sorted(executor for w in workflows for executor in w.holds))
