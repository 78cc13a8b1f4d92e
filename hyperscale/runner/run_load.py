"""The load of a run on one machine: when workflows begin, and the changes made while they run."""

from collections.abc import Mapping

from hyperscale.errors import InputError
from hyperscale.plan import Plan
from hyperscale.plan.changes import AppliedChange, ChangeKind, LoadChange, LoadSchedule, applied
from hyperscale.reporting.build import WorkflowOutcome
from hyperscale.runner.events import (
    ChangeAnswered,
    ChangeExecutors,
    LoadChangeRequested,
    RunEffect,
    StartExecutors,
)
from hyperscale.runner.local_workflow import LocalWorkflow, WorkflowPhase


class RunLoad:
    """Starts workflows, and scales, pauses and resumes them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._is_paused = False
        self._held: list[LocalWorkflow] = []  # prepared while the run is paused
        self.began_s: dict[str, float] = {}  # by workflow: when its slots were started
        self._changes: dict[str, list[AppliedChange]] = {}  # by workflow

    def outcome_of(self, workflow: LocalWorkflow, *, since_s: float) -> WorkflowOutcome:
        """Return how a workflow ended; `since_s` is the time at which the run began."""
        name = workflow.plan.name
        began_s = self.began_s.get(name)
        return workflow.outcome(
            began_s=None if began_s is None else began_s - since_s,
            changes=self._changes.get(name, ()),
        )

    def start(self, workflow: LocalWorkflow, *, now_s: float) -> list[RunEffect]:
        """Start the slots of a prepared workflow, or hold them until the run goes on."""
        if self._is_paused:
            self._held.append(workflow)
            return []
        self.began_s[workflow.plan.name] = now_s
        return [*self._tell(workflow), StartExecutors(tuple(workflow.holds))]

    def change(
        self,
        event: LoadChangeRequested,
        workflows: Mapping[str, LocalWorkflow],
        *,
        now_s: float,
    ) -> list[RunEffect]:
        """Apply a change and answer it."""
        try:
            effects = self._apply(event.change, workflows, now_s)
        except InputError as error:
            return [ChangeAnswered(event.token, error)]
        if not self._is_paused:
            held, self._held = self._held, []
            for workflow in held:
                if workflow.stop is None:
                    effects += self.start(workflow, now_s=now_s)
        return [*effects, ChangeAnswered(event.token)]

    def _apply(
        self, change: LoadChange, workflows: Mapping[str, LocalWorkflow], now_s: float
    ) -> list[RunEffect]:
        live = [name for name, each in workflows.items() if _is_live(each)]
        targets = applied(change, self._plan.workflows, live, is_paused=self._is_paused)
        if change.kind is not ChangeKind.SCALE:
            self._is_paused = change.kind is ChangeKind.PAUSE
        effects: list[RunEffect] = []
        for name, target in targets.items():
            workflow, began_s = workflows[name], self.began_s.get(name)
            if began_s is None and change.kind is not ChangeKind.SCALE:
                continue  # it does not begin during a pause
            made = AppliedChange(
                kind=change.kind,
                at_s=0.0 if began_s is None else now_s - began_s,
                target=target,
                over_s=change.over_s,
                by=change.by,
            )
            changes = self._changes.setdefault(name, [])
            changes.append(made)
            workflow.stats.schedule = LoadSchedule(workflow.plan, changes)
            if began_s is not None:
                effects += self._tell(workflow)
        return effects

    def _tell(self, workflow: LocalWorkflow) -> list[RunEffect]:
        changes = tuple(self._changes.get(workflow.plan.name, ()))
        return [ChangeExecutors(tuple(workflow.holds), changes)] if changes else []


def _is_live(workflow: LocalWorkflow) -> bool:
    is_over = workflow.phase in (WorkflowPhase.TEARING_DOWN, WorkflowPhase.ENDED)
    return not is_over and workflow.stop is None
