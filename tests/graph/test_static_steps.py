"""Which steps and workflows run without the interpreter, and why others do not."""

from textwrap import dedent, indent

import pytest

from hyperscale.graph.static_steps import FromParameter, NotStatic, StaticCall

from .conftest import Files

PLAIN = """
@step()
async def s(self, url: URL = "http://localhost/") -> HTTPResponse:
    return await self.client.http.get(url)

"""


COLUMN = """
f = Feed([{"url": "http://localhost/1"}, {"url": "http://localhost/2"}])

@step()
async def s(self, url: URL = f.column("url")) -> HTTPResponse:
    return await self.client.http.get(url)

"""

OTHER = """
@step(weight=2)
async def t(self, url: URL = "http://localhost/") -> HTTPResponse:
    return await self.client.http.get(url)

"""

TWO_FEEDS = """
f = Feed([{"url": "http://localhost/1"}])
g = Feed([{"headers": {"a": "b"}}])

@step()
async def s(
    self, url: URL = f.column("url"), headers: Headers = g.column("headers")
) -> HTTPResponse:
    return await self.client.http.get(url, headers=headers)

"""


def workflow(body: str) -> str:
    return f"class W(Workflow):\n{indent(dedent(body), '    ')}"


def static(files: Files, text: str) -> StaticCall | NotStatic:
    """Return the analysis of the step `s`."""
    design = files.blueprint(workflow(text))
    return next(hook for layer in design.layers for hook in layer if hook.name == "s").static


@pytest.mark.parametrize(
    ("call", "args", "kwargs"),
    [
        ("get(url)", (FromParameter("url"),), {}),
        ("get('http://a.test/')", ("http://a.test/",), {}),
        (
            "post(url, json={'a': [1, -2.5, None]})",
            (FromParameter("url"),),
            {"json": {"a": [1, -2.5, None]}},
        ),
        ("post(url, data=body)", (FromParameter("url"),), {"data": FromParameter("body")}),
    ],
)
def test_one_call_on_fixed_arguments_is_static(
    files: Files, call: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    step = f"""
    @step()
    async def s(self, url: URL = "http://a.test/", body: Data = {{"u": "x"}}) -> HTTPResponse:
        "With a docstring."
        return await self.client.http.{call}
    """
    found = static(files, step)
    assert found == StaticCall(call.partition("(")[0], args, kwargs)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (PLAIN.replace("(url)", "(f'{url}/x')"), NotStatic.CHANGING_ARGUMENTS),
        (PLAIN.replace("(url)", "(url + 'x')"), NotStatic.CHANGING_ARGUMENTS),
        (PLAIN.replace("(url)", "(*url)"), NotStatic.CHANGING_ARGUMENTS),
        (PLAIN.replace("(url)", "(url, **OPTIONS)"), NotStatic.CHANGING_ARGUMENTS),
        (PLAIN.replace("(url)", "(URLS[0])"), NotStatic.CHANGING_ARGUMENTS),
        (PLAIN.replace("url: URL", "url: str"), NotStatic.CHANGING_ARGUMENTS),
        (PLAIN.replace("client.http", "client.redis"), NotStatic.MORE_THAN_ONE_CALL),
        (PLAIN.replace("return await", "await"), NotStatic.MORE_THAN_ONE_CALL),
        (PLAIN.replace("    return", "    x = 1\n    return"), NotStatic.MORE_THAN_ONE_CALL),
        (PLAIN.replace("HTTPResponse", "dict"), NotStatic.NO_HTTP_TEST),
        (PLAIN.replace("@step()", "@step(accept=lambda status: True)"), NotStatic.ACCEPT_IS_CODE),
        (PLAIN + "@check()\ndef c(self, s): return s.ok", NotStatic.RESPONSE_TAKEN),
        (PLAIN + "@metric()\ndef m(self, s): return 1", NotStatic.RESPONSE_TAKEN),
        (
            PLAIN + "@state('X')\ndef p(self) -> Provide[str]: return self.s.response.url",
            NotStatic.RESPONSE_TAKEN,
        ),
        (
            PLAIN + "@step('s')\nasync def t(self, s) -> HTTPResponse: ...",
            NotStatic.RESPONSE_TAKEN,
        ),
        (PLAIN + "def leak(self): return vars(self)", NotStatic.UNKNOWN_SOURCE),
    ],
)
def test_a_step_that_is_not_static_says_why(files: Files, step: str, why: NotStatic) -> None:
    assert static(files, step) is why


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (PLAIN, None),
        (PLAIN + "@teardown()\ndef t(self): ...", None),
        (PLAIN + "@setup()\ndef t(self): ...", NotStatic.SET_UP),
        (PLAIN + "@check()\ndef c(self): return True", NotStatic.JUDGED),
        ("f = Feed([{'a': 1}])" + PLAIN, None),
        (COLUMN, None),
        (COLUMN + PLAIN.replace("async def s", "async def t"), None),
        (COLUMN.replace("@step()", "@step(weight=1)") + OTHER, None),
        (COLUMN.replace("return await", "self.f\n    return await"), NotStatic.MORE_THAN_ONE_CALL),
        (TWO_FEEDS, NotStatic.TWO_FEEDS),
        (PLAIN.replace("(url)", "(url + 'x')"), NotStatic.CHANGING_ARGUMENTS),
    ],
)
def test_a_workflow_of_only_static_steps_is_static(
    files: Files, body: str, why: NotStatic | None
) -> None:
    assert files.blueprint(workflow(body)).why_not_static is why


@pytest.mark.parametrize(
    ("call", "result", "is_static"),
    [
        ("websocket.exchange('ws://h/', text='x')", "WebsocketResponse", True),
        ("tcp.exchange('tcp://h:1', data=b'x', until=b'.')", "TCPResponse", True),
        ("udp.send('udp://h:1', text='x')", "UDPResponse", True),
        ("http.stream('http://h/')", "StreamedResponse", False),
        ("sse.read('http://h/', events=1)", "SSEResponse", False),
        ("graphql.query('http://h/', '{ me }')", "GraphQLResponse", False),
    ],
)
def test_calls_on_streams_are_static_where_the_native_program_can_make_them(
    files: Files, call: str, result: str, is_static: bool
) -> None:
    text = f"@step()\nasync def s(self) -> {result}:\n    return await self.client.{call}\n"
    found = static(files, text)
    assert isinstance(found, StaticCall) == is_static
    if isinstance(found, StaticCall):
        assert found.client == call.partition(".")[0]


def test_steps_ordered_without_taking_results_stay_static(files: Files) -> None:
    after = PLAIN.replace("async def s", "async def t").replace("@step()", "@step('s')")
    assert isinstance(static(files, PLAIN + after), StaticCall)


def test_arguments_that_python_refuses_are_not_static(files: Files) -> None:
    made = files.blueprint("""
        class Shop(Workflow):
            @step()
            async def a(self, url: URL = "http://localhost/") -> HTTPResponse:
                return await self.client.http.get(url, params={[1]: 2})
    """)
    assert made.layers[0][0].static is NotStatic.CHANGING_ARGUMENTS
