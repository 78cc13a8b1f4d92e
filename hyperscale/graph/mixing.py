"""Splits the load of a `Mix`, or of `--vus`, over the workflows that have a weight."""

from collections.abc import Sequence

import msgspec

from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.graph.load_settings import MAX_VUS, VUS_MAX, parse_rate, parse_stages
from hyperscale.graph.values import parse_count
from hyperscale.plan import StagePlan, WorkflowPlan
from hyperscale.plan.shapes import constant
from hyperscale.plan.share import apportion
from hyperscale.testing.mix import Mix

_HINT = "write mix = Mix(vus=200), Mix(rate='500/s') or Mix(stages=[...]), or give --vus"


def split_mix(
    workflows: Sequence[WorkflowPlan],
    mix: Mix | None,
    *,
    where: str,
    vus: object = None,
    duration: object = None,
) -> list[WorkflowPlan]:
    """Return the workflows with their share of the total; those without a weight as they are.

    `vus` and `duration` are those of the command line.
    """
    weighted = [workflow for workflow in workflows if workflow.weight is not None]
    if not weighted:
        if mix is not None:
            raise InputError(
                f"{where}: no workflow has a weight", hint="add weight = 1 to those that share it"
            )
        return list(workflows)
    total = _parse_total(mix, [workflow.name for workflow in weighted], where=where, vus=vus)
    weights = [workflow.weight or 0.0 for workflow in weighted]
    shared = {}
    for place, workflow in enumerate(weighted):
        duration_s = workflow.duration_s
        if mix is not None and mix.duration is not None and duration is None:
            duration_s = parse_duration_s(mix.duration, where=f"{where}.duration")
        changed = _share(workflow, total, weights, place, duration_s)
        if changed.vus < 1 or (changed.stages and not any(s.target for s in changed.stages)):
            raise InputError(
                f"{where}: the total is too small: {workflow.name} has none of it",
                hint="raise the total, or the weight",
            )
        if changed.warmup_s >= changed.duration_s:
            raise InputError(
                f"{where}: the warm-up of {workflow.name} is as long as the workflow",
                hint="make the warm-up shorter, or the mix longer",
            )
        shared[workflow.name] = changed
    return [shared.get(workflow.name, workflow) for workflow in workflows]


class _Total(msgspec.Struct, frozen=True, kw_only=True):
    vus: int  # users, or the most of them at once
    rate: float | None = None
    stages: tuple[StagePlan, ...] = ()
    is_open: bool = False


def _parse_total(mix: Mix | None, names: Sequence[str], *, where: str, vus: object) -> _Total:
    mix = mix or Mix()
    given = [name for name in ("vus", "rate", "stages") if getattr(mix, name) is not None]
    if vus is not None and given in ([], ["vus"]):
        return _Total(vus=parse_count(vus, where="--vus", most=VUS_MAX))
    if vus is not None:
        raise InputError(f"--vus: the mix has {given[0]}", hint=f"change the {given[0]} of the mix")
    if not given:
        raise InputError(f"{where}: {' and '.join(names)} share no total", hint=_HINT)
    if len(given) > 1:
        raise InputError(f"{where}: {' and '.join(given)} contradict each other", hint=_HINT)
    if "stages" in given and mix.duration is not None:
        raise InputError(
            f"{where}: duration and stages contradict each other",
            hint="the stages say how long the workflows run",
        )
    if mix.vus is not None:
        if mix.max_vus is not None:
            raise InputError(f"{where}: max_vus needs a rate", hint="remove it")
        return _Total(vus=parse_count(mix.vus, where=f"{where}.vus", most=VUS_MAX))
    most = MAX_VUS if mix.max_vus is None else mix.max_vus
    users = parse_count(most, where=f"{where}.max_vus", most=VUS_MAX)
    if mix.rate is not None:
        return _Total(vus=users, rate=parse_rate(mix.rate, where=f"{where}.rate"), is_open=True)
    stages, is_open = parse_stages(mix.stages, where=f"{where}.stages")
    return _Total(vus=users, stages=stages, is_open=is_open)


def _share(
    workflow: WorkflowPlan,
    total: _Total,
    weights: Sequence[float],
    place: int,
    duration_s: float,
) -> WorkflowPlan:
    fraction = weights[place] / sum(weights)
    vus = apportion(total.vus, weights)[place]
    stages: tuple[StagePlan, ...] = ()
    if total.rate is not None:
        stages = constant(total.rate * fraction, duration_s)
    elif total.stages:
        stages = tuple(
            StagePlan(
                duration_s=stage.duration_s,
                target=stage.target * fraction
                if total.is_open
                else float(apportion(int(stage.target), weights)[place]),
            )
            for stage in total.stages
        )
        duration_s = sum(stage.duration_s for stage in stages)
        if not total.is_open:
            vus = int(max(stage.target for stage in stages))
    return msgspec.structs.replace(
        workflow, vus=vus, duration_s=duration_s, stages=stages, is_open=total.is_open
    )
