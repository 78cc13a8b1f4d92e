"""How hooks are called: arguments are computed once and copied for every call."""

import functools

from hyperscale.execution.hook_calls import HookCall, StepProgram, compile_calls, is_once
from hyperscale.graph import Workflow, action, blueprint, check, step
from hyperscale.testing import URL, CustomResult, Headers, HTTPResponse


def compiled(cls: type[Workflow]) -> StepProgram:
    return compile_calls(blueprint(cls))


def calls(program: StepProgram) -> dict[str, HookCall]:
    return {call.name: call for call in [*program.recorded(), *program.checks]}


def kept(function):
    @functools.wraps(function)
    async def wrapper(*args, **kwargs):
        return await function(*args, **kwargs)

    return wrapper


class Parts(Workflow):
    @step()
    async def plain(self, url: URL = "http://h/a") -> HTTPResponse:
        return url, {}

    @step()
    async def both(
        self,
        url: URL = "http://h/b",
        *,
        headers: Headers = {"a": "1"},  # noqa: B006 - how request parts are written
        n: int = 3,
    ) -> HTTPResponse:
        return url, headers, n

    @step()
    @kept
    async def wrapped(self, url: URL = "http://h/c") -> HTTPResponse:
        return url

    @step("plain")
    async def takes(
        self,
        plain=None,
        both="default",
        mine: list = [],  # noqa: B006 - what is tested
    ) -> HTTPResponse:
        mine.append(1)
        return plain, both, mine


def run(call: HookCall, instance: Workflow, results: list) -> object:
    coroutine = call.function(instance, **call.arguments(instance, results))
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")


def test_request_parts_become_defaults_so_that_most_calls_have_no_keywords() -> None:
    by_name = calls(compiled(Parts))
    assert by_name["plain"].is_plain
    url, _ = run(by_name["plain"], Parts(), [])
    assert type(url).__name__ == "UrlValue"
    assert Parts.plain.function.__defaults__ == ("http://h/a",)  # the class is left as it was


def test_keyword_only_parameters_keep_their_other_defaults() -> None:
    both = calls(compiled(Parts))["both"]
    url, headers, n = run(both, Parts(), [])
    assert (url, dict(headers), n) == ("http://h/b", {"a": "1"}, 3)


def test_a_decorator_that_hides_the_parameters_gets_them_as_keywords() -> None:
    wrapped = calls(compiled(Parts))["wrapped"]
    assert not wrapped.is_plain
    assert type(run(wrapped, Parts(), [])).__name__ == "UrlValue"


def test_a_hook_gets_only_results_it_waits_for_and_its_own_copy_of_defaults() -> None:
    program = compiled(Parts)
    by_name = calls(program)
    results = [None] * program.size
    results[by_name["plain"].index] = "result of plain"
    results[by_name["both"].index] = "result of both"
    for _ in range(2):
        plain, both, mine = run(by_name["takes"], Parts(), results)
        assert (plain, both, mine) == ("result of plain", "default", [1])


class Judged(Workflow):
    @step()
    async def one(self) -> HTTPResponse:
        return await self.client.http.get("http://h/")

    @check()
    def is_ok(self, one: HTTPResponse) -> bool:
        return one.json() == {}

    @check()
    def is_named(self, *, one: HTTPResponse) -> bool:
        return one.ok


def test_a_check_of_one_result_is_called_without_keywords_in_the_scope_of_its_step() -> None:
    program = compiled(Judged)
    by_name = calls(program)
    assert program.judges_at_once
    assert by_name["is_ok"].only == by_name["one"].index
    assert by_name["is_named"].only is None
    assert by_name["is_ok"].scope is by_name["one"].scope


def test_a_step_needs_exactly_the_steps_it_comes_after() -> None:
    by_name = calls(compiled(Parts))
    assert by_name["takes"].needs == by_name["plain"].bit
    assert by_name["plain"].needs == 0


class Remembering(Workflow):
    @step()
    async def one(self) -> CustomResult:
        return CustomResult()

    @check()
    def looks_back(self, one):
        return self.one.response is one


class Forgetful(Workflow):
    @step()
    async def one(self) -> CustomResult:
        return CustomResult()


class Seed(Workflow):
    @action()
    async def make(self) -> None:
        pass


class CountedSeed(Seed):
    iterations = 3


def test_results_are_kept_only_if_code_reads_them_by_name() -> None:
    assert compiled(Remembering).remembers
    assert not compiled(Forgetful).remembers


def test_only_a_workflow_without_tests_and_without_a_count_runs_once() -> None:
    assert is_once(blueprint(Seed))
    assert not is_once(blueprint(CountedSeed))
    assert not is_once(blueprint(Forgetful))
