"""The analysis of source: whether any code reads the bodies of a step's responses."""

from textwrap import dedent, indent

import pytest

from hyperscale.graph import blueprint
from hyperscale.graph.static_steps import NotStatic

from .conftest import Files


def workflow(body: str, before: str = "") -> str:
    return f"{dedent(before)}\nclass W(Workflow):\n{indent(dedent(body), '    ')}"


def sees_body(files: Files, body: str, before: str = "") -> bool:
    """Return `sees_body` of the step `s`."""
    design = files.blueprint(workflow(body, before))
    return next(hook for layer in design.layers for hook in layer if hook.name == "s").sees_body


UNSEEN = [
    "return await self.client.http.get(url)",
    "await self.client.http.get(url)",
    """
    "A docstring."
    r = await self.client.http.get(url)
    return r
    """,
    """
    r: HTTPResponse = await self.client.http.get(url)
    if r.status == 404 or r is None:
        self.context["missing"] = r.headers.get("x")
        self.misses = self.limit + 1
    print(r.elapsed_s, (await self.client.http.head(url)).status_code)
    return r
    """,
    """
    first = await self.client.http.get(url)
    for _ in range(3):
        await self.client.http.get(url)
    return first
    """,
]

SEEN = [
    "return (await self.client.http.get(url)).json()",
    "return [await self.client.http.get(url)]",
    "r = await self.client.http.get(url); return r.text",
    "r = await self.client.http.get(url); return r.exchange",
    "r = await self.client.http.get(url); return r.anything_else",
    "r = await self.client.http.get(url); print(r)",
    "r = await self.client.http.get(url); q = r; return q.json()",
    "r = await self.client.http.get(url); self.kept = r",
    "r = await self.client.http.get(url); return (lambda: r)().text",
    "self.kept = await self.client.http.get(url)",
    "a, *b = await self.client.http.get(url)",
    "global G; G = await self.client.http.get(url)",
    "if (r := await self.client.http.get(url)): return r.text",
    "return await asyncio.gather(self.client.http.get(url))",
    "http = self.client.http; return (await http.get(url)).text",
    "return await fetch(self, url)",
    "return await self.helper(url)",
    "return await self.other()",
    "return self.body_of_last",
    "return getattr(self, 'helper')(url)",
    "return await super().s(url)",
    "r = await self.client.http.get(url); return locals()['r'].text",
    """
    try:
        return await self.client.http.get(url)
    except Exception as error:
        print(error.exchange.body)
    """,
    """
    match await self.client.http.get(url):
        case r: return r.text
    """,
]

HELPERS = """
    limit = 3
    async def helper(self, url):
        return (await self.client.http.get(url)).text
    @property
    def body_of_last(self): ...
    @step()
    async def other(self) -> HTTPResponse:
        return await self.client.http.get("http://a.test/")
"""


def _step(body: str) -> str:
    inner = indent(dedent(body).strip(), "    ")
    return f'@step()\nasync def s(self, url: URL = "http://a.test/") -> HTTPResponse:\n{inner}\n'


@pytest.mark.parametrize("body", UNSEEN)
def test_the_body_is_unread_if_no_code_reads_it(files: Files, body: str) -> None:
    assert not sees_body(files, _step(body) + dedent(HELPERS))


@pytest.mark.parametrize("body", SEEN)
def test_the_body_is_kept_if_code_may_read_it(files: Files, body: str) -> None:
    before = "import asyncio\nasync def fetch(w, url): ..."
    assert sees_body(files, _step(body) + dedent(HELPERS), before)


PLAIN = _step("return await self.client.http.get(url)")


@pytest.mark.parametrize(
    ("reader", "seen"),
    [
        ("@check()\ndef c(self, s): return s.status == 200", False),
        ("@check()\ndef c(self, s): return s.ok and s.headers['x'] == 'y'", False),
        ("@check()\ndef c(self, s): return s.json()['ok']", True),
        ("@check()\ndef c(self, s): return judge(s)", True),
        ("@metric()\ndef m(self, s): return len(s.content)", True),
        ("@metric()\ndef m(self, s): return s.bytes_received", False),
        ("@step('s')\nasync def t(self, s) -> HTTPResponse: print(s.status)", False),
        ("@step('s')\nasync def t(self, s=None) -> HTTPResponse: print(s.text)", True),
        ("@step('s')\nasync def t(self, s) -> HTTPResponse: return s", True),
        ("@step('s')\nasync def t(self) -> HTTPResponse: ...", False),
        ("@state('X')\ndef p(self) -> Provide[str]: return self.s.response.text", True),
        ("@state('X')\ndef p(self) -> Provide[str]: return self.context.get('x')", False),
        ("def helper(self): return self.s", True),
        ("@teardown()\ndef t(self): publish(self)", True),
        ("def __init__(self): super().__init__(); self.x = 1", False),
        ("async def later(self): return lambda: self.client.http.get('http://a.test')", True),
        ("thing = functools.partialmethod(print)", True),
        ("thing = functools.cached_property(lambda self: self.s.response)", True),
    ],
)
def test_a_hook_that_takes_the_response_may_read_its_body(
    files: Files, reader: str, seen: bool
) -> None:
    assert sees_body(files, PLAIN + reader, "import functools") is seen


def test_a_step_with_a_further_decorator_is_not_analysed(files: Files) -> None:
    before = """
    import functools
    def peek(function):
        @functools.wraps(function)
        async def wrapper(self, *args, **kwargs):
            return (await function(self, *args, **kwargs)).text
        return wrapper
    """
    design = files.blueprint(workflow(PLAIN.replace("@step()", "@step()\n@peek"), before))
    hook = design.layers[0][0]
    assert hook.sees_body
    assert hook.static is NotStatic.UNKNOWN_SOURCE


def test_a_file_that_changed_after_its_import_is_not_analysed(files: Files) -> None:
    (cls,) = files.classes(workflow(PLAIN), "shop.py")
    path = files.directory / "shop.py"
    path.write_text(path.read_text().replace(".get(url)", ".get(url + 'x')"))
    assert blueprint(cls).layers[0][0].sees_body
