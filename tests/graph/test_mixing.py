"""Workflows with a weight share one total of load."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InputError
from hyperscale.graph import Overrides
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.share import apportion
from hyperscale.runner.source import load_test_file

STEP = """
    @step()
    async def page(self) -> HTTPResponse:
        return await self.client.http.get("http://127.0.0.1:1/")
"""
HEAD = """
from hyperscale import Mix, Workflow, step
from hyperscale.testing import HTTPResponse
"""


def planned(
    tmp_path: Path, mix: str, *classes: tuple[str, str], **overrides: object
) -> dict[str, WorkflowPlan]:
    body = "".join(f"\nclass {name}(Workflow):\n    {attr}\n{STEP}" for name, attr in classes)
    file = tmp_path / "mixed.py"
    file.write_text(f"{HEAD}\n{mix}\n{body}")
    plan = load_test_file(file, Overrides(**overrides)).plan  # type: ignore[arg-type]  # as given
    return {workflow.name: workflow for workflow in plan.workflows}


THREE = (("Browse", "weight = 6"), ("Search", "weight = 3"), ("Buy", "weight = 1"))


@given(st.integers(0, 10**7), st.lists(st.floats(0.01, 1e6), min_size=1, max_size=20))
def test_shares_by_weight_add_up_and_are_within_one_of_what_is_owed(
    total: int, weights: list[float]
) -> None:
    shares = apportion(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1 + 1e-6


def test_users_are_shared_by_weight(tmp_path: Path) -> None:
    own = ("Alone", "vus = 7; duration = '9s'")
    plans = planned(tmp_path, "mix = Mix(vus=200, duration='5m')", *THREE, own)
    assert [plan.vus for plan in plans.values()] == [120, 60, 20, 7]
    assert [plan.duration_s for plan in plans.values()] == [300.0, 300.0, 300.0, 9.0]


def test_vus_of_the_command_line_are_the_total(tmp_path: Path) -> None:
    plans = planned(tmp_path, "", *THREE, vus=50, duration="7s")
    assert [plan.vus for plan in plans.values()] == [30, 15, 5]
    assert {plan.duration_s for plan in plans.values()} == {7.0}


def test_only_the_chosen_workflows_share_the_total(tmp_path: Path) -> None:
    plans = planned(tmp_path, "mix = Mix(vus=40)", *THREE, only=["Search", "Buy"])
    assert [plan.vus for plan in plans.values()] == [30, 10]


def test_a_rate_and_stages_are_shared(tmp_path: Path) -> None:
    plans = planned(tmp_path, "mix = Mix(rate='500/s', max_vus=100, duration='1m')", *THREE)
    assert [plan.stages[1].target for plan in plans.values()] == [300.0, 150.0, 50.0]
    assert [plan.vus for plan in plans.values()] == [60, 30, 10]
    plans = planned(tmp_path, "mix = Mix(stages=[('1m', 20), ('2m', 10)])", *THREE)
    assert [plan.vus for plan in plans.values()] == [12, 6, 2]
    assert [[stage.target for stage in plan.stages] for plan in plans.values()] == [
        [12, 6],
        [6, 3],
        [2, 1],
    ]
    assert {plan.duration_s for plan in plans.values()} == {180.0}


@pytest.mark.parametrize(
    ("mix", "attribute", "overrides", "said"),
    [
        ("", "weight = 1", {}, "mix: A share no total"),
        ("mix = Mix(vus=5)", "vus = 5", {}, "mix: no workflow has a weight"),
        ("mix = Mix(vus=5)", "weight = 0", {}, "A.weight: 0 is not a weight"),
        ("mix = Mix(vus=5)", "weight = -1", {}, "A.weight: -1 is not a weight"),
        ("mix = Mix(vus=5)", "weight = 'x'", {}, "A.weight: 'x' is not a weight"),
        ("mix = Mix(vus=5)", "weight = True", {}, "A.weight: True is not a weight"),
        ("mix = Mix(vus=5)", "weight = float('nan')", {}, "A.weight: nan is not a weight"),
        ("mix = Mix(vus=5)", "weight = 1; vus = 5", {}, "A.vus: vus and weight contradict"),
        ("mix = Mix(vus=5)", "weight = 1; rate = '1/s'", {}, "A.rate: rate and weight contradict"),
        ("mix = Mix(vus=5)", "weight = 1; iterations = 1", {}, "iterations and weight contradict"),
        ("mix = Mix(vus=0)", "weight = 1", {}, "mix.vus: 0 must be at least 1"),
        ("mix = Mix(rate='x')", "weight = 1", {}, "mix.rate: 'x' is not a rate"),
        ("mix = Mix(rate='1/s', vus=5)", "weight = 1", {}, "vus and rate contradict each other"),
        ("mix = Mix(vus=5, max_vus=5)", "weight = 1", {}, "mix: max_vus needs a rate"),
        ("mix = Mix(vus=5, duration=0)", "weight = 1", {}, "mix.duration: 0 must be above 0"),
        ("mix = Mix(stages=5)", "weight = 1", {}, "mix.stages: 5 is not a list of stages"),
        ("mix = Mix(stages=[('1m', 1)], duration=5)", "weight = 1", {}, "duration and stages"),
        ("mix = Mix(rate='1/s')", "weight = 1", {"vus": 5}, "--vus: the mix has rate"),
        ("mix = Mix(users=5)", "weight = 1", {}, "unexpected keyword argument 'users'"),
        ("mix = Mix(vus=5, duration=5)", "weight = 1; warmup = 5", {}, "warm-up of A is as long"),
    ],
)
def test_a_wrong_mix_is_refused_by_name(
    tmp_path: Path, mix: str, attribute: str, overrides: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        planned(tmp_path, mix, ("A", attribute), **overrides)
    assert said in str(caught.value)


def test_a_workflow_without_a_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the total is too small: Buy has none of it"):
        planned(tmp_path, "mix = Mix(vus=3)", *THREE)
