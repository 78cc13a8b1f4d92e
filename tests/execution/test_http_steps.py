"""HTTP steps against a server that counts requests: what is measured, sent and cut."""

from collections.abc import Iterator

import pytest

from hyperscale._native import Histogram
from hyperscale.errors import InputError
from tests.execution.server import CountingServer
from tests.lab.executors import Lab, Outcome
from tests.lab.reports import StepCounts

GRACE_NS = 1_000_000_000  # unless a workflow says otherwise


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as running:
        yield running


def write(lab: Lab, server: CountingServer, source: str) -> None:
    lab.write(source.replace("URL_OF_SERVER", server.url))


def test_two_calls_in_one_step_are_two_requests_and_one_measurement(
    lab: Lab, server: CountingServer
) -> None:
    write(
        lab,
        server,
        """
        class Twice(Workflow):
            vus = 3
            duration = "30s"
            iterations = 30

            @step()
            async def both(self, url: URL = "URL_OF_SERVER/status/404") -> HTTPResponse:
                await self.client.http.get(url)
                return await self.client.http.get("URL_OF_SERVER/")
        """,
    )
    (outcome,) = lab.run("Twice")
    counts = outcome.step("both").counts
    assert (counts.total, counts.ok, counts.sent) == (30, 30, 60)
    assert counts.status_codes == {200: 30}
    assert server.requests == {"GET /status/404": 30, "GET /": 30}


def test_each_virtual_user_is_one_concurrent_client(lab: Lab, server: CountingServer) -> None:
    write(
        lab,
        server,
        """
        class Crowd(Workflow):
            vus = 50
            duration = "1s"

            @step()
            async def wait(self, url: URL = "URL_OF_SERVER/delay/100") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
    )
    outcomes = lab.run("Crowd", executors=2)
    assert server.busy_peak == 50
    assert server.open_peak == 50
    assert [max(report.vus for report in outcome.reports) for outcome in outcomes] == [25, 25]
    assert all(outcome.report.elapsed_s <= 1.0 + 1.0 + 0.5 for outcome in outcomes)
    sent = sum(outcome.step("wait").counts.sent for outcome in outcomes)
    assert server.requests["GET /delay/100"] == sent


PREPARED = """
    import hyperscale.clients.hub as hub

    counts = {"resolve": 0, "encode": 0}
    real_resolve, real_encode = hub.resolve, hub.encode_data

    def resolve(*args):
        counts["resolve"] += 1
        return real_resolve(*args)

    def encode(*args):
        counts["encode"] += 1
        return real_encode(*args)

    hub.resolve, hub.encode_data = resolve, encode

    class Prepared(Workflow):
        vus = 4
        duration = "30s"
        iterations = ITERATIONS

        @step()
        async def send(
            self,
            url: URL = "NAMED_SERVER/",
            body: Data = {"user": "x"},
        ) -> HTTPResponse:
            assert type(body["user"]) is str
            return await self.client.http.post(url, data=body)

        @teardown(per="executor")
        async def tell(self):
            log(counts["resolve"], counts["encode"])
"""


@pytest.mark.parametrize("iterations", [1, 200])
def test_request_parts_are_resolved_and_encoded_once_for_all_requests(
    lab: Lab, server: CountingServer, iterations: int
) -> None:
    source = "    from hyperscale.testing import Data\n" + PREPARED
    named = server.url.replace("127.0.0.1", "localhost")  # an address is not looked up
    source = source.replace("NAMED_SERVER", named)
    write(lab, server, source.replace("ITERATIONS", str(iterations)))
    (outcome,) = lab.run("Prepared")
    assert outcome.step("send").counts.ok == iterations, outcome.output
    assert lab.log() == ["1 1"]
    assert server.bodies == [b'{"user":"x"}'] * iterations


MIXED = """
    class Mixed(Workflow):
        vus = 4
        duration = "30s"
        iterations = 40

        @step()
        async def fine(self, url: URL = "URL_OF_SERVER/") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("fine")
        async def missing(self, url: URL = "URL_OF_SERVER/status/404") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("fine", accept=[404])
        async def expected(self, url: URL = "URL_OF_SERVER/status/404") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("missing")
        async def after(self) -> HTTPResponse:
            return await self.client.http.post("URL_OF_SERVER/", data={"n": 1})

        @step("fine")
        async def refused(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("refused")
        async def never(self, url: URL = "URL_OF_SERVER/never") -> HTTPResponse:
            return await self.client.http.get(url)
"""


def essence(counts: StepCounts) -> tuple[object, ...]:
    return (
        counts.total,
        counts.ok,
        counts.failed,
        counts.cut,
        counts.skipped,
        counts.sent,
        counts.status_codes,
        counts.errors,
        counts.bytes_sent,
        counts.bytes_received,
    )


def test_python_and_native_loops_record_the_same(lab: Lab, server: CountingServer) -> None:
    write(lab, server, MIXED)
    seen: list[dict[str, tuple[object, ...]]] = []
    requests = []
    for static in (False, True):
        server.requests.clear()
        (outcome,) = lab.run("Mixed", static=static)
        seen.append({step.name: essence(step.counts) for step in outcome.report.steps})
        requests.append(dict(server.requests))
        assert outcome.report.iterations == 40
        check_mixed(outcome)
    assert seen[0] == seen[1]
    assert requests[0] == requests[1] == {"GET /": 40, "GET /status/404": 80, "POST /": 40}


def check_mixed(outcome: Outcome) -> None:
    counts = {step.name: step.counts for step in outcome.report.steps}
    assert counts["fine"].ok == 40
    assert (counts["missing"].failed, counts["missing"].errors) == (40, {"status": 40})
    assert (counts["expected"].ok, counts["expected"].errors) == (40, {})
    assert counts["after"].ok == 40  # an error status skips no step
    assert (counts["refused"].failed, counts["refused"].errors) == (40, {"connect": 40})
    assert (counts["never"].total, counts["never"].skipped) == (0, 40)
    assert "Traceback" not in outcome.output  # error responses are not exceptions of user code


@pytest.mark.parametrize("static", [False, True])
def test_requests_in_flight_at_the_deadline_are_cut_and_the_target_saw_what_was_sent(
    lab: Lab, server: CountingServer, static: bool
) -> None:
    write(
        lab,
        server,
        """
        class Slow(Workflow):
            vus = 8
            duration = "300ms"

            @step()
            async def quick(self, url: URL = "URL_OF_SERVER/") -> HTTPResponse:
                return await self.client.http.get(url)

            @step("quick")
            async def slow(self, url: URL = "URL_OF_SERVER/delay/60000") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
    )
    (outcome,) = lab.run("Slow", static=static)
    slow, quick = outcome.step("slow").counts, outcome.step("quick").counts
    assert (slow.total, slow.failed, slow.cut) == (0, 0, 8)
    assert (quick.ok, quick.cut) == (8, 0)
    assert server.requests == {"GET /": 8, "GET /delay/60000": 8}
    assert slow.sent == 8
    taken = Histogram.decode((outcome.step("slow").phases or {})["cut"])
    assert taken.count == 8
    assert taken.min_ns >= GRACE_NS, "a request was cut before its grace was over"
    assert "cut" not in (outcome.step("quick").phases or {})


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    ("grace", "cut"),
    [
        ("0s", 4),
        ("longest", 0),  # `first` took as long as `second`, which is half done at the deadline
        ("10s", 0),
    ],
)
def test_grace_decides_what_becomes_of_requests_in_flight(
    lab: Lab, server: CountingServer, grace: str, cut: int, static: bool
) -> None:
    write(
        lab,
        server,
        f"""
        class Ending(Workflow):
            vus = 4
            duration = "900ms"
            grace = {grace!r}

            @step()
            async def first(self, url: URL = "URL_OF_SERVER/delay/600") -> HTTPResponse:
                return await self.client.http.get(url)

            @step("first")
            async def second(self, url: URL = "URL_OF_SERVER/delay/600") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
    )
    (outcome,) = lab.run("Ending", static=static)
    steps = [outcome.step(name).counts for name in ("first", "second")]
    assert sum(step.cut for step in steps) == cut
    assert sum(step.total + step.cut for step in steps) == sum(step.sent for step in steps)
    assert server.requests.total() == sum(step.sent for step in steps)


@pytest.mark.parametrize("static", [False, True])
def test_a_stop_ends_http_load_at_once_and_keeps_its_counts(
    lab: Lab, server: CountingServer, static: bool
) -> None:
    write(
        lab,
        server,
        """
        class Steady(Workflow):
            vus = 8
            duration = "60s"

            @step()
            async def get(self, url: URL = "URL_OF_SERVER/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
    )

    async def work(bench) -> None:
        await bench.prepare("Steady", static=static)
        bench.pool.start(bench.ids)
        reports = bench.outcomes[0].reports
        await bench.until(lambda: bool(reports) and reports[-1].steps[0].counts.total > 100)
        bench.pool.stop(bench.ids, "enough")
        (outcome,) = await bench.ended()
        counts = outcome.step("get").counts
        assert counts.failed == 0
        assert counts.sent - counts.cut <= server.requests["GET /"] <= counts.sent
        assert counts.total + counts.cut >= counts.sent

    lab.work(work)


def test_a_host_without_an_address_refuses_the_slot_before_anything_runs(lab: Lab) -> None:
    lab.write("""
        class Lost(Workflow):
            vus = 1
            duration = "1s"

            @setup(per="executor")
            async def open(self):
                log("ran")

            @step()
            async def get(self, url: URL = "http://no-such-host.invalid/") -> HTTPResponse:
                return await self.client.http.get(url)
    """)
    with pytest.raises(InputError, match="no-such-host"):
        lab.run("Lost")
    assert lab.log() == []


@pytest.mark.parametrize("call", ["fetch(url)", "get(url, colour='blue')", "get(url, 1, 2)"])
def test_a_wrong_call_fails_its_step_in_python_and_natively(
    lab: Lab, server: CountingServer, call: str
) -> None:
    write(
        lab,
        server,
        f"""
        class Wrong(Workflow):
            vus = 1
            duration = "30s"
            iterations = 3

            @step()
            async def get(self, url: URL = "URL_OF_SERVER/") -> HTTPResponse:
                return await self.client.http.{call}
        """,
    )
    for static in (False, True):
        (outcome,) = lab.run("Wrong", static=static)
        counts = outcome.step("get").counts
        assert (counts.failed, counts.errors) == (3, {"exception": 3})
        assert call in outcome.output
