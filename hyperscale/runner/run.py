"""A run on one machine as a state machine, without I/O.

Events go in (`handle`), effects come out; time is an argument. The driver (`runner.drive`) owns
the executors, the clock and the signals, and performs effects in order.

Vocabulary: a workflow *waits* for its dependencies and then for cores, is *prepared* on its
executors, *runs* in one slot per executor, and *ends* with a status. A *stop* ends the whole
run early, for one reason; a second interrupt kills the executors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hyperscale._native import Report
from hyperscale.config import GRACE_S, format_duration
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.execution.protocol import ExecutorDied, ExecutorEvent, SlotFinished, SlotReport
from hyperscale.jobs.dependencies import blocked_by, ready
from hyperscale.jobs.provisioner import Provisioner
from hyperscale.plan import Plan, WorkflowPlan
from hyperscale.plan.context import (
    Namespace,
    Provided,
    decode_provided,
    encode_received,
    namespace_of,
    received_by,
)
from hyperscale.plan.status import PartStatus
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.reporting.build import WorkflowOutcome
from hyperscale.reporting.results import RunStatus
from hyperscale.sansio.core import Tick
from hyperscale.stats.saturation import SaturationWatch
from hyperscale.stats.thresholds import abort_verdict
from hyperscale.stats.view import LiveMeter, RunView, ViewStatus
from hyperscale.stats.workflow import WorkflowStats

ABORT_CHECK_EVERY_S = 0.5

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolReady:
    """The pool has started its executors."""


@dataclass(frozen=True, slots=True)
class WorkflowPrepared:
    """Every slot of the workflow is ready to start, or with `error` none of them is held."""

    workflow: str
    error: RunError | InputError | None = None


@dataclass(frozen=True, slots=True)
class ExecutorReported:
    """An executor sent a message about the slot it holds, or died."""

    executor: int
    event: ExecutorEvent


@dataclass(frozen=True, slots=True)
class RunInterrupted:
    """A signal asked the run to end: the first stops it gracefully, the second kills it."""

    by: str


RunEvent = PoolReady | WorkflowPrepared | ExecutorReported | RunInterrupted | Tick

# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareWorkflow:
    workflow: str
    executors: tuple[int, ...]  # in order of slots
    received: bytes  # context, encoded for executors


@dataclass(frozen=True, slots=True)
class StartExecutors:
    executors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopExecutors:
    executors: tuple[int, ...]
    reason: str
    grace_s: float = GRACE_S


@dataclass(frozen=True, slots=True)
class KillExecutors:
    executors: tuple[int, ...]
    reason: str


RunEffect = PrepareWorkflow | StartExecutors | StopExecutors | KillExecutors


class WorkflowPhase(Enum):
    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    ENDED = "ended"


RUN_MOVES = {
    WorkflowPhase.WAITING: {WorkflowPhase.PREPARING, WorkflowPhase.ENDED},
    WorkflowPhase.PREPARING: {WorkflowPhase.RUNNING, WorkflowPhase.ENDED},
    WorkflowPhase.RUNNING: {WorkflowPhase.ENDED},
    WorkflowPhase.ENDED: set[WorkflowPhase](),
}


@dataclass(frozen=True, slots=True)
class _StopCause:
    status: RunStatus  # of workflows that were running
    reason: str


class _Workflow:
    """One workflow of the run: its phase, its executors, its statistics."""

    def __init__(self, plan: WorkflowPlan) -> None:
        self.plan = plan
        self.stats = WorkflowStats(plan)
        self.meter = LiveMeter(self.stats)
        self.saturation = SaturationWatch(plan.name)
        self.thresholds = thresholds_of(plan)
        self.phase = WorkflowPhase.WAITING
        self.status: RunStatus | None = None  # once ended
        self.error: str | None = None
        self.cores = 0
        self.holds: dict[int, int] = {}  # executor -> slot it runs of this workflow
        self.provided: dict[int, Provided] = {}  # by slot
        self.faults: list[str] = []  # why slots failed
        self.stopped_by_slot: str | None = None  # why a slot stopped without being told to
        self.stop: _StopCause | None = None

    def become(self, phase: WorkflowPhase) -> None:
        """The only writer of `phase`."""
        if phase not in RUN_MOVES[self.phase]:
            raise InvariantError(f"{self.plan.name}: {self.phase.name} -> {phase.name}")
        self.phase = phase

    def take(self, report: Report) -> None:
        self.stats.apply(report)
        self.saturation.observe(report)

    @property
    def view_status(self) -> ViewStatus:
        if self.status is not None:
            return ViewStatus(self.status.value)
        return ViewStatus.STOPPING if self.stop and self.holds else ViewStatus(self.phase.value)

    @property
    def outcome(self) -> WorkflowOutcome:
        if self.status is None:
            raise InvariantError(f"{self.plan.name} has not ended")
        warning = self.saturation.final_warning()
        return WorkflowOutcome(
            stats=self.stats,
            status=self.status,
            cores=self.cores,
            error=self.error,
            warnings=(warning,) if warning else (),
            was_saturated=self.saturation.was_saturated,
        )


class LocalRun:
    """The state of a run over executors 0 … `cores` - 1. Owns no clock, task or process."""

    def __init__(self, plan: Plan, *, cores: int, timeout_s: float | None = None) -> None:
        self.plan = plan
        self._provisioner = Provisioner(cores)
        self._timeout_s = timeout_s
        self._workflows = {workflow.name: _Workflow(workflow) for workflow in plan.workflows}
        self._free = list(range(cores))  # kept sorted, so that runs repeat
        self._namespaces: dict[str, Namespace] = {}
        self._stop: _StopCause | None = None
        self._interrupts = 0
        self._has_started = False
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

    def outcomes(self) -> list[WorkflowOutcome]:
        return [workflow.outcome for workflow in self._workflows.values()]

    def view(self, *, now_s: float) -> RunView:
        workflows = self._workflows.values()
        saturation = {w.plan.name: w.saturation.live_warning() for w in workflows}
        return RunView(
            file=self.plan.file,
            elapsed_s=0.0 if self._began_s is None else now_s - self._began_s,
            workflows=tuple(
                workflow.meter.view(
                    now_s=now_s,
                    status=workflow.view_status,
                    cores=workflow.cores,
                    error=workflow.error or (workflow.faults[0] if workflow.faults else None),
                    is_final=workflow.phase is WorkflowPhase.ENDED,
                )
                for workflow in workflows
            ),
            saturated=any(workflow.saturation.is_saturated for workflow in workflows),
            warnings=self.plan.warnings,
            saturation={name: text for name, text in saturation.items() if text},
        )

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
            case RunInterrupted(by=by):
                return self._on_interrupt(by)
            case Tick():
                return self._on_tick(now_s)

    def _grant(self) -> list[RunEffect]:
        """Give free cores to workflows that are ready; cancel those that never can be."""
        effects: list[RunEffect] = []
        self._cancel_blocked()
        if self._stop is not None:
            return effects
        workflows = self._workflows.items()
        completed = [name for name, w in workflows if w.status is RunStatus.COMPLETED]
        begun = [name for name, w in workflows if w.phase is not WorkflowPhase.WAITING]
        waiting = ready(self.plan.workflows, completed, begun)
        busy = self._provisioner.pool - len(self._free)
        for grant in self._provisioner.grant(waiting, busy=busy):
            workflow = self._workflows[grant.name]
            try:
                received = received_by(workflow.plan, self.plan.workflows, self._namespaces)
            except RunError as error:
                self._end(workflow, RunStatus.FAILED, str(error))
                return self._grant()
            executors, self._free = self._free[: grant.threads], self._free[grant.threads :]
            workflow.cores = grant.threads
            workflow.holds = {executor: slot for slot, executor in enumerate(executors)}
            workflow.become(WorkflowPhase.PREPARING)
            effects.append(PrepareWorkflow(grant.name, tuple(executors), encode_received(received)))
        return effects

    def _on_prepared(
        self, workflow: _Workflow, error: RunError | InputError | None, now_s: float
    ) -> list[RunEffect]:
        if workflow.phase is WorkflowPhase.ENDED:
            return []  # it was stopped, or all its executors died, before this event
        if error is not None:
            return self._on_prepare_failed(workflow, error)
        workflow.become(WorkflowPhase.RUNNING)
        if workflow.stop is not None:
            # The stop came during preparation; slots whose assignment was still on its way to
            # an executor have not received it. No slot starts.
            return [StopExecutors(tuple(workflow.holds), workflow.stop.reason)]
        self._has_started = True
        can_abort = any(threshold.abort_on_fail for threshold in workflow.thresholds)
        if can_abort and self._abort_check_s is None:
            self._abort_check_s = now_s + ABORT_CHECK_EVERY_S
        return [StartExecutors(tuple(workflow.holds))]

    def _on_prepare_failed(
        self, workflow: _Workflow, error: RunError | InputError
    ) -> list[RunEffect]:
        self._release(workflow, workflow.holds)
        if workflow.stop is not None:
            self._end(workflow, workflow.stop.status, workflow.stop.reason)
            return self._grant()
        self._end(workflow, RunStatus.FAILED, str(error))
        if isinstance(error, InputError) and not self._has_started:
            self.input_error = error
            return self._stop_all(_StopCause(RunStatus.CANCELLED, "nothing ran: bad input"), 0.0)
        return self._grant()

    def _on_executor(self, executor: int, event: ExecutorEvent) -> list[RunEffect]:
        workflow = self._holder(executor)
        if workflow is None:
            return []  # the executor holds no slot
        slot = workflow.holds[executor]
        match event:
            case SlotReport(report=report):
                workflow.take(report)
                return []
            case SlotFinished(status=status, reason=error, report=report, provided=provided):
                workflow.take(report)
                workflow.provided[slot] = decode_provided(provided)
                if status is PartStatus.FAILED:
                    workflow.faults.append(error or "it failed without saying why")
                elif status is PartStatus.STOPPED and workflow.stop is None:
                    workflow.stopped_by_slot = error or "stopped"
            case ExecutorDied(reason=reason):
                if self._interrupts < 2:  # else the second interrupt has killed it
                    number = f" {slot + 1} of {workflow.cores}" if workflow.cores > 1 else ""
                    workflow.faults.append(f"executor{number} failed: {reason}")
            case _:
                return []
        self._release(workflow, [executor])
        if workflow.holds:
            return []
        self._conclude(workflow)
        return self._grant()

    def _conclude(self, workflow: _Workflow) -> None:
        """End a workflow whose slots have all ended, with the status that follows from them."""
        stop = workflow.stop
        if workflow.faults:
            self._end(workflow, RunStatus.FAILED, "; ".join(dict.fromkeys(workflow.faults)))
        elif stop is not None:
            self._end(workflow, stop.status, stop.reason)
        elif workflow.stopped_by_slot is not None:
            self._end(workflow, RunStatus.CANCELLED, workflow.stopped_by_slot)
        else:
            try:
                provided = workflow.provided.values()
                self._namespaces[workflow.plan.name] = namespace_of(workflow.plan, provided)
            except RunError as error:
                self._end(workflow, RunStatus.FAILED, str(error))
            else:
                self._end(workflow, RunStatus.COMPLETED, None)

    def _on_interrupt(self, by: str) -> list[RunEffect]:
        self._interrupts += 1
        self.interrupted_by = self.interrupted_by or by
        if self._interrupts == 1:
            return self._stop_all(_StopCause(RunStatus.CANCELLED, f"interrupted by {by}"))
        held = self._held()
        return [KillExecutors(held, f"interrupted twice by {by}")] if held else []

    def _on_tick(self, now_s: float) -> list[RunEffect]:
        timeout_at_s = self._timeout_at_s()
        if timeout_at_s is not None and now_s >= timeout_at_s:
            reason = f"the run's timeout of {format_duration(self._timeout_s or 0)} was over"
            return self._stop_all(_StopCause(RunStatus.TIMEOUT, reason))
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
                workflow.stop = _StopCause(RunStatus.FAILED, f"stopped by its threshold {what}")
                others = f"stopped by the threshold of {name}: {what}"
                return self._stop_all(_StopCause(RunStatus.CANCELLED, others))
        return []

    def _stop_all(self, cause: _StopCause, grace_s: float = GRACE_S) -> list[RunEffect]:
        """End the run early: start nothing new and stop everything that runs."""
        self._stop = self._stop or cause
        for workflow in self._workflows.values():
            if workflow.phase is WorkflowPhase.WAITING:
                self._end(workflow, RunStatus.CANCELLED, f"never started: {cause.reason}")
            elif workflow.phase is not WorkflowPhase.ENDED:
                workflow.stop = workflow.stop or cause
        held = self._held()
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

    def _end(self, workflow: _Workflow, status: RunStatus, error: str | None) -> None:
        """The only writer of a workflow's status."""
        workflow.become(WorkflowPhase.ENDED)
        workflow.status, workflow.error = status, error

    def _release(self, workflow: _Workflow, executors: Iterable[int]) -> None:
        for executor in list(executors):
            del workflow.holds[executor]
            self._free.append(executor)
        self._free.sort()

    def _holder(self, executor: int) -> _Workflow | None:
        return next((w for w in self._workflows.values() if executor in w.holds), None)

    def _held(self) -> tuple[int, ...]:
        return tuple(sorted(executor for w in self._workflows.values() for executor in w.holds))
