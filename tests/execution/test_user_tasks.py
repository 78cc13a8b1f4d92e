"""A virtual user is a task to the code of its steps, although calls wake it without the task."""

from collections.abc import Iterator

import pytest

from tests.execution.server import CountingServer
from tests.lab.executors import Lab


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as running:
        yield running


def write(lab: Lab, server: CountingServer, source: str) -> None:
    lab.write(source.replace("URL_OF_SERVER", server.url))


def test_a_step_sees_its_own_task_and_context_after_every_wait(
    lab: Lab, server: CountingServer
) -> None:
    write(
        lab,
        server,
        """
        from contextvars import ContextVar

        name = ContextVar("name")

        class Own(Workflow):
            vus = 5
            duration = "30s"
            iterations = 50

            @step()
            async def mixed(self, url: URL = "URL_OF_SERVER/") -> HTTPResponse:
                task = asyncio.current_task()
                name.set(f"user {self.vu}")
                await self.client.http.get(url)
                assert asyncio.current_task() is task
                await asyncio.sleep(0)
                await asyncio.gather(self.client.http.get(url), self.client.http.get(url))
                assert asyncio.current_task() is task
                response = await self.client.http.get(url)
                assert asyncio.current_task() is task
                assert name.get() == f"user {self.vu}"
                return response
        """,
    )
    (outcome,) = lab.run("Own")
    counts = outcome.step("mixed").counts
    assert (counts.total, counts.ok, counts.sent) == (50, 50, 200), outcome.output


def test_a_timeout_inside_a_step_cuts_the_call_and_not_the_user(
    lab: Lab, server: CountingServer
) -> None:
    write(
        lab,
        server,
        """
        class Hasty(Workflow):
            vus = 2
            duration = "30s"
            iterations = 6

            @step()
            async def look(self, url: URL = "URL_OF_SERVER/delay/20000") -> HTTPResponse:
                try:
                    async with asyncio.timeout(0.01):
                        return await self.client.http.get(url)
                except TimeoutError:
                    return await self.client.http.get("URL_OF_SERVER/")
        """,
    )
    (outcome,) = lab.run("Hasty")
    counts = outcome.step("look").counts
    assert (counts.total, counts.ok) == (6, 6), outcome.output
    assert server.requests["GET /"] == 6


@pytest.mark.parametrize("awaited", ["self.client.http.get(url)", "asyncio.sleep(60)"])
def test_a_step_that_cancels_its_own_task_fails_and_the_user_goes_on(
    lab: Lab, server: CountingServer, awaited: str
) -> None:
    source = """
        class Cancels(Workflow):
            vus = 2
            duration = "30s"
            iterations = 6

            @step()
            async def look(self, url: URL = "URL_OF_SERVER/delay/20000") -> HTTPResponse:
                await self.client.http.get("URL_OF_SERVER/")
                asyncio.current_task().cancel()
                return await AWAITED
        """
    write(lab, server, source.replace("AWAITED", awaited))
    (outcome,) = lab.run("Cancels")
    counts = outcome.step("look").counts
    assert (counts.total, counts.ok) == (6, 0), outcome.output
    assert server.requests["GET /"] == 6


def test_a_call_that_another_task_cancels_fails_the_step_that_waits_for_it(
    lab: Lab, server: CountingServer
) -> None:
    write(
        lab,
        server,
        """
        class Betrayed(Workflow):
            vus = 1
            duration = "30s"
            iterations = 3

            @step()
            async def look(self, url: URL = "URL_OF_SERVER/delay/20000") -> HTTPResponse:
                await self.client.http.get("URL_OF_SERVER/")
                call = self.client.http.get(url)
                asyncio.get_running_loop().call_later(0.01, call.cancel)
                return await call
        """,
    )
    (outcome,) = lab.run("Betrayed")
    counts = outcome.step("look").counts
    assert (counts.total, counts.ok) == (3, 0), outcome.output


def test_an_async_step_may_be_a_function_that_returns_an_awaitable(
    lab: Lab, server: CountingServer
) -> None:
    write(
        lab,
        server,
        """
        import functools

        def logged(function):
            @functools.wraps(function)
            def call(self, *args, **kwargs):
                return asyncio.ensure_future(function(self, *args, **kwargs))
            return call

        class Wrapped(Workflow):
            vus = 2
            duration = "30s"
            iterations = 6

            @step()
            @logged
            async def look(self, url: URL = "URL_OF_SERVER/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
    )
    (outcome,) = lab.run("Wrapped")
    counts = outcome.step("look").counts
    assert (counts.total, counts.ok, counts.sent) == (6, 6, 6), outcome.output


def test_a_workflow_may_have_more_steps_than_a_word_has_bits(lab: Lab) -> None:
    steps = "".join(
        f"""
            @step({f'"s{number - 1}"' if number else ""})
            async def s{number}(self) -> Result:
                return Result({number})
        """
        for number in range(70)
    )
    check = """
            @check()
            def is_last(self, s69: Result) -> bool:
                return s69.value == 69
        """
    head = """
        class Long(Workflow):
            vus = 2
            duration = "30s"
            iterations = 4
        """
    lab.write(f"{head}{steps}{check}")
    (outcome,) = lab.run("Long")
    assert [outcome.step(f"s{number}").counts.ok for number in (0, 63, 64, 69)] == [4] * 4
    assert outcome.check("is_last").passed == 4
