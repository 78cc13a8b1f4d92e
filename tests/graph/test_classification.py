"""The return annotation, not the decorator, makes a step a test."""

import pytest

from hyperscale.errors import InputError
from hyperscale.graph import build_plan, collect, load_module
from hyperscale.plan import MetricKind, StepKind

from .conftest import Files

KINDS = {
    "HTTPResponse": StepKind.TEST,
    "HTTPResponse | None": StepKind.TEST,
    "None | HTTPResponse": StepKind.TEST,
    "Optional[HTTPResponse]": StepKind.TEST,
    "Union[HTTPResponse, int]": StepKind.TEST,
    "Annotated[HTTPResponse, 'x']": StepKind.TEST,
    "Annotated[HTTPResponse | None, 'x'] | int": StepKind.TEST,
    "Page": StepKind.TEST,
    "Mine": StepKind.TEST,
    "Generic_[int]": StepKind.TEST,
    "CallResult": StepKind.TEST,
    "dict": StepKind.ACTION,
    "None": StepKind.ACTION,
    "list[HTTPResponse]": StepKind.ACTION,
}

TYPES = """
    from typing import *

    class Page(HTTPResponse): ...

    class Mine(CustomResult): ...

    T = TypeVar("T")

    class Generic_(CustomResult, Generic[T]): ...
"""


@pytest.mark.parametrize("style", ["as types", "quoted", "future"])
@pytest.mark.parametrize("annotation", KINDS)
def test_a_step_with_a_result_type_is_a_test(files: Files, annotation: str, style: str) -> None:
    written = f'"{annotation}"' if style == "quoted" else annotation
    future = "from __future__ import annotations\n" if style == "future" else ""
    path = files.write(
        future
        + "from hyperscale.graph import *\nfrom hyperscale.testing import *\n"
        + "\n".join(line[4:] for line in TYPES.splitlines())
        + f"\nclass W(Workflow):\n    @step()\n    async def s(self) -> {written}: ...\n"
        + "class Measured(Workflow):\n    @step()\n    async def s(self) -> HTTPResponse: ...\n"
    )
    plan = build_plan(path, collect(load_module(path)))
    assert plan.workflows[0].steps[0].kind is KINDS[annotation]
    assert plan.workflows[0].is_test is (KINDS[annotation] is StepKind.TEST)


def test_a_step_without_a_result_type_is_an_action_with_a_warning(files: Files) -> None:
    plan = files.plan(
        """
        class Shop(Workflow):
            @step()
            async def login(self) -> dict: ...
            @step()
            async def bare(self): ...
            @action()
            async def quiet(self) -> None: ...
        class Measured(Workflow):
            @step()
            async def s(self) -> HTTPResponse: ...
        """,
        name="shop.py",
    )
    assert [step.kind for step in plan.workflows[0].steps] == [StepKind.ACTION] * 3
    assert [warning.partition(": its")[0] for warning in plan.warnings] == [
        "shop.py:5: Shop.login",
        "shop.py:7: Shop.bare",
    ]


def test_a_test_that_measures_nothing_is_refused_unless_it_is_all_actions(files: Files) -> None:
    text = """
        class Shop(Workflow):
            @action()
            async def prepare(self) -> None: ...
            @{}()
            async def count(self) -> None: ...
    """
    with pytest.raises(InputError) as caught:
        files.plan(text.format("step"), name="shop.py")
    assert caught.value.message == (
        "shop.py:7: Shop.count: no step of the test returns a result, so nothing would be measured"
    )
    assert "@action()" in caught.value.hint
    assert not files.plan(text.format("action")).workflows[0].is_test


@pytest.mark.parametrize("vus", [1, 1000, 10000])
def test_a_workflow_with_one_test_step_is_a_test(files: Files, vus: int) -> None:
    plan = files.plan(
        f"""
        class Prepare(Workflow):
            vus = {vus}
            @action()
            async def a(self) -> None: ...
            @step()
            async def b(self) -> dict: ...
        class Load(Workflow):
            @action()
            async def a(self) -> None: ...
            @step("a")
            async def b(self) -> HTTPResponse: ...
        """
    )
    assert [workflow.is_test for workflow in plan.workflows] == [False, True]


def test_an_action_stays_one_even_if_it_returns_a_response(files: Files) -> None:
    plan = files.plan(
        """
        class W(Workflow):
            @action()
            async def a(self) -> HTTPResponse: ...
        """
    )
    assert plan.workflows[0].steps[0].kind is StepKind.ACTION


def test_checks_and_metrics_are_recognised_by_decorator_or_annotation(files: Files) -> None:
    plan = files.plan(
        """
        class W(Workflow):
            @step()
            async def s(self) -> HTTPResponse: ...
            @check()
            def c1(self, s): ...
            @step()
            async def c2(self, s: HTTPResponse) -> Check: ...
            @metric()
            def m1(self, s): ...
            @metric("gauge")
            def m2(self, s): ...
            @metric(kind="SAMPLE")
            async def m3(self, s): ...
            @metric(kind=TIMER)
            def m4(self, s) -> float: ...
            @metric()
            def m5(self, s) -> Metric[RATE]: ...
            @step()
            async def m6(self, s) -> "Metric[SAMPLE]": ...
            @metric()
            def m7(self, s) -> Metric: ...
        """
    )
    workflow = plan.workflows[0]
    assert {step.name: step.kind for step in workflow.steps} == {
        "s": StepKind.TEST,
        **dict.fromkeys(("c1", "c2"), StepKind.CHECK),
        **dict.fromkeys(("m1", "m2", "m3", "m4", "m5", "m6", "m7"), StepKind.METRIC),
    }
    assert {metric.name: metric.kind for metric in workflow.metrics} == {
        "m1": MetricKind.COUNT,
        "m2": MetricKind.GAUGE,
        "m3": MetricKind.DISTRIBUTION,
        "m4": MetricKind.TIMER,
        "m5": MetricKind.RATE,
        "m6": MetricKind.DISTRIBUTION,
        "m7": MetricKind.COUNT,
    }
    assert all(step.after == ("s",) for step in workflow.steps[1:])
    assert plan.warnings == ()


def test_names_imported_only_for_type_checkers_are_resolved(files: Files) -> None:
    plan = files.plan(
        """
        from typing import TYPE_CHECKING
        del HTTPResponse, URL
        if TYPE_CHECKING:
            from hyperscale.testing import URL, HTTPResponse
            from elsewhere import Secret
        class W(Workflow):
            @step()
            async def s(self, u: "URL" = "http://a.test", t: "Secret" = None) -> "HTTPResponse": ...
        """
    )
    assert plan.workflows[0].is_test
    assert plan.workflows[0].hosts == ("a.test:80",)
