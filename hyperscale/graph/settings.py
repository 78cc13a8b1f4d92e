"""Reads the attributes of a workflow class: `vus`, `duration`, `thresholds` and the others."""

from collections.abc import Collection
from typing import Any

from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.graph.annotations import closure_of
from hyperscale.graph.hooks import Declared
from hyperscale.graph.load_settings import read_load
from hyperscale.graph.reading import Reading
from hyperscale.graph.values import parse_choice, parse_count
from hyperscale.graph.vitals import vital_metrics
from hyperscale.graph.workflow import COMING_ATTRIBUTES, VU_ATTRIBUTES, Workflow
from hyperscale.plan import RECORDED, Connections, Priority, WorkflowPlan
from hyperscale.plan.placement import parse_placement
from hyperscale.plan.thresholds import threshold_plans
from hyperscale.testing.network import NETWORK_OPTIONS, Network

_STREAMS_MOST = 10_000

TAKEN = frozenset(dir(Workflow)) | frozenset(Workflow.__annotations__)
ATTRIBUTES = tuple(
    name
    for name in Workflow.__annotations__
    if name in vars(Workflow) and name != "abstract" and not name.startswith("_")
)
"""The attributes that configure a run."""


def read_settings(reading: Reading, *, vus: object = None, duration: object = None) -> WorkflowPlan:
    """Return a plan with the attributes of the class; `vus` and `duration` replace its own."""
    cls, at = reading.cls, reading.at
    _refuse_unknown(reading)
    load = read_load(reading, vus=vus, duration=duration)
    return WorkflowPlan(
        name=reading.name,
        **load,
        timeout_s=parse_duration_s(cls.timeout, where=at("timeout")),
        grace_s=_parse_grace(cls.grace, where=at("grace")),
        priority=parse_choice(Priority, cls.priority, where=at("priority")),
        connections=parse_choice(Connections, cls.connections, where=at("connections")),
        streams=parse_count(cls.streams, where=at("streams"), most=_STREAMS_MOST),
        sources=len(read_network(reading).bind) or 1,
        tracing=_parse_share(cls.tracing, where=at("tracing")),
        placement=parse_placement(cls.constraints, cls.spread, at=at),
        tags=_parse_tags(cls.tags, where=at("tags")),
        thresholds=threshold_plans(
            cls.thresholds,
            where=at("thresholds"),
            steps=[hook.name for hook in reading.hooks if hook.kind in RECORDED],
            metrics={hook.name: hook.metric_kind for hook in reading.hooks if hook.metric_kind}
            | {vital.name: vital.kind for vital in vital_metrics(reading)},
            is_open=load["is_open"],
        ),
        allow_failures=_parse_flag(cls.allow_failures, where=at("allow_failures")),
    )


def read_network(reading: Reading) -> Network:
    """Return how connections of the workflow reach their servers. Raises InputError."""
    options = {name: getattr(reading.cls, name) for name in NETWORK_OPTIONS}
    return Network().with_options(options, reading.at)


def _parse_grace(value: object, *, where: str) -> float | None:
    if isinstance(value, str) and value.strip().lower() == "longest":
        return None
    try:
        return parse_duration_s(value, where=where, least_s=0.0)
    except InputError as error:
        raise InputError(error.message, hint=f'{error.hint}, or as "longest"') from error


def _parse_share(value: object, *, where: str) -> float:
    """Return a share of 0 to 1, given as a number or in percent."""
    hint = 'write "1%", or 0.01'
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            share = float(value.strip().removesuffix("%")) / 100
        elif isinstance(value, int | float) and not isinstance(value, bool):
            share = float(value)
        else:
            raise ValueError
    except ValueError:
        raise InputError(f"{where}: {value!r} is not a share", hint=hint) from None
    if not 0.0 <= share <= 1.0:
        raise InputError(f"{where}: {value!r} is not within 0% and 100%", hint=hint)
    return share


def _parse_flag(value: object, *, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}: {value!r} is neither True nor False")
    return value


def _parse_tags(value: object, *, where: str) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise InputError(f"{where}: {value!r} is not a list of texts", hint='write ["smoke"]')
    for tag in value:
        if not isinstance(tag, str) or not tag.strip():
            raise InputError(f"{where}: {tag!r} is not a text", hint='write ["smoke"]')
    # A set has no order, and the same class must always give the same plan.
    return tuple(sorted(value) if isinstance(value, set | frozenset) else value)


def _refuse_unknown(reading: Reading) -> None:
    for name, value in own_attributes(reading).items():
        if name in VU_ATTRIBUTES:
            near = {"vu": "vus", "iteration": "iterations"}.get(name)
            raise InputError(
                f"{reading.at(name)}: {name!r} is what a run gives to every virtual user",
                hint="use another name" + (f"; the setting is {near!r}" if near else ""),
            )
        if isinstance(value, Declared):
            if name in TAKEN:
                raise InputError(
                    f"{reading.at(name)}: a @{value.decorator}() cannot be called {name!r}, "
                    "which every workflow has already",
                    hint="rename the method",
                )
        elif hidden := _hidden_hook(value):
            raise InputError(
                f"{reading.at(name)}: another decorator hides its @{hidden.decorator}()",
                hint=f"put @{hidden.decorator}() above it",
            )
        elif name in COMING_ATTRIBUTES and not is_method(value):
            raise InputError(
                f"{reading.at(name)}: {name!r} is not supported yet",
                hint="remove it: it has no effect",
            )


def _hidden_hook(value: object) -> Declared | None:
    """Return the hook inside a function that another decorator made of it."""
    inner = (getattr(value, "__wrapped__", None), *closure_of(value).values())
    return next((one for one in inner if isinstance(one, Declared)), None)


def own_attributes(reading: Reading) -> dict[str, Any]:
    """Return the attributes of a class and its bases, without those of `Workflow`."""
    attributes: dict[str, Any] = {}
    for base in reversed(reading.cls.__mro__):
        if base not in (object, Workflow):
            attributes.update(vars(base))
    return attributes


def is_method(value: object) -> bool:
    """Return True for what reads as code: functions, properties and their kin."""
    return callable(value) or isinstance(value, property | staticmethod | classmethod)
