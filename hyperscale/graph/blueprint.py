"""The blueprint: a workflow as an executor runs it, functions and all.

Beside the data-only plan, this is the only view of a workflow the runtime needs. It is
made inside the executor, from the imported class; it is never sent anywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hyperscale.graph.analysis import analyse
from hyperscale.graph.planning import plan_workflow, state_plan, wrap_default
from hyperscale.graph.reading import RECORDED, ReadHook, read
from hyperscale.graph.static_steps import NotStatic, StaticCall, why_workflow_is_not_static
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import MetricKind, StateKind, StatePlan, StepKind, WorkflowPlan
from hyperscale.plan.dag import layers
from hyperscale.testing import OptimizedArg


@dataclass(frozen=True, slots=True)
class Hook:
    """One method the runtime calls, as `function(instance, **kwargs)`."""

    name: str
    kind: StepKind
    function: Callable[..., Any]
    is_async: bool
    after: tuple[str, ...]  # of a check or metric: the steps whose results it takes
    optimized: Mapping[str, OptimizedArg]  # prepared once, passed on every call
    injected: tuple[str, ...]  # parameters fed by name, where there is a value of that name
    accept: Callable[[int], bool] | None
    sees_body: bool  # False: nothing can look at the response's body
    metric_kind: MetricKind | None
    static: StaticCall | NotStatic
    protocol: str | None  # the client its results come from, by name; None if not a call
    owes: str | None = None  # of a test step: the type of result that each call must return


@dataclass(frozen=True, slots=True)
class StateHook:
    """A `@state` method: gives a value at the end, or takes some before the start."""

    name: str
    kind: StateKind
    function: Callable[..., Any]
    is_async: bool
    workflows: tuple[str, ...]
    keys: tuple[str, ...]
    is_list: bool


@dataclass(frozen=True)
class Blueprint:
    workflow: type[Workflow]
    plan: WorkflowPlan
    layers: tuple[tuple[Hook, ...], ...]
    checks: tuple[Hook, ...]
    metrics: tuple[Hook, ...]
    setups: tuple[Hook, ...]
    teardowns: tuple[Hook, ...]
    states: tuple[StateHook, ...]

    @property
    def recorded(self) -> tuple[str, ...]:
        """The hooks with a place in the recorder, in the order of their index."""
        return tuple(step.name for step in self.plan.steps if step.kind in RECORDED)

    @property
    def why_not_static(self) -> NotStatic | None:
        """Why the workflow has to run in Python; None if the native engine can run it."""
        return why_workflow_is_not_static(
            (hook.static for layer in self.layers for hook in layer),
            is_judged=bool(self.checks or self.metrics),
            is_paced=self.plan.interval_s is not None,
            is_set_up=bool(self.setups),
        )


def blueprint(
    cls: type[Workflow],
    plan: WorkflowPlan | None = None,
    *,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Blueprint:
    """Make the runtime view of `cls`. `plan` is the one that was sent, with a run's overrides.

    `files` is the content of `File` defaults by their path as written, if it was sent along;
    other files are read from where the plan found them.
    """
    reading = read(cls)
    plan = plan_workflow(reading) if plan is None else plan
    insight = analyse(reading)
    hooks = {}
    for hook in reading.hooks:
        if hook.kind is None:
            continue
        seen = insight[hook.name]
        hooks[hook.name] = Hook(
            name=hook.name,
            kind=hook.kind,
            function=hook.function,
            is_async=hook.is_async,
            after=hook.after,
            optimized={
                parameter.name: wrap_default(hook, parameter, {**plan.files, **files})
                for parameter in hook.parameters
                if parameter.optimized is not None
            },
            injected=reading.injected(hook),
            accept=hook.accept,
            sees_body=seen.sees_body,
            metric_kind=hook.metric_kind,
            static=seen.static,
            protocol=getattr(hook.result, "protocol", None),
            owes=_owes(hook),
        )
    return Blueprint(
        workflow=cls,
        plan=plan,
        layers=tuple(
            tuple(hooks[name] for name in layer) for layer in layers(reading.step_order())
        ),
        checks=_of(hooks, StepKind.CHECK),
        metrics=_of(hooks, StepKind.METRIC),
        setups=_of(hooks, StepKind.SETUP),
        teardowns=_of(hooks, StepKind.TEARDOWN),
        states=tuple(_state_hook(hook, state_plan(hook)) for hook in reading.states),
    )


def _owes(hook: ReadHook) -> str | None:
    if hook.kind is not StepKind.TEST or hook.result is None or not hook.is_always_result:
        return None
    return hook.result.__name__


def _of(hooks: Mapping[str, Hook], kind: StepKind) -> tuple[Hook, ...]:
    return tuple(hook for hook in hooks.values() if hook.kind is kind)


def _state_hook(hook: ReadHook, plan: StatePlan) -> StateHook:
    return StateHook(
        name=hook.name,
        kind=plan.kind,
        function=hook.function,
        is_async=hook.is_async,
        workflows=plan.workflows,
        keys=plan.keys,
        is_list=plan.is_list,
    )
