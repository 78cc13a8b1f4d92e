"""Plans of classes: defaults, order, overrides, hosts, files, states."""

import msgspec
import pytest

from hyperscale.graph import Workflow, blueprint
from hyperscale.plan import Connections, Plan, Priority, StateKind, StepKind
from hyperscale.plan.context import contract

from .conftest import Files

ONE = """
class Shop(Workflow):
    @step()
    async def s(self) -> HTTPResponse: ...
"""


def test_defaults_are_as_documented(files: Files) -> None:
    workflow = files.plan(ONE).workflows[0]
    assert (workflow.vus, workflow.duration_s, workflow.timeout_s) == (1000, 60.0, 30.0)
    assert workflow.priority is Priority.AUTO
    assert workflow.connections is Connections.PER_VU
    assert workflow.interval_s is None
    assert workflow.iterations is None
    assert (workflow.tags, workflow.thresholds, workflow.depends) == ((), (), ())


@pytest.mark.parametrize("priority", ["high", "HIGH", "High", " high "])
def test_priority_is_read_in_any_case(files: Files, priority: str) -> None:
    plan = files.plan(ONE + f"    priority = {priority!r}\n")
    assert plan.workflows[0].priority is Priority.HIGH


def test_attributes_are_read_with_their_units(files: Files) -> None:
    workflow = files.plan(
        ONE
        + """
    vus = 50
    duration = "1m30s"
    timeout = 2
    interval = "250ms"
    iterations = 10
    connections = "shared"
    tags = {"b", "a"}
    thresholds = {"s.p99": "<250ms", "errors": {"limit": "<1%", "abort_on_fail": True}}
"""
    ).workflows[0]
    assert (workflow.vus, workflow.duration_s, workflow.timeout_s) == (50, 90.0, 2.0)
    assert (workflow.interval_s, workflow.iterations) == (0.25, 10)
    assert workflow.connections is Connections.SHARED
    assert workflow.tags == ("a", "b")
    assert [(t.name, t.abort_on_fail) for t in workflow.thresholds] == [
        ("s.p99", False),
        ("errors", True),
    ]


def test_overrides_replace_attributes_of_the_class(files: Files) -> None:
    workflow = files.plan(ONE, vus="7", duration="3s").workflows[0]
    assert (workflow.vus, workflow.duration_s) == (7, 3.0)


def test_only_includes_the_dependencies_of_the_chosen_workflows(files: Files) -> None:
    text = """
        class A(Workflow):
            @step()
            async def s(self) -> HTTPResponse: ...
        @depends("A")
        class B(A): ...
        @depends("B")
        class C(A): ...
        class D(A): ...
    """
    plan = files.plan(text, only=["C"])
    assert [workflow.name for workflow in plan.workflows] == ["A", "B", "C"]
    assert plan.warnings == ("C depends on A: it runs too", "C depends on B: it runs too")
    assert [w.name for w in files.plan(text, only=["D", "A"]).workflows] == ["A", "D"]


def test_depends_keeps_the_class_itself_and_is_inherited(files: Files) -> None:
    seed, shop, special = files.classes(
        """
        class Seed(Workflow):
            @step()
            async def s(self) -> HTTPResponse: ...
        @depends("Seed", "Seed")
        class Shop(Seed): ...
        class Special(Shop): ...
        """
    )
    assert issubclass(shop, Workflow)
    plans = [blueprint(cls).plan for cls in (seed, shop, special)]
    assert [plan.depends for plan in plans] == [(), ("Seed",), ("Seed",)]


def test_a_diamond_has_three_layers_in_definition_order(files: Files) -> None:
    design = files.blueprint(
        """
        class W(Workflow):
            @step("b", "c")
            async def d(self, b: HTTPResponse, c=None) -> HTTPResponse: ...
            @step("a")
            async def b(self) -> HTTPResponse: ...
            @step("a")
            async def c(self) -> HTTPResponse: ...
            @step()
            async def a(self) -> HTTPResponse: ...
        """
    )
    assert [[hook.name for hook in layer] for layer in design.layers] == [["a"], ["b", "c"], ["d"]]
    assert design.layers[2][0].injected == ("b", "c")
    assert {step.name: step.layer for step in design.plan.steps} == {"d": 2, "b": 1, "c": 1, "a": 0}


def test_plain_steps_are_roots_that_run_side_by_side(files: Files) -> None:
    design = files.blueprint(
        """
        class W(Workflow):
            @step()
            async def z(self) -> HTTPResponse: ...
            @step()
            async def a(self) -> HTTPResponse: ...
        """
    )
    assert [[hook.name for hook in layer] for layer in design.layers] == [["z", "a"]]


def test_results_come_from_any_ancestor_and_never_replace_a_request_part(files: Files) -> None:
    design = files.blueprint(
        """
        class W(Workflow):
            @step()
            async def a(self) -> HTTPResponse: ...
            @step("a")
            async def b(self) -> HTTPResponse: ...
            @step("b")
            async def c(self, a: HTTPResponse, b: URL = "http://a.test/", token=None,
                        none: Headers | None = None) -> HTTPResponse: ...
        """
    )
    hook = design.layers[2][0]
    assert hook.injected == ("a", "token", "none")
    assert dict(hook.optimized) == {"b": "http://a.test/"}


def test_the_result_of_a_step_that_is_not_waited_for_is_not_injected(files: Files) -> None:
    text = """
        class W(Workflow):
            @step()
            async def a(self) -> HTTPResponse: ...
            @step()
            async def b(self, a=None) -> HTTPResponse: ...
    """
    assert files.plan(text, "shop.py").warnings == (
        "shop.py:7: W.b: takes the result of 'a' without waiting for it; it gets its default "
        '(write @step("a"))',
    )
    assert files.blueprint(text).layers[0][1].injected == ()


def test_steps_of_bases_are_inherited_and_can_be_replaced(files: Files) -> None:
    text = """
        class Mixin:
            @step()
            async def ping(self) -> HTTPResponse: ...
        class Base(Workflow):
            @step()
            async def login(self) -> HTTPResponse: ...
            @step("login")
            async def browse(self) -> HTTPResponse: ...
            @step()
            async def gone(self) -> HTTPResponse: ...
        class Shop(Base, Mixin):
            gone = None
            @step()
            async def pay(self, base: HTTPResponse | None = None) -> HTTPResponse: ...
            @step("pay")
            async def login(self) -> dict: ...
    """
    plan = files.plan(text, "shop.py")
    steps = plan.workflows[1].steps
    assert [(step.name, step.kind, step.layer) for step in steps] == [
        ("ping", StepKind.TEST, 0),
        ("login", StepKind.ACTION, 1),
        ("browse", StepKind.TEST, 2),
        ("pay", StepKind.TEST, 0),
    ]
    assert any(warning.startswith("shop.py:15: Shop.gone: replaces") for warning in plan.warnings)


def test_a_parameter_without_default_may_come_from_the_context(files: Files) -> None:
    files.plan(
        """
        class W(Workflow):
            @setup()
            async def prepare(self):
                self.context["token"] = "t"
            @step()
            async def a(self, token) -> HTTPResponse: ...
        """
    )


def test_attributes_of_a_later_version_may_name_methods(files: Files) -> None:
    plan = files.plan(
        """
        class Shop(Workflow):
            @step()
            async def data(self) -> HTTPResponse: ...
            def weights(self): ...
        """
    )
    assert [step.name for step in plan.workflows[0].steps] == ["data"]


def test_hosts_of_all_literal_urls_are_in_the_plan_once(files: Files) -> None:
    workflow = files.plan(
        """
        class Shop(Workflow):
            @step()
            async def a(self, url: URL = "https://shop.test/a") -> HTTPResponse: ...
            @step()
            async def b(self, url: URL = "https://shop.test/b",
                        v6: URL = "http://[::1]:8080/") -> HTTPResponse:
                await self.client.http.request("GET", "http://in.body.test/x")
                await self.client.http.get(url="http://by.name.test:81")
                await self.client.http.get(f"{url}/x")
                return await self.client.http.get("http://in.body.test/")
        """
    ).workflows[0]
    assert sorted(workflow.hosts) == [
        "[::1]:8080",
        "by.name.test:81",
        "in.body.test:80",
        "shop.test:443",
    ]


def test_files_are_found_beside_the_test_and_read_once_per_blueprint(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files.directory / "body.json").write_text('{"a": 1}')
    text = """
        class Shop(Workflow):
            @step()
            async def a(self, f: File = "body.json") -> HTTPResponse: ...
    """
    classes = files.classes(text, "shop.py")
    (files.directory / "sub").mkdir()
    monkeypatch.chdir(files.directory / "sub")
    design = blueprint(classes[0])
    assert design.plan.files == {"body.json": str(files.directory / "body.json")}
    value = design.layers[0][0].optimized["f"]
    assert value == b'{"a": 1}'
    assert (value.filename, value.content_type) == ("body.json", "application/json")  # type: ignore[attr-defined]  # it is a file's content
    travelled = blueprint(classes[0], design.plan, files={"body.json": b"from the bundle"})
    assert travelled.layers[0][0].optimized["f"] == b"from the bundle"


def test_every_hook_has_its_own_values(files: Files) -> None:
    design = files.blueprint(
        """
        SHARED = URL("http://a.test/")
        class Shop(Workflow):
            @step()
            async def a(self, url: URL = SHARED) -> HTTPResponse: ...
            @step()
            async def b(self, url: URL = SHARED) -> HTTPResponse: ...
        """
    )
    a, b = (hook.optimized["url"] for hook in design.layers[0])
    a.optimized = object()
    assert a == b == "http://a.test/"
    assert b.optimized is None


def test_states_are_in_the_plans_of_provider_and_user(files: Files) -> None:
    plan = files.plan(
        """
        class Seed(Workflow):
            @action()
            async def a(self) -> None: ...
            @state("Shop", "Other")
            def token(self) -> Provide[str]: ...
            @state("Shop")
            async def ids(self) -> "Provide[list[int]]": ...
        @depends("Seed")
        class Shop(Workflow):
            @step()
            async def s(self, token, ids=()) -> HTTPResponse: ...
            @state("Seed")
            def take(self, token: str, ids: list[int] | None = None) -> Use[str]: ...
        class Other(Workflow):
            @step()
            async def s(self) -> HTTPResponse: ...
        """,
        "shop.py",
    )
    seed, shop, _ = plan.workflows
    assert [(s.kind, s.keys, s.workflows, s.is_list) for s in seed.states] == [
        (StateKind.PROVIDE, ("token",), ("Shop", "Other"), False),
        (StateKind.PROVIDE, ("ids",), ("Shop",), True),
    ]
    assert [(s.kind, s.keys, s.required) for s in shop.states] == [
        (StateKind.USE, ("token", "ids"), ("token",)),
    ]
    assert contract(seed, shop.states[0], "Shop") == ["token", "ids"]
    assert contract(seed, shop.states[0], "Other") == ["token"]
    assert [warning.partition(":")[2] for warning in plan.warnings] == [
        "7: Seed.token: provides 'token' to Other, which does not use it; it needs "
        "@state(\"Seed\") on a method with a parameter 'token', -> Use[…]"
    ]


def test_one_sided_and_empty_states_are_warned_about(files: Files) -> None:
    plan = files.plan(
        """
        class Seed(Workflow):
            @action()
            async def a(self) -> None: ...
            @state()
            def nobody(self) -> Provide[str]: ...
        @depends("Seed")
        class Shop(Workflow):
            @step()
            async def s(self) -> HTTPResponse: ...
            @state("Seed")
            def take(self, nobody: str | None = None) -> Use[str]: ...
        """,
        "shop.py",
    )
    assert plan.warnings == (
        "shop.py:7: Seed.nobody: @state() names no workflow, so nothing flows",
        "shop.py:13: Shop.take: Seed provides no 'nobody' to Shop, so it always has its default "
        "(it is offered nothing)",
    )


def test_a_plan_is_the_same_after_encoding(files: Files) -> None:
    plan = files.plan(ONE + '    thresholds = {"p99": "<1s"}\n')
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan


def test_accept_is_a_rule_on_the_status(files: Files) -> None:
    design = files.blueprint(
        """
        class W(Workflow):
            @step(accept=404)
            async def a(self) -> HTTPResponse: ...
            @step(accept=[409, 410])
            async def b(self) -> HTTPResponse: ...
            @step(accept=lambda status: status < 500)
            async def c(self) -> HTTPResponse: ...
            @step()
            async def d(self) -> HTTPResponse: ...
        """
    )
    a, b, c, d = design.layers[0]
    passed = [
        [status for status in (404, 409, 503) if hook.accept and hook.accept(status)]
        for hook in (a, b, c)
    ]
    assert passed == [[404], [409], [404, 409]]
    assert d.accept is None


@pytest.mark.parametrize("wrapper", ["async def", "def"])
def test_a_wrapped_method_is_read_like_the_method_itself(files: Files, wrapper: str) -> None:
    files.write(
        f"""
        import functools
        def retried(function):
            @functools.wraps(function)
            {wrapper} wrapper(*args, **kwargs):
                return {"await " if "async" in wrapper else ""}function(*args, **kwargs)
            return wrapper
        """,
        "wrappers_for_shop.py",
    )
    design = files.blueprint(
        """
        import wrappers_for_shop
        class Page(HTTPResponse): ...
        class Shop(Workflow):
            @step()
            @wrappers_for_shop.retried
            async def a(self, url: "URL" = "http://a.test/") -> "Page": ...
        """
    )
    hook = design.layers[0][0]
    assert hook.kind is StepKind.TEST
    assert hook.is_async
    assert dict(hook.optimized) == {"url": "http://a.test/"}


def test_a_class_with_its_own_constructor_is_planned(files: Files) -> None:
    plan = files.plan(
        """
        class Shop(Workflow):
            def __init__(self, size=3, *more, key=None):
                self.size = size
            @step()
            async def a(self) -> HTTPResponse: ...
        """
    )
    assert [workflow.name for workflow in plan.workflows] == ["Shop"]
