"""Rates, stages, intervals, pauses and warm-up, in the native engine and in Python alike."""

from collections import Counter
from collections.abc import Iterator

import pytest

from hyperscale._native import Histogram
from tests.execution.server import CountingServer
from tests.lab.executors import Lab, Outcome

both = pytest.mark.parametrize("static", [True, False], ids=["native", "python"])

PAGE = """
            @step()
            async def page(self, url: URL = "URL_OF_SERVER") -> HTTPResponse:
                return await self.client.http.get(url)
"""


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as running:
        yield running


def run(
    lab: Lab,
    server: CountingServer,
    settings: str,
    *,
    static: bool,
    path: str = "/",
    executors: int = 1,
) -> list[Outcome]:
    source = f"\n        class Shaped(Workflow):{settings}{PAGE}"
    lab.write(source.replace("URL_OF_SERVER", f"{server.url}{path}"))
    return lab.run("Shaped", static=static, executors=executors)


def total(outcomes: list[Outcome], name: str) -> int:
    """Return a count of arrivals, over all slots."""
    return sum(outcome.metric(f"hyperscale.{name}").count for outcome in outcomes)


def percentile_ms(outcome: Outcome, histogram: bytes | None, q: float) -> float:
    assert histogram is not None, outcome.output
    return Histogram.decode(histogram).quantile_ns(q) / 1e6


@both
@pytest.mark.parametrize("executors", [1, 2])
def test_a_rate_begins_every_arrival_of_its_duration(
    lab: Lab, server: CountingServer, static: bool, executors: int
) -> None:
    settings = """
            rate = "100/s"
            duration = "2s"
            max_vus = 50
    """
    outcomes = run(lab, server, settings, static=static, executors=executors)
    assert total(outcomes, "begun") + total(outcomes, "dropped") == 200
    # Arrivals that were due at the very end may have no time left.
    assert total(outcomes, "begun") >= 195
    assert sum(outcome.step("page").counts.sent for outcome in outcomes) == total(outcomes, "begun")
    assert sum(outcome.report.iterations for outcome in outcomes) == total(outcomes, "begun")


@both
def test_an_arrival_that_finds_every_user_busy_is_dropped(
    lab: Lab, server: CountingServer, static: bool
) -> None:
    settings = """
            rate = "50/s"
            duration = "2s"
            max_vus = 2
    """
    outcomes = run(lab, server, settings, static=static, path="/delay/1000")
    # Two users, one second each, so about 4 of 100 begin.
    assert total(outcomes, "begun") + total(outcomes, "dropped") == 100
    assert 2 <= total(outcomes, "begun") <= 6


@both
def test_latencies_count_from_when_an_arrival_was_due_and_service_times_from_the_send(
    lab: Lab, server: CountingServer, static: bool
) -> None:
    settings = """
            rate = "20/s"
            duration = "2s"
            max_vus = 100
            connections = "shared"
    """
    source = f"\n        class Shaped(Workflow):{settings}{PAGE}"
    source += """
            @step("page")
            async def after(self, url: URL = "URL_OF_SERVER") -> HTTPResponse:
                return await self.client.http.get(url)
    """
    lab.write(source.replace("URL_OF_SERVER", f"{server.url}/delay/100"))
    (outcome,) = lab.run("Shaped", static=static)
    page, after = outcome.step("page"), outcome.step("after")
    assert page.phases is not None
    assert after.phases is not None
    assert "service" in page.phases
    assert "service" not in after.phases
    service_ms = percentile_ms(outcome, page.phases["service"], 0.5)
    assert service_ms <= percentile_ms(outcome, page.latency, 0.5)
    took = outcome.metric("hyperscale.iteration").distribution
    assert percentile_ms(outcome, took, 0.5) >= 2 * 99


@both
def test_poisson_arrivals_are_irregular_and_the_same_in_every_run(
    lab: Lab, server: CountingServer, static: bool
) -> None:
    settings = """
            rate = "100/s"
            duration = "1s"
            arrivals = "poisson"
    """
    counts = set()
    for _ in range(2):
        outcomes = run(lab, server, settings, static=static)
        counts.add(total(outcomes, "begun") + total(outcomes, "dropped"))
    assert len(counts) == 1
    assert 60 <= counts.pop() <= 140


@both
@pytest.mark.parametrize("executors", [1, 2])
def test_users_follow_the_stages(
    lab: Lab, server: CountingServer, static: bool, executors: int
) -> None:
    settings = """
            stages = [("1s", 10), ("1s", 10), ("0s", 2), ("1s", 2)]
    """
    outcomes = run(lab, server, settings, static=static, path="/delay/20", executors=executors)
    users: Counter[int] = Counter()
    for outcome in outcomes:
        now = 0
        flat = outcome.report.users
        changes = dict(zip(flat[::2], flat[1::2], strict=True))
        for second in range(3):
            # The most of a second: in the last one, before users have left.
            users[second] += max(now, changes.get(second, 0))
            now = changes.get(second, now)
        assert outcome.report.vus == 0
    assert users[1] == 10
    assert users[0] <= 10
    counts = [outcome.step("page").counts for outcome in outcomes]
    assert sum(count.failed + count.cut for count in counts) == 0
    # 10 users for the middle second alone make about 500 requests of 20 ms; 2 for all make 300.
    assert sum(count.ok for count in counts) > 330


@both
def test_stages_of_rates_ramp_the_arrivals(lab: Lab, server: CountingServer, static: bool) -> None:
    settings = """
            stages = [("1s", "100/s"), ("1s", "100/s"), ("1s", "0/s")]
    """
    outcomes = run(lab, server, settings, static=static)
    assert total(outcomes, "begun") + total(outcomes, "dropped") == 200
    sent = {point.second: point.sent for point in outcomes[0].step("page").series}
    assert sent[1] > sent[0]
    assert sent[1] > sent[2]


@both
def test_each_user_runs_its_own_iterations(lab: Lab, server: CountingServer, static: bool) -> None:
    settings = """
            vus = 5
            iterations = "3/vu"
            duration = "30s"
    """
    outcomes = run(lab, server, settings, static=static, executors=2)
    assert [outcome.report.iterations for outcome in outcomes] == [9, 6]


@both
def test_users_of_an_interval_begin_spread_over_it(
    lab: Lab, server: CountingServer, static: bool
) -> None:
    settings = """
            vus = 10
            interval = "1s"
            duration = "2850ms"
    """
    outcomes = run(lab, server, settings, static=static, executors=2)
    # User n begins at n/10 s, n/10 + 1 s and n/10 + 2 s; user 9 only twice.
    assert sum(outcome.report.iterations for outcome in outcomes) in (28, 29)


@both
def test_a_user_pauses_between_iterations(lab: Lab, server: CountingServer, static: bool) -> None:
    settings = """
            vus = 4
            think = ("200ms", "400ms")
            duration = "2s"
    """
    (outcome,) = run(lab, server, settings, static=static)
    # Between 5 and 10 iterations of each user.
    assert 16 <= outcome.report.iterations <= 40


@both
def test_the_warm_up_is_run_and_not_counted(lab: Lab, server: CountingServer, static: bool) -> None:
    settings = """
            vus = 2
            warmup = "1s"
            duration = "2s"
    """
    (outcome,) = run(lab, server, settings, static=static, path="/delay/20")
    counts, sent = outcome.step("page").counts, sum(server.requests.values())
    assert 0 < counts.sent < sent
    assert {point.second for point in outcome.step("page").series} <= {1, 2}
    assert counts.total + counts.cut <= counts.sent + 2
    assert outcome.report.iterations <= counts.ok


def test_checks_and_metrics_of_the_warm_up_are_not_counted(lab: Lab) -> None:
    lab.write("""
        class Warm(Workflow):
            vus = 1
            warmup = "500ms"
            duration = "1s"

            @step()
            async def one(self) -> Result:
                await asyncio.sleep(0.01)
                log("ran")
                return Result()

            @check()
            def good(self, one):
                return True

            @metric("count")
            def ones(self, one):
                return 1
    """)
    (outcome,) = lab.run("Warm")
    ran, counted = len(lab.log()), outcome.step("one").counts.total
    assert 0 < counted < ran
    assert outcome.check("good").passed <= counted
    assert outcome.metric("ones").sum == outcome.check("good").passed
