"""Alternatives and columns of feeds, in the native engine and in Python alike."""

from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from hyperscale.execution.protocol import SlotReport
from hyperscale.plan.rows import RowBounds
from hyperscale.plan.status import PartStatus
from tests.execution.server import CountingServer
from tests.lab.executors import Bench, Lab, Outcome

both = pytest.mark.parametrize("static", [True, False], ids=["native", "python"])


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as running:
        yield running


def run(
    lab: Lab, server: CountingServer, body: str, *, static: bool, executors: int = 1
) -> list[Outcome]:
    source = f"""
        from hyperscale.testing import Cookies, Data, Feed, Headers, Params

        class Drawn(Workflow):{body}"""
    lab.write(source.replace("SERVER", server.url))
    return lab.run("Drawn", static=static, executors=executors)


def counts(outcomes: list[Outcome], *steps: str) -> list[int]:
    return [sum(each.step(name).counts.total for each in outcomes) for name in steps]


ALTERNATIVES = """
            vus = 4
            duration = "20s"
            iterations = 400

            @step()
            async def home(self) -> HTTPResponse:
                return await self.client.http.get("SERVER/")

            @step("home", weight=3)
            async def browse(self) -> HTTPResponse:
                return await self.client.http.get("SERVER/")

            @step("home", weight=1)
            async def buy(self) -> HTTPResponse:
                return await self.client.http.post("SERVER/")

            @step("buy")
            async def pay(self) -> HTTPResponse:
                return await self.client.http.put("SERVER/")

            @step("browse", "buy")
            async def leave(self) -> HTTPResponse:
                return await self.client.http.delete("SERVER/")
"""


@pytest.mark.parametrize("executors", [1, 2])
def test_an_iteration_runs_one_alternative_and_the_same_ones_natively_and_in_python(
    lab: Lab, server: CountingServer, executors: int
) -> None:
    found = []
    for static in (True, False):
        outcomes = run(lab, server, ALTERNATIVES, static=static, executors=executors)
        home, browse, buy, pay, leave = counts(outcomes, "home", "browse", "buy", "pay", "leave")
        assert (home, leave, browse + buy) == (400, 400, 400)
        assert pay == buy
        assert 250 < browse < 350
        assert not any(each.step("pay").counts.skipped for each in outcomes)
        assert sum(each.report.iterations for each in outcomes) == 400
        found.append((browse, buy))
    assert found == [(312, 88)] * 2  # whatever runs them, and on however many executors


def test_a_check_judges_only_the_alternative_that_ran(lab: Lab, server: CountingServer) -> None:
    body = (
        ALTERNATIVES
        + """
            @check()
            def is_bought(self, buy: HTTPResponse) -> bool:
                return buy.status == 200

            @check()
            def is_left(self, leave: HTTPResponse) -> bool:
                return leave.status == 200
"""
    )
    (outcome,) = run(lab, server, body, static=False)
    judged = {check.name: check.passed for check in outcome.report.checks}
    assert judged == {"is_bought": 88, "is_left": 400}


COLUMNS = """
            vus = 2
            duration = "20s"
            SETTINGS
            pages = Feed("pages.csv", TAKE)

            @step()
            async def page(
                self,
                url: URL = pages.column("url"),
                headers: Headers = pages.column("headers"),
                body: Data = pages.column("body"),
            ) -> HTTPResponse:
                return await self.client.http.post(url, headers=headers, data=body)
"""


def with_columns(lab: Lab, server: CountingServer, take: str, settings: str) -> str:
    rows = "".join(f'{server.url}/p{n},"{{""X-Row"": ""{n}""}}",body {n}\n' for n in range(5))
    (lab.directory / "pages.csv").write_text("url,headers,body\n" + rows)
    return COLUMNS.replace("TAKE", take).replace("SETTINGS", settings)


def pages(server: CountingServer) -> Counter[str]:
    found = Counter(
        {request.removeprefix("POST /"): count for request, count in server.requests.items()}
    )
    server.requests.clear()
    return found


@both
@pytest.mark.parametrize("executors", [1, 2])
@pytest.mark.parametrize(
    ("take", "settings", "expected"),
    [
        ('take="circular"', "iterations = 20", {f"p{n}": 4 for n in range(5)}),
        ('take="once"', "", {f"p{n}": 1 for n in range(5)}),
        ('per="vu"', "iterations = '3/vu'", {"p0": 3, "p1": 3}),
        ('take="once", per="vu"', "iterations = '2/vu'", {"p0": 2, "p1": 2}),
    ],
)
def test_a_column_gives_each_iteration_the_part_of_its_row(
    lab: Lab,
    server: CountingServer,
    static: bool,
    executors: int,
    take: str,
    settings: str,
    expected: dict[str, int],
) -> None:
    body = with_columns(lab, server, take, settings)
    outcomes = run(lab, server, body, static=static, executors=executors)
    assert pages(server) == expected
    assert Counter(server.bodies) == {
        f"body {name[1:]}".encode(): count for name, count in expected.items()
    }
    assert counts(outcomes, "page") == [sum(expected.values())]


def test_random_rows_are_the_same_natively_in_python_and_on_two_executors(
    lab: Lab, server: CountingServer
) -> None:
    body = with_columns(lab, server, 'take="random"', "iterations = 40")
    found = []
    for static, executors in ((True, 1), (False, 1), (True, 2), (False, 2)):
        run(lab, server, body, static=static, executors=executors)
        found.append(pages(server))
    assert len(found[0]) == 5
    assert found == [found[0]] * 4


@both
def test_a_rate_with_rows_taken_once_ends_when_there_are_none_left(
    lab: Lab, server: CountingServer, static: bool
) -> None:
    body = with_columns(lab, server, 'take="once"', "").replace("vus = 2", 'rate = "50/s"')
    run(lab, server, body, static=static)
    assert pages(server) == {f"p{n}": 1 for n in range(5)}


def test_a_user_that_never_gets_a_row_ends_at_once(lab: Lab, server: CountingServer) -> None:
    body = with_columns(lab, server, 'take="once", per="vu"', "iterations = '1/vu'")
    source = body.replace("vus = 2", "vus = 9").replace("SERVER", server.url)
    lab.write(f"""
        from hyperscale.testing import Data, Feed, Headers

        class Drawn(Workflow):{source}""")
    lab.run("Drawn", static=True)
    assert pages(server) == {f"p{n}": 1 for n in range(5)}


def test_columns_of_two_feeds_run_in_python(lab: Lab, server: CountingServer) -> None:
    body = """
            vus = 1
            iterations = 6
            duration = "20s"
            paths = Feed([{"url": f"SERVER/{n}"} for n in range(2)])
            bodies = Feed([{"text": f"b{n}"} for n in range(3)])

            @step()
            async def page(
                self, url: URL = paths.column("url"), body: Data = bodies.column("text")
            ) -> HTTPResponse:
                return await self.client.http.post(url, data=body)
"""
    run(lab, server, body, static=False)
    assert pages(server) == {"0": 3, "1": 3}
    assert Counter(server.bodies) == {b"b0": 2, b"b1": 2, b"b2": 2}


def test_a_step_reads_the_row_beside_its_column(lab: Lab, server: CountingServer) -> None:
    body = """
            vus = 1
            iterations = 2
            duration = "20s"
            people = Feed([{"url": f"SERVER/{n}", "name": f"n{n}"} for n in range(2)])

            @step()
            async def page(self, url: URL = people.column("url")) -> HTTPResponse:
                return await self.client.http.post(url, data=self.people["name"])
"""
    run(lab, server, body, static=False)
    assert pages(server) == {"0": 1, "1": 1}
    assert server.bodies == [b"n0", b"n1"]


@both
@pytest.mark.parametrize("load", ["vus = 2", "rate = '100/s'"], ids=["users", "rate"])
def test_a_slot_uses_rows_below_its_limit_and_waits_for_more(
    lab: Lab, server: CountingServer, static: bool, load: str
) -> None:
    rows = RowBounds(first=1, limit=3)
    lab.write(f"""
        from hyperscale.testing import Feed

        class Drawn(Workflow):
            {load}
            duration = "20s"
            pages = Feed([{{"url": f"{server.url}/p{{n}}"}} for n in range(9)], take="once")

            @step()
            async def page(self, url: URL = pages.column("url")) -> HTTPResponse:
                return await self.client.http.get(url)
    """)

    async def work(bench: Bench) -> None:
        assignment = bench.assignment("Drawn", 0, static=static)
        await bench.pool.prepare(bench.ids, [msgspec.structs.replace(assignment, rows=rows)])
        bench.pool.start(bench.ids)
        (outcome,) = bench.outcomes

        def drawn() -> list[int]:
            return [event.drawn for event in outcome.events if isinstance(event, SlotReport)]

        await bench.until(lambda: drawn()[-3:] == [3, 3, 3])
        assert sorted(server.requests) == ["GET /p1", "GET /p2"]
        bench.pool.grant_rows(bench.ids, 5)
        await bench.until(lambda: drawn()[-3:] == [5, 5, 5])
        assert not outcome.is_over
        bench.pool.grant_rows(bench.ids, 99)
        await bench.ended()
        assert outcome.finished is not None

    lab.work(work)
    assert server.requests == {f"GET /p{n}": 1 for n in range(1, 9)}


@both
def test_a_slot_that_waits_for_rows_stops_at_once(
    lab: Lab, server: CountingServer, static: bool
) -> None:
    body = with_columns(lab, server, 'take="once"', "").replace("SERVER", server.url)
    lab.write(f"""
        from hyperscale.testing import Data, Feed, Headers

        class Drawn(Workflow):{body}""")

    async def work(bench: Bench) -> None:
        assignment = bench.assignment("Drawn", 0, static=static)
        rows = RowBounds(limit=2)
        await bench.pool.prepare(bench.ids, [msgspec.structs.replace(assignment, rows=rows)])
        bench.pool.start(bench.ids)
        (outcome,) = bench.outcomes
        await bench.until(lambda: "wait for rows" in outcome.output)
        bench.pool.stop(bench.ids, "enough", 5.0)
        await bench.ended()
        assert outcome.finished is not None
        assert (outcome.finished.status, outcome.finished.drawn) == (PartStatus.STOPPED, 2)

    lab.work(work)
