"""Each wrong input gives one message that names file, class and method, and a hint."""

from textwrap import dedent, indent

import pytest

from hyperscale.errors import InputError
from hyperscale.graph import build_plan

from .conftest import Files

STEP = """
    @step()
    async def s(self) -> HTTPResponse: ...
"""


def workflow(name: str, body: str = STEP) -> str:
    return f"class {name}(Workflow):\n{indent(dedent(body).strip(), '    ')}\n"


def refusal(files: Files, text: str, **overrides: object) -> str:
    with pytest.raises(InputError) as caught:
        files.plan(text, name="shop.py", **overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("vus = 0", "Shop.vus: 0 must be at least 1"),
        ("vus = -5", "Shop.vus: -5 must be at least 1"),
        ("vus = True", "Shop.vus: True is not a whole number"),
        ("vus = 1.5", "Shop.vus: 1.5 is not a whole number"),
        ("vus = 'many'", "Shop.vus: 'many' is not a whole number"),
        ("vus = None", "Shop.vus: None is not a whole number"),
        ("vus = 10**9", "Shop.vus: 1000000000 must be at least 1 and at most 10000000"),
        ("duration = 'soon'", "Shop.duration: 'soon' is not a duration"),
        ("duration = '-5s'", "Shop.duration: '-5s' is not a duration"),
        ("duration = -5", "Shop.duration: -5 must be above 0"),
        ("duration = 0", "Shop.duration: 0 must be above 0"),
        ("duration = None", "Shop.duration: None is not a duration"),
        ("duration = float('nan')", "Shop.duration: nan must be above 0"),
        ("timeout = '1 fortnight'", "Shop.timeout: '1 fortnight' is not a duration"),
        ("grace = 'short'", "Shop.grace: 'short' is not a duration"),
        ("grace = -1", "Shop.grace: -1 must be at least 0"),
        ("interval = 'x'", "Shop.interval: 'x' is not a duration"),
        ("iterations = 0", "Shop.iterations: 0 must be at least 1"),
        ("iterations = 'x'", "Shop.iterations: 'x' is not a whole number"),
        ("priority = 'urgent'", "Shop.priority: 'urgent' is unknown"),
        ("priority = 3", "Shop.priority: 3 is unknown"),
        ("connections = 'pooled'", "Shop.connections: 'pooled' is unknown"),
        ("tags = 'smoke'", "Shop.tags: 'smoke' is not a list"),
        ("tags = [1]", "Shop.tags: 1 is not a text"),
        ("thresholds = {'p98': '<1s'}", "Shop.thresholds: unknown threshold 'p98'"),
        ("thresholds = {'nope.p99': '<1s'}", "Shop.thresholds: 'nope.p99' names no step 'nope'"),
        ("thresholds = {'p99': 'fast'}", "Shop.thresholds['p99']: 'fast' is not a limit"),
        ("thresholds = ['p99']", "Shop.thresholds: ['p99'] is not a mapping"),
        ("weights = [3]", "Shop.weights: 'weights' is not supported yet"),
        ("weights = {}", "Shop.weights: 'weights' is not supported yet"),
        ("on_isolation = 'stop'", "Shop.on_isolation: 'on_isolation' is not supported yet"),
    ],
)
def test_a_wrong_attribute_is_refused_by_name(files: Files, attribute: str, said: str) -> None:
    message = refusal(files, workflow("Shop", f"{attribute}\n{dedent(STEP)}"))
    assert message.startswith(f"shop.py:5: {said}"), message


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"vus": 0}, "--vus: 0 must be at least 1"),
        ({"vus": "x"}, "--vus: 'x' is not a whole number"),
        ({"vus": "-1"}, "--vus: '-1' must be at least 1"),
        ({"vus": "1.5"}, "--vus: '1.5' is not a whole number"),
        ({"vus": "9" * 5000}, "--vus: '999"),
        ({"duration": "x"}, "--duration: 'x' is not a duration"),
        ({"only": ["Shops"]}, "--only Shops: no workflow of that name (hint: the file has Shop)"),
    ],
)
def test_a_bad_override_is_refused_by_its_flag(
    files: Files, override: dict[str, object], said: str
) -> None:
    message = refusal(files, workflow("Shop"), **override)
    assert message.startswith(said)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (
            """
            @step("logni")
            async def pay(self) -> HTTPResponse: ...
            @step()
            async def login(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.pay: waits for unknown step 'logni' (hint: did you mean 'login'?)",
        ),
        (
            """
            @step("b")
            async def a(self) -> HTTPResponse: ...
            @step("c")
            async def b(self) -> HTTPResponse: ...
            @step("a")
            async def c(self) -> HTTPResponse: ...
            """,
            "shop.py:4: Shop: steps wait for each other: a -> b -> c -> a",
        ),
        (
            """
            @step("a")
            async def a(self) -> HTTPResponse: ...
            """,
            "shop.py:4: Shop: steps wait for each other: a -> a",
        ),
        (
            """
            @step("fetch")
            async def a(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: waits for 'fetch', a step of Other; steps know only their own "
            "class (hint: pass values between workflows with @state and @depends)",
        ),
        (
            """
            @step()
            @check()
            async def a(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: is both @check() and @step() (hint: keep one of them)",
        ),
        (
            """
            @step("ok")
            async def a(self) -> HTTPResponse: ...
            @check()
            def ok(self, a): ...
            """,
            "shop.py:5: Shop.a: waits for 'ok', which is no step of the iteration",
        ),
        (
            """
            @step(1)
            async def a(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: @step: 1 is not a name",
        ),
        (
            """
            @step()
            def a(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: @step() must be async",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse:
                yield 1
            """,
            "shop.py:5: Shop.a: @step() cannot be a generator",
        ),
        (
            """
            @step()
            async def a() -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: the first parameter must be self",
        ),
        (
            """
            @step()
            @staticmethod
            async def a() -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: @step() must decorate a plain method, not a staticmethod",
        ),
        (
            """
            @step()
            async def a(self) -> "Nowhere": ...
            """,
            "shop.py:5: Shop.a: the return annotation 'Nowhere' cannot be read",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            b = a
            """,
            "shop.py:5: Shop.a: a and b are the same decorated method",
        ),
        (
            """
            @step()
            async def timeout(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.timeout: a @step() cannot be called 'timeout'",
        ),
        (
            """
            @step()
            async def client(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.client: 'client' is what a run gives to every virtual user",
        ),
        (
            """
            def retried(inner):
                return lambda *args: inner(*args)
            @retried
            @step()
            async def a(self) -> HTTPResponse: ...
            @step()
            async def b(self) -> HTTPResponse: ...
            """,
            "shop.py:7: Shop.a: another decorator hides its @step() (hint: put @step() above it)",
        ),
        (
            """
            context = {}
            @step()
            async def a(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.context: 'context' is what a run gives to every virtual user",
        ),
        (
            """
            def __init__(self, path): ...
            @step()
            async def a(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.__init__: missing a required argument: 'path'",
        ),
        (
            """
            @step()
            async def a(self, token) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: nothing gives a value to its parameter 'token'",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @step()
            async def b(self, a) -> HTTPResponse: ...
            """,
            "shop.py:7: Shop.b: takes the result of 'a' without waiting for it "
            '(hint: write @step("a"))',
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @check()
            def fine(self, b): ...
            """,
            "shop.py:7: Shop.fine: nothing gives a value to its parameter 'b' "
            "(hint: name a step it waits for (a), or give it a default)",
        ),
        (
            """
            @step()
            async def a(self, token, /) -> HTTPResponse:
                self.context["token"]
            """,
            "shop.py:5: Shop.a: nothing gives a value to its parameter 'token'",
        ),
        (
            """
            @step(accept=4040)
            async def a(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: accept=4040: 4040 is neither an HTTP status",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @metric(kind="average")
            def m(self, a): ...
            """,
            "shop.py:7: Shop.m: 'average' is no kind of metric",
        ),
        (
            """
            @step()
            async def a(self, q: Query = "{ me") -> GraphQLResponse: ...
            """,
            "shop.py:5: Shop.a: q: not a GraphQL document: line 1: Syntax Error: Expected Name",
        ),
        (
            """
            @step()
            async def a(self, q: Query = "mutation { pay }") -> GraphQLResponse: ...
            """,
            "shop.py:5: Shop.a: q: the document has mutation, not a query",
        ),
        (
            """
            @step()
            async def a(self, q: Mutation = 7) -> GraphQLResponse: ...
            """,
            "shop.py:5: Shop.a: q: 7 is not a GraphQL mutation",
        ),
        (
            """
            schema = GraphQLSchema("missing.graphql")
            @step()
            async def a(self, q: Query = "{ me }") -> GraphQLResponse: ...
            """,
            "shop.py:5: Shop.schema: missing.graphql: No such file or directory",
        ),
        (
            """
            @step()
            async def a(self, f: Directory = "nowhere") -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: f: 'nowhere' is not a directory",
        ),
        (
            """
            @step()
            async def a(self, f: FileGlob = "*.nothing") -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: f: no file matches '*.nothing'",
        ),
        (
            """
            @step()
            async def a(self, url: URL) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: url is a request part without a value",
        ),
        (
            """
            @step()
            async def a(self, url: URL = "shop.test/x") -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: url: 'shop.test/x' is not an http URL: it has no scheme",
        ),
        (
            """
            @step()
            async def a(self, url: URL = "http:///x") -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: url: 'http:///x' is not a URL: it has no host",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse:
                return await self.client.http.get("ftp://shop.test/x")
            """,
            "shop.py:5: Shop.a: 'ftp://shop.test/x' is not an http URL: it has scheme 'ftp'",
        ),
        (
            """
            @step()
            async def a(self, f: File = "nowhere.bin") -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.a: f: file '",
        ),
        (
            """
            @setup()
            def prepare(self): ...
            """,
            "shop.py:4: Shop: a workflow without a step has nothing to run",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @setup(per="user")
            def login(self): ...
            """,
            "shop.py:7: Shop.login: per='user' is unknown",
        ),
        (
            """
            @setup
            def login(self): ...
            """,
            "shop.py:5: Shop.login: write @setup() with parentheses",
        ),
        (
            """
            vu = 5
            @step()
            async def a(self) -> HTTPResponse: ...
            """,
            "shop.py:5: Shop.vu: 'vu' is what a run gives to every virtual user",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @state("Other")
            def key(self) -> str: ...
            """,
            "shop.py:7: Shop.key: @state needs a return annotation",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @state("Absent")
            def key(self) -> Provide[str]: ...
            """,
            "shop.py:7: Shop.key: @state names unknown workflow 'Absent' (hint: there is Shop, "
            "Other)",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @state("Shop")
            def key(self) -> Provide[str]: ...
            """,
            "shop.py:7: Shop.key: @state names its own workflow 'Shop'",
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @state("Other")
            def take(self, key=None) -> Use[str]: ...
            """,
            "shop.py:7: Shop.take: uses a value of Other, but Shop does not depend on it "
            '(hint: put @depends("Other") above class Shop)',
        ),
        (
            """
            @step()
            async def a(self) -> HTTPResponse: ...
            @state("Other")
            def key(self, thing) -> Provide[str]: ...
            """,
            "shop.py:7: Shop.key: nothing gives a value to its parameter 'thing'",
        ),
    ],
)
def test_a_bad_method_is_refused_by_place_and_name(files: Files, steps: str, said: str) -> None:
    other = workflow("Other", STEP.replace("def s", "def fetch"))
    message = refusal(files, workflow("Shop", steps) + other)
    assert message.startswith(said), message


@pytest.mark.parametrize(
    ("depends", "said"),
    [
        (("Shopp", None), "shop.py:5: Seed: @depends on unknown workflow 'Shopp' (hint: did you"),
        (("Seed", None), "shop.py:5: Seed: workflows depend on each other: Seed -> Seed"),
        (("Shop", "Seed"), "shop.py:5: Seed: workflows depend on each other: Seed -> Shop -> Seed"),
    ],
)
def test_bad_dependencies_between_workflows_are_refused(
    files: Files, depends: tuple[str, str | None], said: str
) -> None:
    seed, shop = [f'@depends("{name}")\n' if name else "" for name in depends]
    message = refusal(files, seed + workflow("Seed") + shop + workflow("Shop"))
    assert message.startswith(said), message


def test_a_required_value_that_no_workflow_provides_is_refused(files: Files) -> None:
    provide = '@state("Shop")\ndef token(self) -> Provide[str]: ...'
    use = '@state("Seed")\ndef take(self, key: str) -> Use[str]: ...'
    message = refusal(
        files,
        workflow("Seed", dedent(STEP) + provide)
        + '@depends("Seed")\n'
        + workflow("Shop", dedent(STEP) + use),
    )
    assert message == (
        "shop.py:13: Shop.take: Seed provides no 'key' to Shop "
        "(hint: it is offered token; or give the parameter a default)"
    )


def test_waiting_for_a_step_that_a_plain_method_replaced_is_refused(files: Files) -> None:
    message = refusal(
        files,
        """
        class Base(Workflow):
            @step()
            async def a(self) -> HTTPResponse: ...
            @step("a")
            async def b(self) -> HTTPResponse: ...

        class Shop(Base):
            async def a(self) -> HTTPResponse: ...
        """,
    )
    assert message == (
        "shop.py:7: Shop.b: waits for 'a', which Shop or a base class replaces by a method that "
        "is no step (hint: put @step() above the new a too)"
    )


def test_two_classes_of_one_name_are_refused(files: Files) -> None:
    message = refusal(files, workflow("Shop") + workflow("Shop"))
    assert message.startswith("shop.py: Shop is defined twice")


def test_two_files_with_one_class_name_are_refused_together(files: Files) -> None:
    both = files.classes(workflow("Shop"), "a.py") + files.classes(workflow("Shop"), "b.py")
    with pytest.raises(
        InputError, match=r"b\.py:4: Shop and a\.py:4: Shop: two workflows have the same name"
    ):
        build_plan("a.py", both)
