"""A step that returns the response of a client call is measured, with or without annotation."""

from textwrap import dedent, indent

import msgspec
import pytest

from hyperscale.errors import InputError
from hyperscale.graph import blueprint
from hyperscale.graph.static_steps import StaticCall
from hyperscale.plan import StepKind

from .conftest import Files

HELPERS = """
    async def fetch(self, path):
        return await self.client.http.get("http://shop.test" + path)
    def later(self, path):
        return self.client.http.get("http://shop.test" + path)
    async def decode(self, path):
        response = await self.fetch(path)
        return response.json()
"""


def shop(body: str, signature: str = "(self)", decorator: str = "@step()", more: str = "") -> str:
    return (
        "import asyncio\nfrom typing import Any\nclass Shop(Workflow):\n"
        f"{more}    {decorator}\n    async def go{signature}:\n"
        f"{indent(dedent(body).strip(), '        ')}\n{HELPERS}"
    )


@pytest.mark.parametrize(
    "body",
    [
        "return await self.client.http.get('http://shop.test/')",
        "response = await self.client.http.get('http://shop.test/')\nreturn response",
        "http = self.client.http\nreturn await http.post('http://shop.test/', json={})",
        "client = self.client\nreturn await client.http.get('http://shop.test/')",
        "return await asyncio.wait_for(self.client.http.get('http://shop.test/'), 5)",
        "task = asyncio.create_task(self.fetch('/'))\nreturn await task",
        "async with asyncio.timeout(5):\n    return await self.fetch('/')",
        "return await self.later('/')",
        "if self.context:\n    return None\nreturn await self.fetch('/')",
        "response = None\nfor path in '/a', '/b':\n    response = await self.fetch(path)\n"
        "return response",
        "return (response := await self.fetch('/'))",
        "return await self.fetch('/') if self.context else None",
        "try:\n    return await self.fetch('/')\nfinally:\n    print()",
    ],
)
@pytest.mark.parametrize("signature", ["(self)", "(self) -> Any"])
def test_a_step_without_annotation_that_returns_a_response_is_a_test(
    files: Files, body: str, signature: str
) -> None:
    plan = files.plan(shop(body, signature))
    assert plan.workflows[0].is_test
    assert plan.workflows[0].steps[0].kind is StepKind.TEST
    assert plan.warnings == ()


def test_a_step_without_annotation_can_run_in_the_native_engine(files: Files) -> None:
    made = files.blueprint(
        """
        class Shop(Workflow):
            @step()
            async def go(self, url: URL = "http://shop.test/"):
                return await self.client.http.get(url)
        """
    )
    assert isinstance(made.layers[0][0].static, StaticCall)
    assert made.why_not_static is None


def test_a_worker_takes_the_kind_of_a_step_from_the_plan(files: Files) -> None:
    text = shop("return await self.fetch('/')")
    plan = files.plan(text).workflows[0]
    cls = files.classes(text)[0]
    assert blueprint(cls, plan).layers[0][0].protocol == "http"
    (step,) = plan.steps
    other = msgspec.structs.replace(plan, steps=(msgspec.structs.replace(step, kind="action"),))
    decoded = msgspec.convert(msgspec.to_builtins(other), type(plan))
    assert blueprint(cls, decoded).layers[0][0].kind is StepKind.ACTION


@pytest.mark.parametrize(
    "body",
    [
        "await self.client.http.get('http://shop.test/')",
        "return (await self.client.http.get('http://shop.test/')).json()",
        "response = await self.fetch('/')\nresponse = response.json()\nreturn response",
        "return await asyncio.gather(self.fetch('/'), self.fetch('/'))",
        "return await self.decode('/')",
    ],
)
@pytest.mark.parametrize("signature", ["(self)", "(self) -> dict"])
def test_requests_that_nothing_would_measure_are_refused(
    files: Files, body: str, signature: str
) -> None:
    with pytest.raises(InputError) as caught:
        files.plan(shop(body, signature), "shop.py")
    assert caught.value.message == (
        "shop.py:7: Shop.go: makes requests, but no step of Shop returns a response: nothing would "
        "be measured, and the steps would run only once"
    )
    assert "return await self.client.http.get(url)" in caught.value.hint


def test_actions_and_counted_workflows_may_make_requests_that_are_not_measured(
    files: Files,
) -> None:
    body = "await self.client.http.get('http://shop.test/')"
    assert not files.plan(shop(body, decorator="@action()")).workflows[0].is_test
    measured = (
        "class Measured(Workflow):\n    @step()\n    async def s(self) -> HTTPResponse: ...\n"
    )
    plan = files.plan(shop(body, more="    iterations = 5\n") + measured)
    assert "is an action: not measured" in plan.warnings[0]


@pytest.mark.parametrize("annotation", ["int", "'int'", "None", "dict[str, int]"])
def test_an_annotation_that_denies_the_response_is_refused(files: Files, annotation: str) -> None:
    with pytest.raises(InputError) as caught:
        files.plan(shop("return await self.fetch('/')", f"(self) -> {annotation}"), "shop.py")
    shown = annotation.strip("'")
    assert caught.value.message == (
        "shop.py:7: Shop.go: returns the response of a request, but its return annotation is "
        f"{shown}"
    )
    assert "-> HTTPResponse" in caught.value.hint


@pytest.mark.parametrize("signature", ["(self)", "(self) -> HTTPResponse"])
@pytest.mark.parametrize("decorator", ["@step()", "@action()"])
def test_a_request_returned_without_await_is_refused(
    files: Files, signature: str, decorator: str
) -> None:
    body = "pass\nreturn self.client.http.get('http://shop.test/')"
    with pytest.raises(InputError) as caught:
        files.plan(shop(body, signature, decorator), "shop.py")
    assert caught.value.message == (
        "shop.py:7: Shop.go: returns a request without awaiting it, in line 10"
    )
    assert "return await" in caught.value.hint


def test_a_method_that_calls_itself_is_looked_at_once(files: Files) -> None:
    plan = files.plan(
        """
        class Shop(Workflow):
            @step()
            async def go(self):
                return await self.again(3)
            async def again(self, left):
                if left:
                    return await self.again(left - 1) or await self.again(left - 1)
                return await self.client.http.get("http://shop.test/")
        """
    )
    assert plan.workflows[0].is_test
