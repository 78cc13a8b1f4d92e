"""Parameters in local runs: what reaches the target, what is shown, and what never is."""

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from hyperscale import LocalRunner, Param, Workflow, action
from hyperscale.errors import InputError
from hyperscale.graph.blueprint import blueprint
from hyperscale.graph.loading import find, load_module
from hyperscale.reporting.results import RunResult
from hyperscale.runner.source import load_test_file
from hyperscale.testing.parameters import GivenParameters, ParameterScope, resolving
from tests.conftest import RunningTarget
from tests.lab.command import run, write
from tests.runner.asking import Asks

SECRET = "hunter2/hunter+2"
FORMS = (SECRET, quote(SECRET), quote_plus(SECRET), b64encode(f"me:{SECRET}".encode()).decode())

NATIVE = """
    from hyperscale import Param
    from hyperscale.testing import Headers

    base = Param("http://127.0.0.1:1")
    token = Param(secret=True)

    class Shop(Workflow):
        path = Param("/json")
        vus = Param(1)
        duration = "30s"
        iterations = 12

        @step()
        async def go(
            self, url: URL = f"{base}{path}", headers: Headers = {"Authorization": token}
        ) -> HTTPResponse:
            return await self.client.http.get(url, headers=headers)
"""

TALKATIVE = """
    import subprocess
    from hyperscale import Param

    base = Param()
    token = Param(secret=True)

    class Shop(Workflow):
        vus = 1
        iterations = 1
        tags = [f"for-{token}"]

        @step()
        async def go(self, url: URL = f"{base}/headers") -> HTTPResponse:
            print("printed", token)
            subprocess.run(["echo", "child", token])
            return await self.client.http.get(url, headers={"X-Key": token}, auth=("me", token))

        @step()
        async def refused(self, url: URL = f"{base}/status/418") -> HTTPResponse:
            return await self.client.http.post(
                url, params={"key": token}, data={"key": token}, auth=("me", token)
            )

        @step()
        async def echoed(self, url: URL = f"{base}/headers") -> HTTPResponse:
            response = await self.client.http.get(url, auth=("me", token))
            print("echoed", response.text)
            return response

        @step()
        async def bad(self) -> HTTPResponse:
            raise ValueError(f"raised {token}")

        @check()
        def judged(self, go: HTTPResponse) -> None:
            assert go.json() is None, f"judged {token} {go.text}"
"""


def test_a_static_step_takes_parameters_and_stays_native(
    tmp_path: Path, target: RunningTarget
) -> None:
    file = write(tmp_path / "shop.py", NATIVE)
    values = {"base": target.url, "token": SECRET, "path": "/bytes/7"}
    with resolving(ParameterScope(GivenParameters(values))):
        shop = find(load_module(file), "Shop")
        plan = load_test_file(file, None, GivenParameters(values)).plan.workflows[0]
        assert blueprint(shop, plan).why_not_static is None
    done = run(
        *("run", file.name, "--set", f"base={target.url}", "--set", "path=/bytes/7"),
        *("--set", f"token={SECRET}", "--set", "vus=3", "--json", "r.json", "--ui", "ci"),
        cwd=tmp_path,
    )
    assert done.code == 0, done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["workflows"][0]["vus"] == 3
    assert result["workflows"][0]["sent"] == 12
    assert target.counts()["routes"] == {"/bytes/{n}": {"GET": 12}}
    assert result["params"] == {
        "base": target.url,
        "path": "/bytes/7",
        "token": "***",
        "vus": 3,
    }


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_secret_is_masked_wherever_it_appears(
    command: str, tmp_path: Path, target: RunningTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "shop.py", TALKATIVE)
    monkeypatch.setenv("HYPERSCALE_SET_TOKEN", SECRET)
    more = ("--out", "out", "--json", "r.json", "--log-dir", "logs") if command == "run" else ()
    done = run(command, file.name, "--set", f"base={target.url}", *more, cwd=tmp_path)
    assert done.code == 1, done.stderr
    assert set(target.counts()["routes"]) == {"/headers", "/status/{code}"}
    written = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    shown = {"stdout": done.stdout, "stderr": done.stderr, **written}
    assert [(where, f) for where, text in shown.items() for f in FORMS if f in text] == []
    for line in ("printed ***", "child ***", "raised ***"):
        assert line in done.stdout
    if command == "run":
        result = json.loads((tmp_path / "r.json").read_text())
        [workflow] = result["workflows"]
        assert workflow["tags"] == ["for-***"]
        assert "judged ***" in workflow["checks"][0]["first_failure"]
        assert result["params"] == {"base": target.url, "token": "***"}
        assert "child ***" in (tmp_path / "out/output.log").read_text()


def test_the_environment_counts_less_than_flags_and_may_have_more(
    tmp_path: Path, target: RunningTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "shop.py", NATIVE)
    monkeypatch.setenv("HYPERSCALE_SET_TOKEN", SECRET)
    monkeypatch.setenv("HYPERSCALE_SET_PATH", "/status/500")
    monkeypatch.setenv("HYPERSCALE_SET_PAHT", "/status/400")
    flags = ("--set", f"base={target.url}", "--set", "path=/", "--ui", "none")
    done = run("run", file.name, *flags, "--json", "-", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert target.counts()["routes"] == {"/": {"GET": 12}}
    [warning] = json.loads(done.stdout)["warnings"]
    assert warning == "HYPERSCALE_SET_PAHT is set, but the test has no such parameter"


def test_helper_modules_declare_parameters_for_every_load_anew(tmp_path: Path) -> None:
    (tmp_path / "shop_settings.py").write_text(
        'from hyperscale import Param\nbase = Param("http://a.test")\n'
    )
    file = write(
        tmp_path / "shop.py",
        """
        from shop_settings import base

        class Shop(Workflow):
            @step()
            async def go(self, url: URL = base) -> HTTPResponse:
                return await self.client.http.get(url)
        """,
    )
    hosts = []
    for host in ("b", "c"):
        given = GivenParameters({"base": f"http://{host}.test"})
        hosts.append(load_test_file(file, None, given).plan.workflows[0].hosts)
    assert hosts == [("b.test:80",), ("c.test:80",)]
    assert load_test_file(file).plan.workflows[0].hosts == ("a.test:80",)


# --- LocalRunner -------------------------------------------------------------------------


def ask(params: dict[str, object] | None) -> RunResult:
    runner = LocalRunner(workers=1, params=params)
    return asyncio.run(runner.run("ask", [Asks], terminal_mode="none"))


def test_the_local_runner_takes_parameters(target: RunningTarget) -> None:
    result = ask({"asked_base": target.url, "asked_times": 3, "asked_key": SECRET})
    assert target.counts()["routes"] == {"/json": {"GET": 3}}
    assert result.params == {
        "asked_base": target.url,
        "asked_key": "***",
        "asked_times": 3,
    }
    [workflow] = result.workflows
    assert (workflow.sent, workflow.ok) == (3, 3)
    assert Asks.iterations == 1, "the class of the caller has not changed"


def test_the_local_runner_refuses_parameters_that_do_not_fit(target: RunningTarget) -> None:
    good = {"asked_base": target.url, "asked_key": SECRET}
    for params, message in (
        (None, "'asked_key' has no default and was not set"),
        ({**good, "asked_bse": 1}, "asked_bse: Asks has no such parameter.*asked_base"),
        ({**good, "asked_times": "x"}, "'x' is not a whole number"),
        ([("a", 1)], "not a mapping"),
    ):
        with pytest.raises(InputError, match=message):
            ask(params)  # type: ignore[arg-type]  # wrong ones are tested too
    assert target.counts()["total"] == 0


def test_a_class_inside_a_function_has_its_values_already() -> None:
    class Local(Workflow):
        local_base = Param("http://a.test")

        @action()
        async def go(self) -> None: ...

    runner = LocalRunner(workers=1, params={"local_base": "http://b.test"})
    with pytest.raises(InputError, match="'local_base' has its value already"):
        asyncio.run(runner.run("local", [Local], terminal_mode="none"))
