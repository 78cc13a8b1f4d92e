"""Turns workflow classes into a plan: data only, so managers never import a test.

`build_plan` validates every class, applies the overrides of the command line and selects the
workflows that run.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from hyperscale.errors import InputError
from hyperscale.graph.analysis import analyse, literal_urls
from hyperscale.graph.columns import column_parts, hosts_of
from hyperscale.graph.feeds import plan_feeds
from hyperscale.graph.mixing import split_mix
from hyperscale.graph.protos import compile_protos
from hyperscale.graph.reading import ReadHook, Reading, ReadParameter, display_path, read
from hyperscale.graph.settings import read_network, read_settings
from hyperscale.graph.static_steps import first_obstacle
from hyperscale.graph.validation import validate
from hyperscale.graph.vitals import vital_metrics
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import (
    RECORDED,
    MetricPlan,
    Plan,
    StateKind,
    StatePlan,
    StepPlan,
    ThresholdPlan,
    WorkflowPlan,
)
from hyperscale.plan.dag import ancestors, layers
from hyperscale.plan.thresholds import Threshold, parse_threshold
from hyperscale.testing import File, OptimizedArg
from hyperscale.testing.arguments import (
    CLIENT_SCHEMES,
    FileContent,
    FilesValue,
    UrlValue,
    split_url,
)
from hyperscale.testing.feed import FeedColumn
from hyperscale.testing.graphql import DocumentValue, GraphQLSchema
from hyperscale.testing.mix import Mix

_THRESHOLD = re.compile(
    r"(?:(?P<workflow>\w+):)?(?P<name>[^<>=:]+?)\s*(?P<limit>[<>=].*)", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options of the command line that replace attributes of the classes; None and empty do not."""

    vus: object = None
    duration: object = None
    only: Sequence[str] = ()
    thresholds: Sequence[str] = ()  # as "Shop:pay.p99<250ms"
    compiles: bool = True  # False: static steps run in Python too


def build_plan(
    file: str | Path,
    classes: Sequence[type[Workflow]],
    overrides: Overrides | None = None,
    *,
    mix: Mix | None = None,
) -> Plan:
    """Return the plan of `classes`. Raises InputError if one of them is not valid.

    With `only`, the plan has the named workflows and everything they depend on. Workflows with a
    weight share the load of `mix`.
    """
    overrides = overrides or Overrides()
    readings = [read(cls) for cls in classes]
    warnings = validate(readings)
    workflows = [plan_workflow(reading, overrides) for reading in readings]
    if overrides.only:
        chosen, added = _choose(workflows, overrides.only)
        warnings += added
        workflows = [workflow for workflow in workflows if workflow.name in chosen]
    workflows = split_mix(
        workflows,
        mix,
        where=f"{display_path(file)}: mix",
        vus=overrides.vus,
        duration=overrides.duration,
    )
    given: set[tuple[str, str]] = set()
    for text in overrides.thresholds:
        owner, threshold = _find_threshold(workflows, text)
        if (owner.name, threshold.name) in given:
            raise InputError(
                f"--threshold {text!r}: {owner.name} was given another {threshold.name!r}",
                hint="give each threshold once",
            )
        given.add((owner.name, threshold.name))
        changed = _with_threshold(owner, threshold)
        workflows = [changed if workflow is owner else workflow for workflow in workflows]
    return Plan(file=str(file), workflows=tuple(workflows), warnings=tuple(warnings))


def plan_workflow(reading: Reading, overrides: Overrides | None = None) -> WorkflowPlan:
    """Return the plan of one class, whose reading must be valid."""
    overrides = overrides or Overrides()
    settings = read_settings(reading, vus=overrides.vus, duration=overrides.duration)
    order = layers(reading.step_order())
    level = {name: index for index, layer in enumerate(order) for name in layer}
    feeds, feed_files = plan_feeds(reading)
    files = _files(reading) | feed_files
    check_documents(reading, files)
    steps = []
    for hook in reading.hooks:
        if hook.kind is None:
            continue
        layer = level.get(hook.name, max((level[name] for name in hook.after), default=0))
        steps.append(
            StepPlan(
                name=hook.name,
                kind=hook.kind,
                after=hook.after,
                layer=layer,
                per=hook.per,
                where=hook.where.partition(": ")[0],
                weight=hook.weight,
            )
        )
    plan = msgspec.structs.replace(
        settings,
        is_test=reading.is_test,
        depends=reading.depends,
        steps=tuple(steps),
        metrics=tuple(
            MetricPlan(name=hook.name, kind=hook.metric_kind)
            for hook in reading.hooks
            if hook.metric_kind is not None
        )
        + tuple(MetricPlan(name=vital.name, kind=vital.kind) for vital in vital_metrics(reading)),
        states=tuple(_plan_state(hook) for hook in reading.states),
        hosts=_hosts(reading, files),
        descriptors=compile_protos(reading),
        files=files,
        feeds=feeds,
    )
    return msgspec.structs.replace(plan, in_python=_why_in_python(reading, plan, overrides))


def _why_in_python(reading: Reading, plan: WorkflowPlan, overrides: Overrides) -> str:
    if not overrides.compiles:
        return "the run was started with --no-compile"
    found = analyse(reading)
    obstacle = first_obstacle(plan, {name: found[name].static for name in reading.step_order()})
    return "" if obstacle is None else obstacle[1]


def _plan_state(hook: ReadHook) -> StatePlan:
    assert hook.state is not None
    uses = hook.state is StateKind.USE
    return StatePlan(
        name=hook.name,
        kind=hook.state,
        workflows=hook.workflows,
        keys=tuple(p.name for p in hook.parameters) if uses else (hook.name,),
        required=tuple(p.name for p in hook.parameters if p.required) if uses else (),
        is_list=hook.is_list and not uses,
    )


_OF = "\n"
"""Between the path of a `Directory`, or a pattern, and that of one of its files."""


def wrap_default(
    hook: ReadHook, parameter: ReadParameter, files: Mapping[str, str | bytes]
) -> OptimizedArg:
    """Return the read-only value of a request part. Raises InputError naming the parameter.

    `files` has the path or the content of each `File` default, by the path as written.
    """
    assert parameter.optimized is not None
    value = parameter.default
    if parameter.optimized is File and isinstance(value, str | Path):
        found = files.get(str(value), value)
        value = FileContent.of(value, found) if isinstance(found, bytes) else found
    try:
        if issubclass(parameter.optimized, FilesValue):
            members = _members(value, files)
            kind = cast(type[FilesValue], parameter.optimized)
            return kind.of(members) if members else kind.wrap(value)
        return parameter.optimized.wrap(value)
    except InputError as error:
        raise InputError(
            f"{hook.where}: {parameter.name}: {error.message}", hint=error.hint
        ) from error


def _members(value: object, files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    """Return the files of a `Directory` or `FileGlob` by path; `files` are named as in `_files`."""
    prefix = f"{value}{_OF}"
    return {
        name.removeprefix(prefix): found if isinstance(found, bytes) else Path(found).read_bytes()
        for name, found in files.items()
        if name.startswith(prefix)
    }


def _files(reading: Reading) -> dict[str, str]:
    """Return the paths of files that defaults name: beside the test, else in the working directory.

    A file of a `Directory` or `FileGlob` has both names, that of the default first.
    """
    beside = Path(reading.file).resolve().parent
    found = {}
    for hook in reading.hooks:
        for parameter in hook.parameters:
            kind, default = parameter.optimized, parameter.default
            if kind is File and isinstance(default, str | Path):
                near = beside / default
                path = near if near.exists() else Path(default)
                found[str(default)] = os.path.abspath(path)
            elif kind is not None and issubclass(kind, FilesValue):
                try:
                    members = kind.find(default, beside)
                except InputError as error:
                    raise InputError(
                        f"{hook.where}: {parameter.name}: {error.message}", hint=error.hint
                    ) from error
                found |= {f"{default}{_OF}{name}": path for name, path in members.items()}
    return found


def check_documents(reading: Reading, files: Mapping[str, str]) -> None:
    """Validate the GraphQL documents of a class against the schemas that the class names."""
    schemas = {
        name: value
        for base in reversed(reading.cls.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, GraphQLSchema)
    }
    documents = {
        f"{hook.where}: {parameter.name}": str(wrap_default(hook, parameter, files))
        for hook in reading.hooks
        for parameter in hook.parameters
        if parameter.optimized is not None and issubclass(parameter.optimized, DocumentValue)
    }
    for name, schema in schemas.items():
        beside = Path(reading.file).resolve().parent / schema.file
        path = beside if beside.exists() else Path(schema.file)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{reading.at(name)}: {schema.file}: {reason}") from error
        if problems := schema.problems(text, documents):
            raise InputError(problems[0], hint=f"{schema.file} is the schema")


def _hosts(reading: Reading, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of literal URLs. Raises InputError for a request part that is wrong."""
    hosts: dict[str, None] = {}
    for where, client, url in literal_urls(reading):
        try:
            split_url(url, CLIENT_SCHEMES[client])
            hosts[UrlValue.wrap(url).authority] = None
        except InputError as error:
            raise InputError(f"{where}: {error.message}", hint=error.hint) from error
    for hook in reading.hooks:
        for parameter in hook.parameters:
            if isinstance(parameter.default, FeedColumn):
                parts = column_parts(reading, hook, parameter, files).parts
                hosts |= dict.fromkeys(hosts_of(parts))
            elif parameter.optimized is not None:
                value = wrap_default(hook, parameter, files)
                if isinstance(value, UrlValue):
                    hosts[value.authority] = None
    network = read_network(reading)
    return tuple({dialled: None for host in hosts if (dialled := network.dialled(host))})


def _find_threshold(workflows: Sequence[WorkflowPlan], text: str) -> tuple[WorkflowPlan, Threshold]:
    """Return a threshold of the command line, and the one workflow that can have it."""
    where = f"--threshold {text!r}"
    match = _THRESHOLD.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{where}: not a threshold", hint='as "pay.p99<250ms" or "errors<1%"')
    owner, name, limit = match["workflow"], match["name"], match["limit"]
    named = [workflow for workflow in workflows if owner in (None, workflow.name)]
    if not named:
        known = ", ".join(workflow.name for workflow in workflows)
        raise InputError(f"{where}: no workflow is called {owner!r}", hint=f"there is {known}")
    fitting, problem = [], None
    for workflow in named:
        try:
            fitting.append((workflow, _parse_flag(workflow, name, limit, where=where)))
        except InputError as error:
            problem = problem or error
    if problem is not None and not fitting:
        raise problem
    if len(fitting) > 1:
        names = ", ".join(workflow.name for workflow, _ in fitting)
        raise InputError(
            f"{where}: {names} could have it", hint=f'name one: "{fitting[0][0].name}:{text}"'
        )
    return fitting[0]


def _with_threshold(workflow: WorkflowPlan, threshold: Threshold) -> WorkflowPlan:
    """Return the workflow with a further threshold, or another limit for one that it has."""
    name, limit = threshold.name, threshold.limit
    thresholds = {each.name: each for each in workflow.thresholds}
    # A replaced threshold keeps its place, and whether it aborts the run.
    plan = thresholds.get(name, ThresholdPlan(name=name, limit=limit))
    thresholds[name] = msgspec.structs.replace(plan, limit=limit)
    return msgspec.structs.replace(workflow, thresholds=tuple(thresholds.values()))


def _parse_flag(workflow: WorkflowPlan, name: str, limit: str, *, where: str) -> Threshold:
    return parse_threshold(
        name,
        limit,
        where=where,
        steps=[step.name for step in workflow.steps if step.kind in RECORDED],
        metrics={metric.name: metric.kind for metric in workflow.metrics},
        is_open=workflow.is_open,
    )


def _choose(workflows: Sequence[WorkflowPlan], only: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the chosen workflows and their dependencies, and a warning for each dependency."""
    known = {workflow.name: workflow.depends for workflow in workflows}
    for name in only:
        if name not in known:
            raise InputError(
                f"--only {name}: no workflow of that name", hint=f"the file has {', '.join(known)}"
            )
    chosen = set(only)
    added = []
    for name in only:
        for other in sorted(ancestors(known, name) - chosen):
            added.append(f"{name} depends on {other}: it runs too")
            chosen.add(other)
    return chosen, added
