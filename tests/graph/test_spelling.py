"""Attributes that look like a setting are refused; attributes of the user's own are not."""

import pytest

from hyperscale.errors import InputError

from .conftest import Files

STEP = """
            @step()
            async def go(self):
                {code}
                return await self.client.http.get("http://shop.test/")
"""


def plan(files: Files, attribute: str, code: str = "pass") -> None:
    files.plan(
        f"""
        class Shop(Workflow):
            {attribute}
        {STEP.format(code=code)}
        """,
        name="shop.py",
    )


@pytest.mark.parametrize(
    ("attribute", "setting"),
    [
        ('duratoin = "5s"', "duration"),
        ("Vus = 5", "vus"),
        ("VUS = 5", "vus"),
        ("vuss = 5", "vus"),
        ("users = 100", "vus"),
        ("users = 100; vus = 2", "vus"),
        ("users = '100'", "vus"),
        ("user_count = 100", "vus"),
        ("virtual_users = 100", "vus"),
        ("concurrency = 100", "vus"),
        ("fixed_count = 3", "vus"),
        ('run_time = "5m"', "duration"),
        ('maxDuration = "5m"', "duration"),
        ('threshold = {"p99": "<1s"}', "thresholds"),
        ('tresholds = {"p99": "<1s"}', "thresholds"),
        ('think_time = "1s"', "think"),
        ("wait_time = 1.5", "think"),
        ("wait_time = (1, 5)", "think"),
        ("wait_time = lambda self: 1", "think"),
        ("min_wait = 100", "think"),
        ('constant_pacing = "1s"', "interval"),
        ('request_timeout = "5s"', "timeout"),
        ("max_iterations = 5", "iterations"),
        ("noConnectionReuse = True", "connections"),
        ("spawn_rate = 10", "stages"),
        ('ramp_up = "30s"', "stages"),
        ("rps = 500", "rate"),
        ('tag = "smoke"', "tags"),
        ("abstrakt = True", "abstract"),
    ],
)
def test_a_setting_under_another_name_is_refused_with_the_right_one(
    files: Files, attribute: str, setting: str
) -> None:
    name = attribute.partition(" ")[0]
    with pytest.raises(InputError) as caught:
        plan(files, attribute)
    said = f"shop.py:5: Shop.{name}: not a setting; the setting is called {setting!r} (hint: "
    assert str(caught.value).startswith(said), caught.value


@pytest.mark.parametrize(
    ("attribute", "remedy"),
    [
        ('host = "https://shop.test"', "write the whole URL in each step"),
        ("tasks = [1, 2]", "mark each task with @step()"),
        ('options = {"vus": 5}', "attributes of the class"),
        ("def on_start(self): ...", "put @setup() above it"),
        ("async def teardown(self): ...", "put @teardown() above it"),
    ],
)
def test_what_other_tools_find_by_its_name_is_refused_with_the_way_here(
    files: Files, attribute: str, remedy: str
) -> None:
    with pytest.raises(InputError, match=r"^shop\.py:5: Shop\.") as caught:
        plan(files, attribute)
    assert remedy in caught.value.hint


@pytest.mark.parametrize(
    ("attribute", "code"),
    [
        ("users = ['ann', 'bob']", "pass"),  # its value is no number of users
        ("users = {'ann': 1}", "pass"),
        ("users = object()", "pass"),
        ("users = 100", "self.users"),  # a step reads it
        ("users = 100", "getattr(self, 'users')"),
        ("think_time = 2", "await __import__('asyncio').sleep(self.think_time)"),
        ("host = 'https://shop.test'", "f'{self.host}/x'"),
        ("threshold = 0.5", "pass"),
        ("VUS = 5; vus = VUS", "pass"),  # it gives the real one its value
        ("colour = 1", "pass"),
        ("_users = 100", "pass"),
        ("def wait(self): ...", "pass"),
    ],
)
def test_an_attribute_of_the_users_own_is_left_alone(
    files: Files, attribute: str, code: str
) -> None:
    plan(files, attribute, code)


def test_a_misspelt_attribute_of_a_base_is_refused_where_it_is_written(files: Files) -> None:
    files.write("from hyperscale import Workflow\n\nclass Base(Workflow):\n    users = 5\n", "b.py")
    with pytest.raises(InputError, match=r"^b\.py:4: Shop\.users: not a setting"):
        files.plan(
            """
            from b import Base

            class Shop(Base):
                @step()
                async def go(self) -> HTTPResponse: ...
            """,
            name="shop.py",
        )


@pytest.mark.parametrize("second", ["@step()", "@check()", ""])
def test_two_hooks_of_one_name_are_refused(files: Files, second: str) -> None:
    with pytest.raises(InputError) as caught:
        files.plan(
            f"""
            class Shop(Workflow):
                @step()
                async def other(self) -> HTTPResponse: ...
                @step()
                async def go(self) -> HTTPResponse: ...
                {second}
                async def go(self) -> HTTPResponse: ...
            """,
            name="shop.py",
        )
    line = 9 if second else 10
    assert str(caught.value) == (
        f"shop.py:{line}: Shop.go: replaces the go of line 7, which never runs "
        "(hint: give each its own name)"
    )


@pytest.mark.parametrize("first", ["", 'url: URL = "http://shop.test/"', "go: HTTPResponse", "*"])
def test_a_step_without_self_is_refused(files: Files, first: str) -> None:
    parameters = first if first != "*" else "*, url"
    with pytest.raises(InputError, match=r"^shop\.py:5: Shop\.pay: the first parameter must be "):
        files.plan(
            f"""
            class Shop(Workflow):
                @step()
                async def pay({parameters}) -> HTTPResponse: ...
            """,
            name="shop.py",
        )
