"""Why a workflow fails its run."""

from typing import Any

import pytest
from msgspec.structs import replace

from hyperscale.plan import StepKind, StepPlan, ThresholdPlan
from hyperscale.stats.reasons import ReasonKind, reasons_against
from hyperscale.stats.workflow import WorkflowStats
from tests.stats.parts import Part, make_plan


def stats_of(*, ok: int, failed: int = 0, raised: int = 0, **plan: Any) -> WorkflowStats:
    stats, part = WorkflowStats(make_plan(**plan)), Part(raised=raised)
    for n in range(ok + failed):
        part.request("login", 5_000_000, ok=n < ok)
    stats.apply(part.report())
    return stats


def kinds_of(stats: WorkflowStats, **how: Any) -> list[str]:
    return [reason.kind.value for reason in reasons_against(stats, **how)]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"ok": 1, "failed": 99}, []),
        ({"ok": 0, "failed": 100}, ["no_success"]),
        ({"ok": 0}, ["no_success"]),
        ({"ok": 200, "raised": 2}, []),  # of 200 iterations: 1 %
        ({"ok": 200, "raised": 3}, ["raised"]),
        ({"ok": 0, "failed": 10, "raised": 10}, ["no_success", "raised"]),
    ],
)
def test_a_test_that_proves_nothing_fails_unless_it_allows_failures(
    counts: dict[str, int], expected: list[str]
) -> None:
    assert kinds_of(stats_of(**counts)) == expected
    assert kinds_of(stats_of(**counts, allow_failures=True)) == []


def test_allowing_failures_leaves_thresholds_and_checks_in_force() -> None:
    limit = ThresholdPlan(name="errors", limit="<1%")
    stats = stats_of(ok=0, failed=3, allow_failures=True, thresholds=(limit,))
    assert [r.text for r in reasons_against(stats)] == ["errors <1%, was 100%"]
    part = Part(slot=1)
    part.judge(False)
    stats.apply(part.report())
    assert kinds_of(stats) == ["threshold", "check"]


def test_a_workflow_that_did_not_complete_is_not_blamed_for_too_few_successes() -> None:
    (reason,) = reasons_against(stats_of(ok=0), failed_as="cancelled: by its user")
    assert (reason.kind, reason.text) == (ReasonKind.STATUS, "cancelled: by its user")


def test_a_reason_names_the_failures_behind_it() -> None:
    (reason,) = reasons_against(stats_of(ok=0, failed=1234))
    assert reason.text.startswith("not one call succeeded: 1,234 failed (timeout 1,234) (hint: ")


def test_a_teardown_hook_that_raises_fails_the_run() -> None:
    plan = make_plan()
    hook = StepPlan(name="close", kind=StepKind.TEARDOWN, where="shop.py:12")
    for allowed, expected in ((False, ["raised"]), (True, [])):
        stats = WorkflowStats(replace(plan, steps=(*plan.steps, hook), allow_failures=allowed))
        part = Part()
        part.request("login", 5_000_000)
        part.request("close", None, ok=False)
        stats.apply(part.report())
        reasons = reasons_against(stats)
        assert [reason.kind.value for reason in reasons] == expected
    stats = WorkflowStats(replace(plan, steps=(*plan.steps, hook)))
    stats.apply(part.report())
    assert reasons_against(stats)[0].text.startswith(
        "teardown hook close at shop.py:12 raised 1 of 1 times (hint: correct the code"
    )
