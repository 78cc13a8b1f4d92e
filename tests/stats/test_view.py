import pytest

from hyperscale.stats.view import LATENCY_REFRESH_S, LiveMeter
from hyperscale.stats.workflow import WorkflowStats
from tests.stats.parts import Part, make_plan

MS = 1_000_000


def test_the_current_rate_is_that_of_the_last_two_seconds() -> None:
    stats = WorkflowStats(make_plan())
    meter, part = LiveMeter(stats), Part()
    for tick in range(100):  # 10 s at 20 requests a second, then 100
        for _ in range(2 if tick < 50 else 10):
            part.request("login", 5 * MS, at_s=(tick + 1) / 10)
        stats.apply(part.report(histograms=False, series_from=tick // 10))
        view = meter.view(now_s=1000 + tick / 10, status="running", cores=1)
    assert view.rate_now == pytest.approx(100, rel=0.01)
    assert view.rate_total == pytest.approx(60, rel=0.01)
    assert view.steps[0].rate_now == pytest.approx(100, rel=0.01)
    assert view.steps[1].rate_now == 0


def test_the_current_rate_does_not_include_the_time_before_the_start() -> None:
    stats = WorkflowStats(make_plan())
    meter, part = LiveMeter(stats), Part()
    for tick in range(30):
        view = meter.view(now_s=tick / 10, status="preparing", cores=1)
    for tick in range(1, 4):
        for _ in range(10):
            part.request("login", 5 * MS, at_s=tick / 10)
        stats.apply(part.report(histograms=False))
        view = meter.view(now_s=3 + tick / 10, status="running", cores=1)
        assert view.rate_now == pytest.approx(100, rel=0.01)
        assert view.steps[0].rate_now == pytest.approx(100, rel=0.01)


def test_requests_are_counted_as_sent_by_all_steps_and_steps_beside_them() -> None:
    stats = WorkflowStats(make_plan())
    meter, part = LiveMeter(stats), Part()
    for second in range(4):
        for _ in range(10):
            part.request("login", 5 * MS, at_s=second + 0.5, sent=3)
            part.request("note", 5 * MS, at_s=second + 0.5)  # an action: no step of the headline
        part.counts["login"].none += 5
        stats.apply(part.report())
        view = meter.view(now_s=100 + second, status="running", cores=1)
    assert (view.total, view.none, view.sent) == (40, 20, 160)
    assert (view.rate_now, view.requests_now) == (10, 40)
    assert view.requests_total == pytest.approx(160 / 3.5)
    assert (view.rate_series, view.requests_series) == ((10, 10, 10), (40, 40, 40))
    assert (view.load.unit, view.load.count) == ("requests", 160)


def test_a_stall_shows_as_a_rate_of_zero() -> None:
    stats = WorkflowStats(make_plan())
    meter, part = LiveMeter(stats), Part()
    part.request("login", 5 * MS, at_s=0.1)
    stats.apply(part.report())
    for tick in range(40):
        view = meter.view(now_s=tick / 10, status="running", cores=1)
    assert view.rate_now == 0


def test_a_view_before_the_first_report_has_rates_of_zero() -> None:
    view = LiveMeter(WorkflowStats(make_plan())).view(now_s=5.0, status="preparing", cores=2)
    assert (view.rate_now, view.rate_total, view.progress, view.total) == (0, 0, 0, 0)
    assert view.rate_series == ()
    assert [step.p99_ms for step in view.steps] == [None, None, None]


def test_plots_show_finished_seconds_only() -> None:
    stats = WorkflowStats(make_plan())
    meter, part = LiveMeter(stats), Part()
    for second, requests in enumerate((3, 0, 2, 1)):
        for n in range(requests):
            part.request("login", 5 * MS, ok=n > 0, at_s=second + 0.5)
        stats.apply(part.report())
    view = meter.view(now_s=3.5, status="running", cores=1)
    assert view.rate_series == (3, 0, 2)
    assert view.failed_series == (1, 0, 1)
    assert view.latency_series[1] == (0, 0)
    assert view.latency_series[0][1] == pytest.approx(5, rel=0.001)


def test_a_second_is_finished_when_its_series_has_arrived_not_its_counts() -> None:
    stats = WorkflowStats(make_plan())
    meter, part = LiveMeter(stats), Part()
    part.request("login", 5 * MS, at_s=0.5)
    stats.apply(part.report())
    part.request("login", 5 * MS, at_s=0.9)
    part.elapsed_s = 1.1
    counts_only = part.report(histograms=False, series_from=99)
    stats.apply(counts_only)
    assert meter.view(now_s=1.1, status="running", cores=1).rate_series == ()
    stats.apply(part.report())
    assert meter.view(now_s=1.2, status="running", cores=1).rate_series == (2,)


def test_percentiles_are_refreshed_twice_a_second_and_at_the_end() -> None:
    stats = WorkflowStats(make_plan())
    meter, part = LiveMeter(stats), Part()
    part.request("login", 5 * MS)
    stats.apply(part.report())
    meter.view(now_s=0.0, status="running", cores=1)
    part.request("login", 500 * MS)
    stats.apply(part.report())
    soon = meter.view(now_s=LATENCY_REFRESH_S / 2, status="running", cores=1)
    last = meter.view(now_s=LATENCY_REFRESH_S / 2, status="completed", cores=1, is_final=True)
    assert soon.steps[0].max_ms == pytest.approx(5, rel=0.001)
    assert last.steps[0].max_ms == pytest.approx(500, rel=0.001)


def test_progress_is_the_larger_share_of_time_or_iterations() -> None:
    stats = WorkflowStats(make_plan(duration_s=10, iterations=4))
    meter, part = LiveMeter(stats), Part()
    part.request("login", 5 * MS, at_s=1.0)
    stats.apply(part.report())
    assert meter.view(now_s=1, status="running", cores=1).progress == pytest.approx(0.25)
    part.elapsed_s = 20.0
    stats.apply(part.report())
    assert meter.view(now_s=20, status="running", cores=1).progress == 1.0


def test_errors_of_every_step_are_shown() -> None:
    stats = WorkflowStats(make_plan())
    part = Part()
    part.request("note", None, ok=False)
    part.request("login", 5 * MS)
    stats.apply(part.report())
    view = LiveMeter(stats).view(now_s=1, status="running", cores=1)
    assert view.failed == 0
    assert view.errors == {"timeout": 1}
    assert view.status_codes == {200: 1}
