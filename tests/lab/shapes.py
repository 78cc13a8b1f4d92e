"""Workflows of many shapes, and what their counts have to be: all of it follows from `CALLS`."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from hyperscale.reporting.results import RunResult, StepResult, WorkflowResult
from tests.lab.logged_servers import LoggedServer

CALLS = 24
_VUS = 6

# One after the other, so that each has all cores.
_SOURCE = f"""\
import asyncio
import random
from hyperscale import Workflow, action, depends, setup, step, teardown
from hyperscale.testing import HTTPResponse, Headers, URL

GET, MISSING, HOPS, SLOW = "URL_/get", "URL_/status/404", "URL_/redirect/3", "URL_/delay/2"
IS_BROKEN = True


class Shape(Workflow):
    abstract = True
    vus = {_VUS}
    duration = "25s"
    iterations = {CALLS}

    def get(self, step, url=GET):
        return self.client.http.get(url, headers=self.by(step))

    def by(self, step):
        return {{"User-Agent": f"{{type(self).__name__}}.{{step}}"}}


class Static(Shape):
    @step()
    async def one(
        self, url: URL = GET, headers: Headers = {{"User-Agent": "Static.one"}}
    ) -> HTTPResponse:
        return await self.client.http.get(url, headers=headers)


@depends("Static")
class StaticChain(Shape):
    @step()
    async def missing(
        self, url: URL = MISSING, headers: Headers = {{"User-Agent": "StaticChain.missing"}}
    ) -> HTTPResponse:
        return await self.client.http.get(url, headers=headers)

    @step("missing")
    async def after(
        self, url: URL = HOPS, headers: Headers = {{"User-Agent": "StaticChain.after"}}
    ) -> HTTPResponse:
        return await self.client.http.get(url, headers=headers)


@depends("StaticChain")
class Parallel(Shape):
    @step()
    async def left(self) -> HTTPResponse:
        return await self.get("left")

    @step()
    async def right(self) -> HTTPResponse:
        return await self.get("right")

    @step("left", "right")
    async def both(self) -> HTTPResponse:
        return await self.get("both")


@depends("Parallel")
class Mix(Shape):
    @step()
    async def chosen(self) -> str:
        return random.choices("abc", (6, 3, 1))[0]

    @step("chosen")
    async def a(self, chosen: str) -> HTTPResponse | None:
        return await self.get("a") if chosen == "a" else None

    @step("chosen")
    async def b(self, chosen: str) -> HTTPResponse | None:
        return await self.get("b", MISSING) if chosen == "b" else None

    @step("chosen")
    async def c(self, chosen: str) -> HTTPResponse | None:
        return await self.get("c", HOPS) if chosen == "c" else None


@depends("Mix")
class Quiet(Shape):
    @step()
    async def asked(self) -> HTTPResponse | None:
        response = await self.get("asked")
        return None if response.status == 200 else response


@depends("Quiet")
class AllMissing(Shape):
    @step()
    async def missing(self) -> HTTPResponse:
        return await self.get("missing", MISSING)


@depends("AllMissing")
class Accepted(Shape):
    @step(accept=[404])
    async def missing(self) -> HTTPResponse:
        return await self.get("missing", MISSING)


@depends("Accepted")
class Raising(Shape):
    @step()
    async def before(self) -> HTTPResponse:
        if IS_BROKEN:
            raise ValueError("before the call")
        return await self.get("before")

    @step()
    async def after(self) -> HTTPResponse:
        response = await self.get("after")
        if IS_BROKEN:
            raise ValueError("after the call")
        return response

    @step("after")
    async def never(self) -> HTTPResponse:
        return await self.get("never")


@depends("Raising")
class Redirected(Shape):
    @step()
    async def hops(self) -> HTTPResponse:
        return await self.get("hops", HOPS)


@depends("Redirected")
class TwoCalls(Shape):
    @step()
    async def two(self) -> HTTPResponse:
        await self.get("two", MISSING)
        return await self.get("two")


@depends("TwoCalls")
class Gathered(Shape):
    @step()
    async def three(self) -> HTTPResponse:
        _, _, last = await asyncio.gather(*(self.get("three") for _ in range(3)))
        return last


@depends("Gathered")
class Fresh(Shape):
    connections = "per-request"

    @step()
    async def post(self) -> HTTPResponse:
        url = "URL_/post"
        return await self.client.http.post(url, json={{"n": 1}}, headers=self.by("post"))


@depends("Fresh")
class Shared(Shape):
    connections = "shared"

    @step()
    async def first(self) -> HTTPResponse:
        return await self.get("first")

    @step("first")
    async def second(self) -> HTTPResponse:
        return await self.get("second", HOPS)


@depends("Shared")
class Around(Shape):
    @setup()
    async def begin(self) -> None:
        await self.get("begin")

    @action()
    async def warm(self) -> None:
        await self.get("warm", HOPS)

    @step()
    async def work(self) -> HTTPResponse:
        return await self.get("work")

    @teardown()
    async def end(self) -> None:
        await self.get("end")


@depends("Around")
class Late(Shape):
    iterations = {_VUS}
    timeout = "300ms"

    @step()
    async def slow(self) -> HTTPResponse:
        return await self.get("slow", SLOW)


@depends("Late")
class Cut(Shape):
    iterations = None
    duration = "500ms"
    grace = "100ms"

    @step()
    async def slow(self) -> HTTPResponse:
        return await self.get("slow", SLOW)
"""


class Expected(NamedTuple):
    """The counts of a step; None where chance or the number of executors decides."""

    ok: int | None = 0
    failed: int | None = 0
    none: int | None = 0
    sent: int | None = 0
    skipped: int = 0
    cut: int = 0


N = CALLS
EXPECTED = {
    "Static.one": Expected(ok=N, sent=N),
    "StaticChain.missing": Expected(failed=N, sent=N),
    "StaticChain.after": Expected(ok=N, sent=4 * N),
    "Parallel.left": Expected(ok=N, sent=N),
    "Parallel.right": Expected(ok=N, sent=N),
    "Parallel.both": Expected(ok=N, sent=N),
    "Mix.chosen": Expected(ok=N),
    "Mix.a": Expected(ok=None, none=None, sent=None),
    "Mix.b": Expected(failed=None, none=None, sent=None),
    "Mix.c": Expected(ok=None, none=None, sent=None),
    "Quiet.asked": Expected(none=N, sent=N),
    "AllMissing.missing": Expected(failed=N, sent=N),
    "Accepted.missing": Expected(ok=N, sent=N),
    "Raising.before": Expected(failed=N),
    "Raising.after": Expected(failed=N, sent=N),
    "Raising.never": Expected(skipped=N),
    "Redirected.hops": Expected(ok=N, sent=4 * N),
    "TwoCalls.two": Expected(ok=N, sent=2 * N),
    "Gathered.three": Expected(ok=N, sent=3 * N),
    "Fresh.post": Expected(ok=N, sent=N),
    "Shared.first": Expected(ok=N, sent=N),
    "Shared.second": Expected(ok=N, sent=4 * N),
    "Around.begin": Expected(ok=None, sent=None),
    "Around.warm": Expected(ok=N, sent=4 * N),
    "Around.work": Expected(ok=N, sent=N),
    "Around.end": Expected(ok=None, sent=None),
    "Late.slow": Expected(failed=_VUS, sent=_VUS),
    "Cut.slow": Expected(sent=_VUS, cut=_VUS),
}


def write_shapes(path: Path, url: str) -> Path:
    path.write_text(_SOURCE.replace("URL_", url))
    return path


def assert_counted(result: RunResult, server: LoggedServer) -> None:
    """Compare every count with what the server logged, and with what the shape makes it."""
    received = server.received()
    steps = {f"{w.name}.{step.name}": step for w in result.workflows for step in w.steps}
    assert steps.keys() == EXPECTED.keys()
    for name, step in steps.items():
        logged = received.pop(name, Counter())
        expected = EXPECTED[name]._asdict()
        counted = {field: getattr(step, field) for field in expected}
        wanted = {f: counted[f] if value is None else value for f, value in expected.items()}
        assert counted == wanted, name
        assert step.total == step.ok + step.failed, name
        assert step.sent == sum(point.sent for point in step.series), name
        if server.logs_abandoned or not (step.cut or "timeout" in step.errors):
            assert logged.total() == step.sent, name
        else:
            assert logged.total() <= step.sent, name
        _compare_statuses(name, step, logged)
    assert not received, "the server received requests that nobody counted"
    for workflow in result.workflows:
        _compare_workflow(workflow)
    mix = next(workflow for workflow in result.workflows if workflow.name == "Mix")
    assert (mix.total, mix.none, mix.iterations) == (CALLS, 2 * CALLS, CALLS)
    _compare_ending(next(workflow for workflow in result.workflows if workflow.name == "Cut"))


def _compare_statuses(name: str, step: StepResult, logged: Counter[int]) -> None:
    """A step has the status of its returned call; a redirect was followed, and not returned."""
    if step.cut or step.errors.keys() & {"exception", "timeout"} or step.none == CALLS:
        return  # what was received was not returned
    if step.kind != "test":
        return
    returned = {str(code): n for code, n in logged.items() if not 300 <= code < 400}
    if name == "TwoCalls.two":  # the first of its calls is not returned
        assert returned == {"404": CALLS, "200": CALLS}
        returned = {"200": CALLS}
    if name == "Gathered.three":
        returned = {code: n // 3 for code, n in returned.items()}
    assert step.status_codes == returned, name


def _compare_workflow(workflow: WorkflowResult) -> None:
    tests = [step for step in workflow.steps if step.kind == "test"]
    for count in ("total", "ok", "failed", "none", "cut"):
        assert getattr(workflow, count) == sum(getattr(step, count) for step in tests), count
    assert workflow.sent == sum(step.sent for step in workflow.steps), workflow.name
    load = [step for step in workflow.steps if step.kind in ("test", "action")]
    requests = sum(step.sent for step in load)
    assert sum(point.sent for point in workflow.series) == requests, workflow.name
    rate = requests / workflow.elapsed_seconds
    assert abs(workflow.requests_per_second - rate) <= 0.001 * rate, workflow.name


def _compare_ending(workflow: WorkflowResult) -> None:
    cut_ms = workflow.cut_ms
    assert cut_ms.min is not None
    assert cut_ms.min >= 100.0
    assert workflow.censored_from_ms == cut_ms.min
    assert workflow.latency_ms.max is None
