"""Types that a type checker infers in a test file."""

import re
from pathlib import Path
from textwrap import dedent

import pytest
from mypy import api

FILE = """
from typing import reveal_type

from hyperscale import Workflow, action, check, depends, metric, setup, state, step, teardown
from hyperscale.core.graph import Workflow as CoreWorkflow
from hyperscale.core.hooks import Provide, Use
from hyperscale.testing import (
    COUNT, URL, Auth, Check, Cookies, CustomResult, Data, File, Headers, HTTPResponse, Metric,
    Params,
)


class Seed(CoreWorkflow):
    vus = 1
    duration = "10s"
    tags = ["setup"]
    thresholds = {"p99": "<250ms", "errors": {"limit": "<1%", "abort_on_fail": True}}

    @action()
    async def make_key(self) -> None:
        self.context["api_key"] = "k-1"

    @state("Shop")
    def api_key(self) -> Provide[str]:
        return str(self.context["api_key"])

    @state("Shop")
    async def ids(self) -> Provide[list[int]]:
        return [1, 2]


class Total(CustomResult):
    def __init__(self, total: int) -> None:
        self.total = total


@depends("Seed")
class Shop(Workflow):
    vus: int = 2000
    duration = 90
    priority = "high"
    connections = "shared"
    interval = "1s"

    @setup()
    def prepare(self) -> None: ...

    @teardown()
    async def clear(self) -> None: ...

    @state("Seed")
    def take_key(self, api_key: str | None = None) -> Use[str]:
        return api_key

    @step()
    async def login(
        self,
        url: URL = "http://shop.test/login",
        body: Data = {"u": "x"},
        headers: Headers = {"X-Id": "1"},
        params: Params = {"page": 1},
        cookies: Cookies = {"a": "b"},
        auth: Auth = ("user", "password"),
    ) -> HTTPResponse:
        reveal_type(self.client.http)
        return await self.client.http.post(
            url, data=body, headers=headers, params=params, cookies=cookies, auth=auth
        )

    @step("login", accept=[404])
    async def items(
        self, login: HTTPResponse, url: URL = "http://shop.test/items", f: File = "x.bin"
    ) -> HTTPResponse:
        return await self.client.http.get(f"{url}/{login.json()['id']}")

    @step("items", accept=lambda status: status < 500)
    async def total(self, items: HTTPResponse | None = None) -> Total:
        reveal_type(await self.total(items=None))
        reveal_type(self.login.response)
        return Total(len(items.content) if items else 0)

    @check()
    def is_json(self, login: HTTPResponse) -> Check:
        return login.headers["content-type"] == "application/json"

    @metric()
    def bytes_in(self, items: HTTPResponse) -> Metric[COUNT]:
        return len(items.content)

    @metric(kind="gauge")
    async def last(self, total: Total) -> int:
        return total.total


shop = Shop()
reveal_type(shop.is_json)
reveal_type(Shop)
"""

WRONG = """
from hyperscale import Workflow, check, depends, metric, state, step
from hyperscale.testing import URL, CustomResult, HTTPResponse


class Total(CustomResult):
    amount: int


class Settings(Workflow):
    vus = "many"  # error
    duration = ["1m"]  # error
    priority = "urgent"  # error
    timeout = None  # error
    interval = (1, 5)  # error
    iterations = 5.5  # error
    rate = 500  # error
    think = None
    stages = [("1m", 5), ("1m", None)]  # error
    arrivals = "uniform"  # error
    thresholds = {"p99": 250}  # error
    tags = 5  # error
    connections = "pooled"  # error
    abstract = "yes"  # error


@depends(Settings)  # error
class Shop(Workflow):
    @step()  # error
    def not_async(self) -> HTTPResponse: ...

    @step()  # error
    async def without_self() -> HTTPResponse: ...  # type: ignore[misc]

    @step  # error
    async def bare(self) -> HTTPResponse: ...

    @step(1)  # error
    async def numbered(self) -> HTTPResponse:
        return await self.client.http.get("http://shop.test/")

    @step(accept="404")  # error
    async def accepting(self) -> HTTPResponse:
        return await self.client.http.get()  # error

    @step()
    async def wrong(self, url: URL = 5) -> HTTPResponse:  # error
        return await self.client.nosuch.get(url)  # error

    @step()
    async def other(self) -> HTTPResponse:
        return await self.client.http.get("http://shop.test/", json={})  # error

    @step()
    async def number(self) -> int:
        return await self.client.http.get("http://shop.test/")  # error

    @step()
    async def unawaited(self) -> HTTPResponse:
        return self.client.http.get("http://shop.test/")  # error

    @step()
    async def total(self) -> Total:
        return Total(amout=1)  # error

    @check(True)  # error
    def fine(self) -> bool:
        return True

    @metric(kind="average")  # error
    def mean(self) -> float:
        return 1.0

    @state(Settings)  # error
    def key(self) -> str:
        return ""


async def call(shop: Shop) -> None:
    await shop.wrong(nosuch=1)  # error
"""


def check(text: str, tmp_path: Path, cache: Path) -> tuple[str, int]:
    path = tmp_path / "shop.py"
    path.write_text(dedent(text))
    out, err, code = api.run(
        ["--strict", "--cache-dir", str(cache), "--no-error-summary", str(path)]
    )
    assert not err
    return out, code


@pytest.fixture
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a cache of mypy, so that only the first run reads the standard library."""
    known = getattr(request.config, "cache", None)
    return Path(known.mkdir("mypy")) if known is not None else tmp_path


def test_a_test_file_passes_strict_checking_and_its_types_are_precise(
    tmp_path: Path, cache: Path
) -> None:
    out, code = check(FILE, tmp_path, cache)
    assert code == 0, out
    assert re.findall(r'Revealed type is "(.*)"', out) == [
        "hyperscale.clients.http.HTTPClient",
        "shop.Total",
        "hyperscale.testing.http.HTTPResponse | None",
        "def (login: hyperscale.testing.http.HTTPResponse) -> bool | None",
        "def () -> shop.Shop",
    ]


def test_mistakes_are_seen_before_anything_runs(tmp_path: Path, cache: Path) -> None:
    out, code = check(WRONG, tmp_path, cache)
    assert code == 1
    found = {int(line) for line in re.findall(r"shop\.py:(\d+): error", out)}
    expected = {
        number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# error")
    }
    assert expected - found == set(), out
