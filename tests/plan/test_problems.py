"""What a manager refuses of a plan that no client of ours has made."""

from typing import Any

import msgspec
import pytest

from hyperscale.plan import Plan, StepKind, StepPlan, ThresholdPlan, WorkflowPlan
from hyperscale.plan.problems import plan_problem

GOOD = WorkflowPlan(
    name="Load",
    vus=1,
    duration_s=60.0,
    timeout_s=30.0,
    steps=(StepPlan(name="hit", kind=StepKind.TEST),),
    thresholds=(ThresholdPlan(name="hit.p99", limit="<1s"),),
)


def problem(**changes: Any) -> str | None:
    bad = msgspec.structs.replace(GOOD, **changes)
    return plan_problem(Plan(file="shop.py", workflows=(GOOD, bad)))


def test_a_plan_that_can_run_has_no_problem() -> None:
    assert problem() is None
    assert problem(iterations=1) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vus": 0}, "Load has 0 virtual users"),
        ({"vus": -5}, "Load has -5 virtual users"),
        ({"iterations": 0}, "Load has 0 iterations"),
        ({"duration_s": 0.0}, "Load has a duration of 0 s"),
        ({"duration_s": float("inf")}, "Load has a duration of inf s"),
        ({"timeout_s": float("nan")}, "Load has a timeout of nan s"),
        ({"thresholds": (ThresholdPlan(name="p97", limit="<1s"),)}, "'p97'"),
        ({"thresholds": (ThresholdPlan(name="p99", limit="fast"),)}, "'fast'"),
    ],
)
def test_a_plan_that_can_never_run_has_a_problem(changes: dict[str, Any], says: str) -> None:
    assert says in (problem(**changes) or "")
