"""The bound of what a lost attempt may have sent without reporting it."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.jobs.leader.gaps import LoadTimeline, UserPace


def killed(after_s: float, *, vus: int, pace: UserPace) -> int:
    """Return the bound for an attempt that was lost before its first report."""
    timeline = LoadTimeline()
    timeline.start_sent(10.0)
    lost = timeline.unreported(10.0 + after_s, cores=1, vus=vus, others_rate=0.0, pace=pace)
    return lost.requests_max


def test_users_send_no_more_than_the_fastest_response_allows() -> None:
    assert killed(0.3, vus=10, pace=UserPace(fastest_s=0.05)) <= 70
    assert killed(0.3, vus=10, pace=UserPace(fastest_s=0.05, in_flight=2)) <= 140


def test_users_send_no_more_than_their_interval_allows() -> None:
    pace = UserPace(interval_s=0.1, per_iteration=3)
    assert killed(0.3, vus=10, pace=pace) == 10 * 3 * 4


def test_without_any_measurement_the_bound_is_what_a_core_can_send() -> None:
    assert killed(0.3, vus=10, pace=UserPace()) > 10_000


def test_the_measured_rate_bounds_users_that_could_send_more() -> None:
    timeline = LoadTimeline()
    timeline.start_sent(10.0)
    timeline.report(sent=100, iterations=100, elapsed_s=1.0, now_s=11.0)
    fast = UserPace(fastest_s=0.000_1)
    lost = timeline.unreported(11.5, cores=1, vus=10, others_rate=0.0, pace=fast)
    assert lost.requests_max <= 100 * 1.25 * 0.7


def test_the_report_of_one_core_is_as_old_as_it_says() -> None:
    def bound(cores: int) -> int:
        timeline = LoadTimeline()
        timeline.start_sent(10.0)
        timeline.report(sent=100, iterations=100, elapsed_s=1.0, now_s=11.0)
        pace = UserPace(fastest_s=0.02)
        lost = timeline.unreported(11.1, cores=cores, vus=2, others_rate=0.0, pace=pace)
        return lost.requests_max

    assert bound(cores=1) == 2 * 6
    assert bound(cores=2) > 2 * 12


@given(
    seconds=st.floats(0.01, 20),
    vus=st.integers(1, 50),
    response_s=st.floats(0.001, 1),
    interval_s=st.one_of(st.none(), st.floats(0.001, 2)),
)
def test_no_closed_loop_of_users_exceeds_its_bound(
    seconds: float, vus: int, response_s: float, interval_s: float | None
) -> None:
    """Every user sends, waits for the response and its interval, and sends again."""
    cycle_s = max(response_s, interval_s or 0.0)
    truly = vus * (int(seconds / cycle_s) + 1)
    pace = UserPace(fastest_s=response_s, interval_s=interval_s)
    assert killed(seconds, vus=vus, pace=pace) >= min(truly, int(100_000 * seconds))
