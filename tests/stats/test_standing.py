import pytest

from hyperscale.plan import ThresholdPlan
from hyperscale.stats.standing import SIGNS, Standing, Tone, standing_of, standing_of_check
from hyperscale.stats.view import LiveMeter, ViewStatus
from hyperscale.stats.workflow import WorkflowStats
from tests.stats.parts import Part, make_plan

MS = 1_000_000
GOOD = {Standing.PASSED, Standing.RUNNING}


def test_every_standing_has_a_sign_and_only_passed_is_a_green_tick() -> None:
    assert set(SIGNS) == set(Standing)
    ticks = {standing for standing, sign in SIGNS.items() if sign.symbol == "✓"}
    green = {standing for standing, sign in SIGNS.items() if sign.tone is Tone.OK}
    assert ticks == green == {Standing.PASSED}
    assert all(len(sign.symbol) == 1 and sign.ascii.isascii() for sign in SIGNS.values())


@pytest.mark.parametrize("status", list(ViewStatus))
def test_a_fault_never_leaves_a_workflow_looking_good(status: ViewStatus) -> None:
    assert standing_of(status, has_faults=True) not in GOOD
    assert (standing_of(status, has_faults=False) in GOOD) == (status in ("running", "completed"))


def test_a_check_that_failed_never_passed() -> None:
    assert standing_of_check(9, 1, is_allowed=False) is Standing.FAILED
    assert standing_of_check(9, 1, is_allowed=True) is Standing.ALLOWED
    assert standing_of_check(9, 0, is_allowed=False) is Standing.PASSED
    assert standing_of_check(0, 0, is_allowed=True) is Standing.NEVER_RAN


def metered(*limits: tuple[str, str], failed_checks: int = 0) -> tuple[WorkflowStats, LiveMeter]:
    thresholds = tuple(ThresholdPlan(name=name, limit=limit) for name, limit in limits)
    stats = WorkflowStats(make_plan(thresholds=thresholds))
    part = Part()
    for second in range(10):
        part.request("login", 400 * MS, at_s=second + 0.5)
    part.judge(True)
    for _ in range(failed_checks):
        part.judge(False)
    stats.apply(part.report())
    return stats, LiveMeter(stats)


@pytest.mark.parametrize(
    ("limits", "failed_checks", "running", "ended"),
    [
        ((), 0, "running", "passed"),
        ((("login.p99", "<1s"),), 0, "running", "passed"),
        ((("login.p99", "<250ms"),), 0, "failing", "failed"),
        ((("total", ">1000"),), 0, "running", "failed"),  # may still be reached
        ((("pay.p99", "<1s"),), 0, "running", "failed"),  # no samples so far
        ((), 1, "failing", "failed"),
        ((("checks", ">=50%"),), 1, "running", "passed"),
    ],
)
def test_the_live_view_of_a_workflow_stands_as_its_thresholds_and_checks(
    limits: tuple[tuple[str, str], ...], failed_checks: int, running: str, ended: str
) -> None:
    _, meter = metered(*limits, failed_checks=failed_checks)
    live = meter.view(now_s=10.0, status=ViewStatus.RUNNING, cores=1)
    final = meter.view(now_s=11.0, status=ViewStatus.COMPLETED, cores=1, is_final=True)
    assert (live.standing, final.standing) == (running, ended)
    assert bool(final.faults) == (ended == "failed")


def test_faults_say_what_was_measured_and_how_often_a_check_failed() -> None:
    _, meter = metered(("login.p99", "<250ms"), failed_checks=3)
    view = meter.view(now_s=10.0, status=ViewStatus.RUNNING, cores=1)
    threshold, check = view.faults
    assert threshold == "login.p99 <250ms, was 400ms"
    assert check.startswith("check is_fast failed 3 of 4 times (hint: 'hyperscale check FILE'")
