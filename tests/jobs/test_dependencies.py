"""Workflows start as soon as their own dependencies have completed."""

from hyperscale.jobs.dependencies import blocked_by, ready
from hyperscale.plan import WorkflowPlan


def plan(name: str, *depends: str) -> WorkflowPlan:
    return WorkflowPlan(name=name, vus=1, duration_s=1.0, timeout_s=1.0, depends=depends)


PLANS = [
    plan("Report", "Validate", "LoadTest"),
    plan("Setup"),
    plan("LoadTest"),
    plan("Validate", "LoadTest"),
]


def test_each_workflow_waits_for_its_own_dependencies_only() -> None:
    def names(finished: set[str], running: set[str]) -> list[str]:
        return [one.name for one in ready(PLANS, finished, running)]

    assert names(set(), set()) == ["Setup", "LoadTest"]
    assert names(set(), {"Setup", "LoadTest"}) == []
    assert names({"LoadTest"}, {"Setup"}) == ["Validate"]  # Setup still runs
    assert names({"LoadTest", "Validate"}, {"Setup"}) == ["Report"]
    assert names({"LoadTest", "Validate", "Report", "Setup"}, set()) == []


def test_a_failed_workflow_blocks_its_dependents() -> None:
    assert blocked_by(PLANS, {"LoadTest"}) == {"Report": "LoadTest", "Validate": "LoadTest"}
    assert blocked_by(PLANS, {"Validate"}) == {"Report": "Validate"}
    assert blocked_by(PLANS, {"Setup"}) == {}
