"""Reads the attributes that shape the load: users, rates, stages, iterations and pauses.

One place knows which of them contradict each other, and says so where the user wrote them.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

from hyperscale.config import DURATION_S_MAX, format_duration, parse_duration_s
from hyperscale.errors import InputError
from hyperscale.graph.reading import Reading
from hyperscale.graph.values import parse_choice, parse_count, parse_weight
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import ArrivalKind
from hyperscale.plan.shapes import STAGES_MAX, TARGET_MAX, StagePlan, constant

VUS_MAX = RATE_MAX = TARGET_MAX  # low enough to catch a typing error
ITERATIONS_MAX = 2**53
MAX_VUS = 1000
"""The most iterations of an open workflow that run at once, unless it says otherwise."""

_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*/\s*(s|sec|second|m|min|minute|h|hour)")
_PER_S = {"s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0}
_PER_S |= {"h": 3600.0, "hour": 3600.0}
_PER_VU = re.compile(r"(\d{1,20})\s*/\s*vu")
_RATE_HINT = 'write it as "500/s", "30000/min" or "7200/h"'
_STAGES_HINT = 'write stages = [("1m", 100), ("5m", 100), ("30s", 0)], or rates such as "500/s"'


class LoadFields(TypedDict):
    """The fields of a `WorkflowPlan` that shape its load."""

    vus: int
    duration_s: float
    interval_s: float | None
    think_s: tuple[float, float] | None
    iterations: int | None
    iterations_per_vu: int | None
    stages: tuple[StagePlan, ...]
    is_open: bool
    arrivals: ArrivalKind
    warmup_s: float
    weight: float | None


class _Clash(NamedTuple):
    one: str
    other: str
    remedy: str


_CLASHES = (
    _Clash("rate", "stages", "put the rate into the stages: stages = [('1m', '500/s')]"),
    _Clash("rate", "vus", "with a rate, max_vus is the most users that run at once"),
    _Clash("rate", "interval", "a rate starts iterations by itself: remove the interval"),
    _Clash("rate", "think", "a rate starts iterations by itself: remove the pause"),
    _Clash("rate", "iterations", "a rate and a duration say how many iterations there are"),
    _Clash("stages", "vus", "the stages say how many users there are"),
    _Clash("stages", "duration", "the stages say how long the workflow runs"),
    _Clash("stages", "iterations", "the stages say how long the workflow runs"),
    _Clash("weight", "vus", "a workflow with a weight shares the users of the mix"),
    _Clash("weight", "rate", "a workflow with a weight shares the rate of the mix"),
    _Clash("weight", "stages", "a workflow with a weight shares the stages of the mix"),
    _Clash("weight", "iterations", "a workflow with a weight shares the load of the mix"),
    _Clash("interval", "think", "choose one: an interval is from start to start, think a pause"),
)
_OPEN_CLASHES = (
    _Clash("stages", "interval", "a rate starts iterations by itself: remove the interval"),
    _Clash("stages", "think", "a rate starts iterations by itself: remove the pause"),
)
_OPEN_ONLY = ("max_vus", "arrivals")
_SHAPES = ("rate", "stages", "think", "warmup", "max_vus", "arrivals", "weight")


def read_load(reading: Reading, *, vus: object = None, duration: object = None) -> LoadFields:
    """Return the load of a class; `vus` and `duration` of the command line replace its own."""
    cls, at = reading.cls, reading.at
    given = _given(cls)
    _refuse(reading, given, has_vus=vus is not None, has_duration=duration is not None)
    if "stages" in given:
        stages, is_open = parse_stages(cls.stages, where=at("stages"))
        if is_open:
            _refuse_clashes(reading, given, _OPEN_CLASHES)
        duration_s = sum(stage.duration_s for stage in stages)
    else:
        duration_at = at("duration") if duration is None else "--duration"
        written = cls.duration if duration is None else duration
        duration_s = parse_duration_s(written, where=duration_at)
        is_open = cls.rate is not None
        stages = constant(parse_rate(cls.rate, where=at("rate")), duration_s) if is_open else ()
    for name in _OPEN_ONLY:
        if name in given and not is_open:
            raise InputError(
                f"{at(name)}: {name} needs a rate", hint='add rate = "500/s", or remove it'
            )
    if is_open:
        most = MAX_VUS if cls.max_vus is None else cls.max_vus
        users = parse_count(most, where=at("max_vus"), most=VUS_MAX)
    elif stages:
        users = max(int(stage.target) for stage in stages)
    else:
        vus_at, value = (at("vus"), cls.vus) if vus is None else ("--vus", vus)
        users = parse_count(value, where=vus_at, most=VUS_MAX)
    iterations, per_vu = _parse_iterations(cls.iterations, where=at("iterations"))
    return LoadFields(
        vus=users,
        duration_s=duration_s,
        interval_s=(
            None if cls.interval is None else parse_duration_s(cls.interval, where=at("interval"))
        ),
        think_s=None if cls.think is None else _parse_think(cls.think, where=at("think")),
        iterations=iterations,
        iterations_per_vu=per_vu,
        stages=stages,
        is_open=is_open,
        arrivals=parse_choice(ArrivalKind, cls.arrivals, where=at("arrivals")),
        warmup_s=_parse_warmup(cls.warmup, duration_s, where=at("warmup")),
        weight=None if cls.weight is None else parse_weight(cls.weight, where=at("weight")),
    )


def _given(cls: type[Workflow]) -> dict[str, Any]:
    """Return the settings that the class or one of its bases sets; None sets nothing."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base not in (object, Workflow):
            found.update(vars(base))
    return {name: value for name, value in found.items() if value is not None}


def _refuse(reading: Reading, given: dict[str, Any], *, has_vus: bool, has_duration: bool) -> None:
    """Refuse methods with the names of settings, and settings and flags that contradict others."""
    for name in _SHAPES:
        if callable(given.get(name)):
            raise InputError(
                f"{reading.at(name)}: {name!r} is a setting, not a method",
                hint="rename the method",
            )
    if not reading.is_test:
        _refuse_shape_of_actions(reading, given)
    _refuse_clashes(reading, given, _CLASHES)
    hint = "change the class, or choose other workflows with --only"
    if has_vus and ("rate" in given or "stages" in given):
        what = "a rate" if "rate" in given else "stages"
        raise InputError(
            f"--vus: {reading.name} has {what}, so that the number of users follows from it",
            hint=hint,
        )
    if has_duration and "stages" in given:
        raise InputError(
            f"--duration: {reading.name} has stages, which say how long it runs", hint=hint
        )


def _refuse_clashes(reading: Reading, given: dict[str, Any], clashes: Sequence[_Clash]) -> None:
    for clash in clashes:
        if clash.one in given and clash.other in given:
            raise InputError(
                f"{reading.at(clash.other)}: {clash.other} and {clash.one} contradict each other",
                hint=clash.remedy,
            )


def _refuse_shape_of_actions(reading: Reading, given: dict[str, Any]) -> None:
    for name in _SHAPES:
        if name in given:
            raise InputError(
                f"{reading.at(name)}: {reading.name} measures nothing, so its steps run once and "
                f"{name} has no meaning",
                hint=f"remove {name}, or let a @step() return a response",
            )


def parse_rate(value: object, *, where: str, least: float | None = None) -> float:
    """Return arrivals per second, above 0 or at least `least`."""
    match = _RATE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None:
        raise InputError(f"{where}: {value!r} is not a rate", hint=_RATE_HINT)
    rate = float(match[1]) / _PER_S[match[2]]
    if not (rate > 0 if least is None else rate >= least) or rate > RATE_MAX:
        raise InputError(
            f"{where}: {value!r} must be above 0 and at most {RATE_MAX:,}/s", hint=_RATE_HINT
        )
    return rate


def parse_stages(value: object, *, where: str) -> tuple[tuple[StagePlan, ...], bool]:
    """Return the stages, and True if their targets are rates."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise InputError(f"{where}: {value!r} is not a list of stages", hint=_STAGES_HINT)
    if len(value) > STAGES_MAX:
        raise InputError(f"{where}: {len(value):,} stages are more than {STAGES_MAX:,}")
    stages: list[StagePlan] = []
    kinds: set[bool] = set()
    for number, stage in enumerate(value, 1):
        stage_at = f"{where}: stage {number}"
        is_pair = isinstance(stage, Sequence) and not isinstance(stage, str | bytes)
        if not is_pair or len(stage) != 2:
            raise InputError(
                f"{stage_at}: {stage!r} is not a duration and a target", hint=_STAGES_HINT
            )
        duration_s = parse_duration_s(stage[0], where=stage_at, least_s=0.0)
        is_rate = isinstance(stage[1], str)
        kinds.add(is_rate)
        if is_rate:
            target = parse_rate(stage[1], where=stage_at, least=0.0)
        else:
            target = _parse_target(stage[1], where=stage_at)
        stages.append(StagePlan(duration_s=duration_s, target=target))
    if len(kinds) > 1:
        raise InputError(
            f"{where}: some targets are users and some are rates", hint="choose one for all stages"
        )
    total_s = sum(stage.duration_s for stage in stages)
    if not 0 < total_s <= DURATION_S_MAX:
        raise InputError(
            f"{where}: all stages together last {format_duration(total_s)}",
            hint="it must be above 0 and at most 30 days",
        )
    if not any(stage.target for stage in stages):
        raise InputError(f"{where}: there is no load: every target is 0", hint=_STAGES_HINT)
    return tuple(stages), kinds == {True}


def _parse_target(value: object, *, where: str) -> float:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not 0 <= value <= VUS_MAX:  # type: ignore[operator]  # it is an int here
        raise InputError(
            f"{where}: {value!r} is neither a number of users (0 to {VUS_MAX:,}) nor a rate",
            hint=_STAGES_HINT,
        )
    return float(value)  # type: ignore[arg-type]  # as above


def _parse_think(value: object, *, where: str) -> tuple[float, float]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != 2:
            raise InputError(
                f"{where}: {value!r} is not a range", hint='write think = ("1s", "3s")'
            )
        least_s, most_s = (parse_duration_s(each, where=where, least_s=0.0) for each in value)
        if least_s > most_s:
            raise InputError(f"{where}: {value!r} has its longest pause first")
        return least_s, most_s
    pause_s = parse_duration_s(value, where=where)
    return pause_s, pause_s


def _parse_iterations(value: object, *, where: str) -> tuple[int | None, int | None]:
    """Return the iterations of all users together, and those of each user."""
    if value is None:
        return None, None
    match = _PER_VU.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is not None:
        return None, parse_count(match[1], where=where, most=ITERATIONS_MAX)
    try:
        return parse_count(value, where=where, most=ITERATIONS_MAX), None
    except InputError as error:
        hint = 'a number for all users together, such as 1000, or "10/vu" for each'
        raise InputError(error.message, hint=hint) from error


def _parse_warmup(value: object, duration_s: float, *, where: str) -> float:
    if value is None:
        return 0.0
    warmup_s = parse_duration_s(value, where=where, least_s=0.0)
    if warmup_s >= duration_s:
        raise InputError(
            f"{where}: the warm-up of {format_duration(warmup_s)} leaves nothing of the "
            f"{format_duration(duration_s)} to measure",
            hint="make it shorter than the workflow",
        )
    return warmup_s
