"""Checks of a plan that a cluster received. Our own clients check more, before they submit it."""

import math

from hyperscale.errors import InputError
from hyperscale.plan.model import Plan, WorkflowPlan
from hyperscale.plan.thresholds import thresholds_of


def plan_problem(plan: Plan) -> str | None:
    """Return why a workflow of the plan can never run, or None."""
    return next(filter(None, map(_workflow_problem, plan.workflows)), None)


def _workflow_problem(plan: WorkflowPlan) -> str | None:
    if plan.vus < 1:
        return f"{plan.name} has {plan.vus} virtual users"
    if plan.iterations is not None and plan.iterations < 1:
        return f"{plan.name} has {plan.iterations} iterations"
    for what, seconds in (("duration", plan.duration_s), ("timeout", plan.timeout_s)):
        if not (math.isfinite(seconds) and seconds > 0):
            return f"{plan.name} has a {what} of {seconds:g} s"
    try:
        thresholds_of(plan)
    except InputError as error:
        return error.message
    return None
