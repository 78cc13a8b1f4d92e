"""Reads the attributes of a workflow class: `vus`, `duration`, `thresholds` and the others."""

import re
from collections.abc import Collection
from enum import Enum
from typing import Any, TypeVar

from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.graph.annotations import closure_of
from hyperscale.graph.hooks import Declared
from hyperscale.graph.reading import Reading
from hyperscale.graph.workflow import COMING_ATTRIBUTES, VU_ATTRIBUTES, Workflow
from hyperscale.plan import RECORDED, Connections, Priority, WorkflowPlan
from hyperscale.plan.thresholds import threshold_plans

E_ = TypeVar("E_", bound=Enum)

# Far more than any cluster runs, but low enough to catch a typing error.
VUS_MAX = 10_000_000
ITERATIONS_MAX = 2**53
# Bounded, because Python refuses to parse numbers of many thousands of digits.
_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")

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
    vus_at, vus = (at("vus"), cls.vus) if vus is None else ("--vus", vus)
    duration_at = at("duration") if duration is None else "--duration"
    return WorkflowPlan(
        name=reading.name,
        vus=parse_count(vus, where=vus_at, most=VUS_MAX),
        duration_s=parse_duration_s(
            cls.duration if duration is None else duration, where=duration_at
        ),
        timeout_s=parse_duration_s(cls.timeout, where=at("timeout")),
        grace_s=_parse_grace(cls.grace, where=at("grace")),
        priority=_parse_choice(Priority, cls.priority, where=at("priority")),
        interval_s=(
            None if cls.interval is None else parse_duration_s(cls.interval, where=at("interval"))
        ),
        iterations=(
            None
            if cls.iterations is None
            else parse_count(cls.iterations, where=at("iterations"), most=ITERATIONS_MAX)
        ),
        connections=_parse_choice(Connections, cls.connections, where=at("connections")),
        tags=_parse_tags(cls.tags, where=at("tags")),
        thresholds=threshold_plans(
            cls.thresholds,
            where=at("thresholds"),
            steps=[hook.name for hook in reading.hooks if hook.kind in RECORDED],
            metrics={hook.name: hook.metric_kind for hook in reading.hooks if hook.metric_kind},
        ),
        allow_failures=_parse_flag(cls.allow_failures, where=at("allow_failures")),
    )


def _parse_grace(value: object, *, where: str) -> float | None:
    if isinstance(value, str) and value.strip().lower() == "longest":
        return None
    try:
        return parse_duration_s(value, where=where, least_s=0.0)
    except InputError as error:
        raise InputError(error.message, hint=f'{error.hint}, or as "longest"') from error


def parse_count(value: object, *, where: str, most: int) -> int:
    """Return a whole number of at least 1, which may be text from a command line."""
    number = value
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise InputError(f"{where}: {value!r} is not a whole number", hint="such as 10")
    if not 1 <= number <= most:
        raise InputError(f"{where}: {value!r} must be at least 1 and at most {most}")
    return number


def _parse_choice(options: type[E_], value: object, *, where: str) -> E_:
    if isinstance(value, options):
        return value
    if isinstance(value, str):
        for option in options:
            if option.value == value.strip().lower():
                return option
    choices = ", ".join(f'"{option.value}"' for option in options)
    raise InputError(f"{where}: {value!r} is unknown", hint=f"choose from {choices}")


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
