"""One workflow of a run on one machine: its phase, its executors, its statistics, its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from hyperscale._native import Report
from hyperscale.errors import InvariantError
from hyperscale.execution.protocol import SlotFinished
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.changes import AppliedChange
from hyperscale.plan.context import Provided, decode_provided
from hyperscale.plan.status import PartStatus
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.reporting.build import WorkflowOutcome
from hyperscale.reporting.results import RunStatus
from hyperscale.stats.holds import hold_warnings
from hyperscale.stats.saturation import SaturationWatch
from hyperscale.stats.view import LiveMeter, ViewStatus, WorkflowView
from hyperscale.stats.workflow import WorkflowStats


class WorkflowPhase(Enum):
    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    TEARING_DOWN = "tearing_down"  # its slots have ended; the teardown of the workflow runs
    ENDED = "ended"


RUN_MOVES = {
    WorkflowPhase.WAITING: {WorkflowPhase.PREPARING, WorkflowPhase.ENDED},
    WorkflowPhase.PREPARING: {
        WorkflowPhase.RUNNING,
        WorkflowPhase.TEARING_DOWN,
        WorkflowPhase.ENDED,
    },
    WorkflowPhase.RUNNING: {WorkflowPhase.TEARING_DOWN, WorkflowPhase.ENDED},
    WorkflowPhase.TEARING_DOWN: {WorkflowPhase.ENDED},
    WorkflowPhase.ENDED: set[WorkflowPhase](),
}


class RunStop(NamedTuple):
    status: RunStatus  # of workflows that were running
    reason: str


@dataclass(slots=True)
class LocalSetup:
    """The setup of a workflow, which runs once, and its teardown."""

    context: bytes = b""  # what it left; empty: it has not run
    waiting: set[int] = field(default_factory=set)  # executors that wait for the context
    end: tuple[RunStatus, str | None] | None = None  # of the workflow, once it is torn down
    problem: str | None = None  # why teardown did not end

    def conclusion(self, problem: str | None) -> tuple[RunStatus, str | None]:
        """Return how the workflow ends; a problem of its teardown fails it."""
        assert self.end is not None
        is_failed = problem is not None and self.end[0] is RunStatus.COMPLETED
        return (RunStatus.FAILED, problem) if is_failed else self.end


class LocalWorkflow:
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
        self.shared_cores = 0  # cores that it shares with other workflows, or has shared
        self.holds: dict[int, int] = {}  # executor -> slot it runs of this workflow
        self.provided: dict[int, Provided] = {}  # by slot
        self.faults: list[str] = []  # why slots failed
        self.stop: RunStop | None = None
        self.setup = LocalSetup()

    def take_executors(self, executors: Sequence[int]) -> None:
        self.cores = len(executors)
        self.holds = {executor: slot for slot, executor in enumerate(executors)}

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
        is_stopping = self.phase is WorkflowPhase.TEARING_DOWN or (self.stop and self.holds)
        return ViewStatus.STOPPING if is_stopping else ViewStatus(self.phase.value)

    def view(self, *, now_s: float) -> WorkflowView:
        return self.meter.view(
            now_s=now_s,
            status=self.view_status,
            cores=self.cores,
            shared_cores=self.shared_cores,
            error=self.error or (self.faults[0] if self.faults else None),
            is_final=self.phase is WorkflowPhase.ENDED,
        )

    def outcome(
        self, *, began_s: float | None, changes: Sequence[AppliedChange]
    ) -> WorkflowOutcome:
        if self.status is None:
            raise InvariantError(f"{self.plan.name} has not ended")
        saturation = self.saturation.final_warning()
        holds = hold_warnings(self.stats).values()
        return WorkflowOutcome(
            stats=self.stats,
            status=self.status,
            cores=self.cores,
            shared_cores=self.shared_cores,
            error=self.error,
            warnings=(*holds, *filter(None, (saturation, self.setup.problem))),
            was_saturated=self.saturation.was_saturated,
            began_s=began_s,
            changes=changes,
        )

    def note_set_up(self, executor: int, context: bytes) -> bool:
        """Note that a slot waits for what setup left; return True if now all of them do."""
        self.setup.waiting.add(executor)
        self.setup.context = self.setup.context or context
        return self.setup.waiting == self.holds.keys()

    def note_end(self, slot: int, finished: SlotFinished) -> None:
        """Take the last message of a slot."""
        self.take(finished.report)
        self.provided[slot] = decode_provided(finished.provided)
        if finished.status is PartStatus.FAILED:
            self.faults.append(finished.reason or "it failed without saying why")
        elif finished.status is PartStatus.STOPPED and self.stop is None:
            self.stop = RunStop(RunStatus.CANCELLED, finished.reason or "stopped")

    def conclusion(self) -> tuple[RunStatus, str | None]:
        """Return the status, and the error, that follow from the slots, which have all ended."""
        if self.faults:
            return RunStatus.FAILED, "; ".join(dict.fromkeys(self.faults))
        return (RunStatus.COMPLETED, None) if self.stop is None else self.stop
