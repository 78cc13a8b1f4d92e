"""The blueprint: a workflow with its functions, as an executor runs it.

An executor makes it from the imported class and the plan; it is never sent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hyperscale.graph.analysis import analyse, literal_methods
from hyperscale.graph.columns import ColumnParts, column_parts
from hyperscale.graph.planning import plan_workflow, wrap_default
from hyperscale.graph.protos import protos_of
from hyperscale.graph.reading import ReadHook, read
from hyperscale.graph.settings import read_network
from hyperscale.graph.static_steps import NotStatic, StaticCall, first_obstacle
from hyperscale.graph.vitals import VitalMetric, vital_metrics
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import RECORDED, MetricKind, Per, StepKind, WorkflowPlan
from hyperscale.plan.dag import layers
from hyperscale.testing import OptimizedArg
from hyperscale.testing.feed import FeedColumn
from hyperscale.testing.network import Network


@dataclass(frozen=True, slots=True)
class Hook:
    """One method the runtime calls, as `function(instance, **kwargs)`."""

    name: str
    kind: StepKind
    function: Callable[..., Any]
    is_async: bool
    after: tuple[str, ...]  # of a check or metric: the steps whose results it takes
    optimized: Mapping[str, OptimizedArg]  # prepared once, passed on every call
    injected: tuple[str, ...]  # parameters that get a value by name, if there is one
    accept: Callable[[int], bool] | None
    sees_body: bool  # False: no code can read the body of the response
    metric_kind: MetricKind | None
    static: StaticCall | NotStatic
    protocol: str | None  # the client that returns its result; None if it calls none
    owes: str | None = None  # the type that each call of a test step must return
    per: Per = Per.WORKFLOW  # of a setup or teardown hook
    # Prepared once per row; each call gets the part of the user's row.
    columns: Mapping[str, ColumnParts] = field(default_factory=dict)


@dataclass(frozen=True)
class Blueprint:
    workflow: type[Workflow]
    plan: WorkflowPlan
    network: Network  # read from the class: a plan holds no secrets
    reflect: tuple[str, ...]  # servers that describe their gRPC services
    methods: tuple[tuple[str, str], ...]  # of gRPC, as steps name them: place and method
    layers: tuple[tuple[Hook, ...], ...]
    checks: tuple[Hook, ...]
    metrics: tuple[Hook, ...]
    setups: tuple[Hook, ...]
    teardowns: tuple[Hook, ...]
    states: tuple[ReadHook, ...]  # the `@state` methods

    @property
    def recorded(self) -> tuple[str, ...]:
        """The hooks with a place in the recorder, in the order of their index."""
        return tuple(step.name for step in self.plan.steps if step.kind in RECORDED)

    @property
    def index(self) -> dict[str, int]:
        """The place of each hook in the recorder."""
        return {name: place for place, name in enumerate(self.recorded)}

    @property
    def why_not_static(self) -> NotStatic | None:
        """Why the workflow has to run in Python; None if the native engine can run it."""
        steps = {hook.name: hook.static for layer in self.layers for hook in layer}
        obstacle = first_obstacle(self.plan, steps)
        return None if obstacle is None else obstacle[0]


def blueprint(
    cls: type[Workflow],
    plan: WorkflowPlan | None = None,
    *,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Blueprint:
    """Make the blueprint of `cls`; `plan` is the plan that was sent, with overrides.

    `files` has the content of `File` defaults that were sent, by their path as written; other
    files are read from the paths in the plan.
    """
    reading = read(cls, is_planned=plan is not None)
    if plan is None:
        plan = plan_workflow(reading)
    else:
        reading = reading.with_kinds({step.name: step.kind for step in plan.steps})
    insight = analyse(reading)
    hooks = {}
    for hook in reading.hooks:
        if hook.kind is None:
            continue
        seen = insight[hook.name]
        contents: dict[str, str | bytes] = {**plan.files, **files}
        owes = hook.kind is StepKind.TEST and hook.is_always_result
        hooks[hook.name] = Hook(
            name=hook.name,
            kind=hook.kind,
            function=hook.function,
            is_async=hook.is_async,
            after=hook.after,
            optimized={
                parameter.name: wrap_default(hook, parameter, contents)
                for parameter in hook.parameters
                if parameter.optimized is not None and not isinstance(parameter.default, FeedColumn)
            },
            columns={
                parameter.name: column_parts(reading, hook, parameter, contents)
                for parameter in hook.parameters
                if isinstance(parameter.default, FeedColumn)
            },
            injected=reading.injected(hook),
            accept=hook.accept,
            sees_body=seen.sees_body,
            metric_kind=hook.metric_kind,
            static=seen.static,
            protocol=getattr(hook.result, "protocol", None),
            owes=hook.result.__name__ if owes and hook.result else None,
            per=hook.per,
        )
    return Blueprint(
        workflow=cls,
        plan=plan,
        network=read_network(reading),
        reflect=tuple(each.reflect for each in protos_of(reading).values() if each.reflect),
        methods=tuple(literal_methods(reading)),
        layers=tuple(
            tuple(hooks[name] for name in layer) for layer in layers(reading.step_order())
        ),
        checks=_of(hooks, StepKind.CHECK),
        metrics=(*_of(hooks, StepKind.METRIC), *map(_vital_hook, vital_metrics(reading))),
        setups=_of(hooks, StepKind.SETUP),
        teardowns=_of(hooks, StepKind.TEARDOWN),
        states=reading.states,
    )


def _vital_hook(vital: VitalMetric) -> Hook:
    return Hook(
        name=vital.name,
        kind=StepKind.METRIC,
        function=vital.reader(),
        is_async=False,
        after=(vital.step,),
        optimized={},
        injected=(vital.step,),
        accept=None,
        sees_body=False,
        metric_kind=vital.kind,
        static=NotStatic.UNKNOWN_SOURCE,
        protocol=None,
        owes=None,
        per=Per.WORKFLOW,
    )


def _of(hooks: Mapping[str, Hook], kind: StepKind) -> tuple[Hook, ...]:
    return tuple(hook for hook in hooks.values() if hook.kind is kind)
