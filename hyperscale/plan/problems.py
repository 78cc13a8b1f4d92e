"""Checks of a plan that a cluster received. Our own clients check more, before they submit it."""

import math
from collections.abc import Iterator

from hyperscale.errors import InputError
from hyperscale.plan.model import Plan, WorkflowPlan
from hyperscale.plan.placement import placement_problem
from hyperscale.plan.shapes import STAGES_MAX, TARGET_MAX
from hyperscale.plan.thresholds import thresholds_of


def plan_problem(plan: Plan) -> str | None:
    """Return why a workflow of the plan can never run, or None."""
    return next((text for workflow in plan.workflows for text in _problems(workflow)), None)


def _problems(plan: WorkflowPlan) -> Iterator[str]:
    yield from (f"{plan.name} {problem}" for problem in _load_problems(plan))
    try:
        thresholds_of(plan)
    except InputError as error:
        yield error.message


def _load_problems(plan: WorkflowPlan) -> Iterator[str]:
    if plan.vus < 1:
        yield f"has {plan.vus} virtual users"
    if plan.iterations is not None and plan.iterations < 1:
        yield f"has {plan.iterations} iterations"
    if plan.iterations_per_vu is not None and plan.iterations_per_vu < 1:
        yield f"has {plan.iterations_per_vu} iterations of each virtual user"
    times_s = {"duration": plan.duration_s, "timeout": plan.timeout_s}
    if plan.interval_s is not None:
        times_s["interval"] = plan.interval_s
    for what, seconds in times_s.items():
        if not (math.isfinite(seconds) and seconds > 0):
            yield f"has a {what} of {seconds:g} s"
    least_s, most_s = plan.think_s or (0.0, 0.0)
    if not (0 <= least_s <= most_s and math.isfinite(most_s)):
        yield f"has pauses of {least_s:g} to {most_s:g} s"
    if not 0 <= plan.warmup_s < plan.duration_s:
        yield f"has a warm-up of {plan.warmup_s:g} s"
    if (problem := placement_problem(plan.placement)) is not None:
        yield f"has {problem}"
    yield from _stage_problems(plan)


def _stage_problems(plan: WorkflowPlan) -> Iterator[str]:
    if plan.is_open and not plan.stages:
        yield "has no rate"
    if len(plan.stages) > STAGES_MAX:
        yield f"has {len(plan.stages):,} stages"
    for stage in plan.stages:
        is_sound = math.isfinite(stage.duration_s) and stage.duration_s >= 0
        if not (is_sound and 0 <= stage.target <= TARGET_MAX):
            yield f"has a stage of {stage.duration_s:g} s to {stage.target:g}"
    if not plan.is_open and any(stage.target > plan.vus for stage in plan.stages):
        yield f"has stages of more than its {plan.vus:,} virtual users"
