"""Every command as its users see it: help, output, files, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hyperscale.cli.command_line import COMMANDS
from hyperscale.cli.main import main
from tests.conftest import RunningTarget
from tests.lab.command import finish, results, run, start, write

SHOP = """
    class Shop(Workflow):
        vus = 4
        duration = "30s"
        iterations = 40

        @step()
        async def home(self, url: URL = "{url}/json") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("home")
        async def order(self, url: URL = "{url}/echo", body: Data = {{"n": 1}}) -> HTTPResponse:
            return await self.client.http.post(url, data=body)
"""


def shop(tmp_path: Path, target: RunningTarget, extra: str = "") -> Path:
    return write(tmp_path / "shop.py", SHOP.format(url=target.url) + extra)


@pytest.mark.parametrize("command", ["run", "check", "new", "ping", "target"])
def test_the_help_of_local_commands_starts_in_a_process_of_its_own(
    command: str, tmp_path: Path
) -> None:
    done = run(command, "--help", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert "examples:" in done.stdout
    assert f"hyperscale {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    assert f"\n  hyperscale {command}" in capsys.readouterr().out


JOB_COMMANDS = ("run", "submit", "watch", "status", "results", "cancel", "jobs", "workers", "drain")


@pytest.mark.parametrize("command", [*JOB_COMMANDS, "chaos", "cluster up", "cluster start"])
def test_the_help_of_job_and_node_commands_lists_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert "\nexit codes: " in capsys.readouterr().out


def test_the_program_without_arguments_prints_its_help(tmp_path: Path) -> None:
    alone, helped = run(cwd=tmp_path), run("--help", cwd=tmp_path)
    assert (alone.code, helped.code) == (0, 0)
    assert alone.stdout == helped.stdout
    assert "examples:" in alone.stdout
    assert run("--version", cwd=tmp_path).stdout.startswith("hyperscale ")


def test_a_run_writes_all_its_files_and_the_summary_names_the_report(
    tmp_path: Path, target: RunningTarget
) -> None:
    shop(tmp_path, target)
    done = run("run", "shop.py", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    [directory] = (tmp_path / "hyperscale-results").iterdir()
    assert directory.name.startswith("shop-")
    names = {path.name for path in directory.iterdir()}
    assert names == {"results.json", "report.html", "steps.csv", "junit.xml"}
    assert str(Path("hyperscale-results") / directory.name / "report.html") in done.stdout
    result = results(directory / "results.json")
    assert result["status"] == "completed"
    assert [step["total"] for step in result["workflows"][0]["steps"]] == [40, 40]
    assert "\x1b" not in done.stdout


def test_json_on_stdout_is_the_only_output_on_stdout(tmp_path: Path, target: RunningTarget) -> None:
    shop(tmp_path, target)
    done = run("run", "shop.py", "--json", "-", cwd=tmp_path)
    result = json.loads(done.stdout)
    schema = json.loads(Path("hyperscale/reporting/schema.json").read_text())
    jsonschema.validate(result, schema)
    assert "Shop" in done.stderr


@pytest.mark.parametrize("silence", [["--ui", "none"], ["--quiet"]])
def test_a_quiet_run_prints_nothing_and_writes_all_files(
    tmp_path: Path, target: RunningTarget, silence: list[str]
) -> None:
    shop(tmp_path, target)
    done = run("run", "shop.py", "--out", "out", "--json", "r.json", *silence, cwd=tmp_path)
    assert (done.code, done.stdout, done.stderr) == (0, "", "")
    assert results(tmp_path / "r.json") == results(tmp_path / "out" / "results.json")


def test_a_quiet_run_that_fails_prints_the_reason(tmp_path: Path, target: RunningTarget) -> None:
    extra = """
    Shop.thresholds = {"total": ">1000000"}

    class Away(Workflow):
        vus = 1
        duration = "100ms"
        interval = "10ms"

        @step()
        async def go(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    shop(tmp_path, target, extra)
    done = run("run", "shop.py", "--quiet", cwd=tmp_path)
    assert (done.code, done.stdout) == (1, "")
    reasons = r"Shop: total >1000000, was \d+; Away: not one call succeeded .*: \d+ failed .*"
    assert re.fullmatch(f"hyperscale: shop.py: failed; {reasons}\n", done.stderr)


def test_flags_override_the_test_file(tmp_path: Path, target: RunningTarget) -> None:
    extra = """
    class Other(Workflow):
        @step()
        async def go(self, url: URL = "{url}/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    shop(tmp_path, target, extra.format(url=target.url))
    flags = ["--only", "Other", "--vus", "3", "--duration", "300ms", "--workers", "1"]
    done = run("run", "shop.py", "--json", "r.json", "--quiet", *flags, cwd=tmp_path)
    assert done.code == 0, done.stderr
    [workflow] = results(tmp_path / "r.json")["workflows"]
    assert (workflow["name"], workflow["vus"], workflow["cores"]) == ("Other", 3, 1)
    assert workflow["duration_seconds"] == 0.3


@pytest.mark.parametrize("flags", [[], ["--no-compile"]])
def test_a_workflow_gives_the_same_results_compiled_and_interpreted(
    tmp_path: Path, target: RunningTarget, flags: list[str]
) -> None:
    body = """
    class Static(Workflow):
        vus = 3
        duration = "30s"
        iterations = 30

        @step()
        async def go(self, url: URL = "{url}/redirect/1") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    code, result = exit_of(tmp_path, body.format(url=target.url), *flags)
    [step] = result["workflows"][0]["steps"]
    assert (code, step["total"], step["ok"], step["sent"]) == (0, 30, 30, 60)
    assert step["status_codes"] == {"200": 30}


def test_output_of_user_code_is_shown_and_written_to_files(
    tmp_path: Path, target: RunningTarget
) -> None:
    extra = """
        @check()
        def talk(self, home: HTTPResponse) -> bool:
            import logging
            print("said out loud")
            logging.getLogger("shop").warning("logged")
            logging.getLogger("shop").debug("not this")
            return True
    """
    shop(tmp_path, target, extra)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "output.log").write_text("of an earlier run")
    done = run("run", "shop.py", "--out", "out", "--log-dir", "logs", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "out/output.log" in done.stdout
    assert "said out loud" in done.stdout
    kept = (tmp_path / "out" / "output.log").read_text()
    assert "[Shop 0] said out loud" in kept
    assert "WARNING shop: logged" in kept
    assert "not this" not in kept
    assert "of an earlier run" not in kept
    assert "said out loud" in (tmp_path / "logs" / "executor-0.log").read_text()


def exit_of(tmp_path: Path, body: str, *flags: str) -> tuple[int, Any]:
    write(tmp_path / "t.py", body)
    done = run("run", "t.py", "--json", "r.json", "--quiet", *flags, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    return done.code, results(tmp_path / "r.json")


def test_a_failed_threshold_exits_with_1(tmp_path: Path, target: RunningTarget) -> None:
    line = 'iterations = 40\n        thresholds = {"home.p50": "<1ns"}'
    code, result = exit_of(tmp_path, SHOP.format(url=target.url).replace("iterations = 40", line))
    assert (code, result["status"], result["passed"]) == (1, "completed", False)
    [threshold] = result["thresholds"]
    assert (threshold["name"], threshold["limit"], threshold["passed"]) == (
        "home.p50",
        "<1ns",
        False,
    )


def test_a_failed_check_exits_with_1(tmp_path: Path, target: RunningTarget) -> None:
    extra = """
        @check()
        def never(self, home: HTTPResponse) -> bool:
            return False
    """
    code, result = exit_of(tmp_path, SHOP.format(url=target.url) + extra)
    assert (code, result["passed"]) == (1, False)
    assert result["workflows"][0]["checks"][0]["failed"] == 40


def test_an_aborting_threshold_ends_the_run_early_with_1(
    tmp_path: Path, target: RunningTarget
) -> None:
    body = """
    class Shop(Workflow):
        vus = 2
        duration = "2m"
        thresholds = {{"errors": {{"limit": "<1%", "abort_on_fail": True}}}}

        @step()
        async def go(self, url: URL = "{url}/status/500") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    code, result = exit_of(tmp_path, body.format(url=target.url))
    assert (code, result["status"]) == (1, "failed")
    assert result["elapsed_seconds"] < 60
    assert "errors <1%, was 100%" in result["workflows"][0]["error"]


def test_a_run_that_times_out_exits_with_3_and_keeps_its_results(
    tmp_path: Path, target: RunningTarget
) -> None:
    endless = SHOP.format(url=target.url).replace("iterations = 40", "")
    code, result = exit_of(tmp_path, endless, "--timeout", "2s")
    assert (code, result["status"]) == (3, "timeout")
    assert result["elapsed_seconds"] < 7
    [workflow] = result["workflows"]
    assert workflow["status"] == "timeout"
    assert workflow["total"] > 0


def test_requests_to_an_unreachable_target_fail_with_their_error_class(
    tmp_path: Path,
) -> None:
    code, result = exit_of(tmp_path, SHOP.format(url="http://127.0.0.1:1"))
    home, order = result["workflows"][0]["steps"]
    assert (home["total"], home["ok"], home["failed"]) == (40, 0, 40)
    assert home["errors"] == {"connect": 40}
    assert (order["total"], order["skipped"]) == (0, 40)
    assert code == 1, "nothing succeeded"


def test_a_failed_workflow_does_not_affect_the_results_of_others(
    tmp_path: Path, target: RunningTarget
) -> None:
    extra = """
    class Broken(Workflow):
        vus = 1
        duration = "5s"

        @action()
        async def go(self) -> None:
            raise RuntimeError("no data today")

    @depends("Broken")
    class After(Broken):
        pass
    """
    code, result = exit_of(tmp_path, SHOP.format(url=target.url) + extra)
    assert (code, result["status"]) == (3, "partial")
    status = {w["name"]: (w["status"], w["error"]) for w in result["workflows"]}
    assert status["Shop"] == ("completed", None)
    assert status["Broken"][0] == "failed"
    assert "no data today" in status["Broken"][1]
    assert status["After"] == ("cancelled", "dependency failed: Broken")


def test_a_failed_reporter_is_reported_and_does_not_fail_the_run(
    tmp_path: Path, target: RunningTarget
) -> None:
    extra = """
    from hyperscale.reporting import CustomReporter

    class Away(CustomReporter):
        async def submit(self, result):
            raise ConnectionError("nobody home")

    reporters = [Away()]
    """
    shop(tmp_path, target, extra)
    done = run("run", "shop.py", "--quiet", cwd=tmp_path)
    assert done.code == 0
    assert "Away failed to submit: ConnectionError: nobody home" in done.stderr


def test_a_run_completes_when_the_reader_of_stdout_goes_away(
    tmp_path: Path, target: RunningTarget
) -> None:
    shop(tmp_path, target)
    reader, writer = os.pipe()
    process = start("run", "shop.py", "--out", "out", cwd=tmp_path, stdout=writer)
    os.close(writer)
    os.close(reader)
    done = finish(process)
    assert (done.code, done.stderr) == (0, "")
    assert results(tmp_path / "out" / "results.json")["status"] == "completed"


def test_help_into_a_closed_pipe_exits_with_0(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start("--help", cwd=tmp_path, stdout=writer)
    os.close(writer)
    done = finish(process)
    assert (done.code, done.stderr) == (0, "")


def test_check_shows_every_request_and_response_of_two_users(
    tmp_path: Path, target: RunningTarget
) -> None:
    shop(tmp_path, target)
    done = run("check", "shop.py", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    shown = done.stdout.splitlines()
    assert shown.count("> GET /json HTTP/1.1") == shown.count("> POST /echo HTTP/1.1") == 2
    assert shown.count("< HTTP/1.1 200 OK") == 4
    assert any(line.startswith('> | {"n"') for line in shown)
    assert "   home: ok" in shown
    routes = target.counts()["routes"]
    assert sum(count for methods in routes.values() for count in methods.values()) == 4
    assert not (tmp_path / "hyperscale-results").exists()


def test_check_masks_the_credentials_that_samples_of_failures_mask(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(
        tmp_path / "shop.py",
        f"""
        class Shop(Workflow):
            vus = 1
            duration = "1s"

            @step()
            async def go(self) -> HTTPResponse:
                return await self.client.http.get(
                    "{target.url}/cookies/set?session_token=s3cr3t-query&page=2",
                    headers={{
                        "Authorization": "Bearer s3cr3t-bearer", "X-Api-Key": "s3cr3t-key",
                        "X-Session": "s3cr3t-session", "Referer": "http://a.test/?jwt=s3cr3t-jwt",
                        "X-Page": "visible",
                    }},
                )
        """,
    )
    done = run("check", "shop.py", cwd=tmp_path)
    assert "s3cr3t" not in done.stdout + done.stderr
    assert "> Authorization: ***" in done.stdout
    assert "?session_token=***&page=2 HTTP/1.1" in done.stdout
    assert "> Referer: http://a.test/?jwt=***" in done.stdout
    assert "> X-Page: visible" in done.stdout


def test_check_fails_a_test_that_sets_self_and_names_the_way(
    tmp_path: Path, target: RunningTarget
) -> None:
    careless = """
        @setup()
        async def login(self):
            self.token = "t"
    """
    shop(tmp_path, target, careless)
    done = run("check", "shop.py", cwd=tmp_path)
    assert done.code == 3
    assert "login failed: AttributeError: self.token cannot be set here" in done.stdout
    assert '@setup(per="vu")' in done.stdout


def test_check_names_the_failed_step_and_its_error_class(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(tmp_path / "t.py", SHOP.format(url=target.url).replace("/json", "/status/503"))
    done = run("check", "t.py", cwd=tmp_path)
    assert done.code == 1
    assert "< HTTP/1.1 503" in done.stdout
    assert "home: failed: status" in done.stdout


def test_ping_shows_the_response_and_its_timings(tmp_path: Path, target: RunningTarget) -> None:
    done = run("ping", "http", f"{target.url}/json", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert "< HTTP/1.1 200 OK" in done.stdout
    assert "connect " in done.stdout.splitlines()[-1]
    assert "first byte " in done.stdout.splitlines()[-1]
    assert run("ping", "http", f"{target.url}/status/404", cwd=tmp_path).code == 1
    refused = run("ping", "http", "http://127.0.0.1:1/", cwd=tmp_path)
    assert refused.code == 3
    assert "< no response: connect" in refused.stdout


def test_ping_needs_no_protocol_and_shows_every_redirect(
    tmp_path: Path, target: RunningTarget
) -> None:
    done = run("ping", "--header", "X-Word: http", f"{target.url}/redirect/2", cwd=tmp_path)
    assert done.code == 0
    requests = [line for line in done.stdout.splitlines() if line.startswith("> GET")]
    assert requests == [f"> GET /redirect/{left} HTTP/1.1" for left in (2, 1)] + [
        "> GET / HTTP/1.1"
    ], done.stdout
    assert done.stdout.count("\n< HTTP/1.1 302") == 2
    assert "* redirect 1 of 2, " in done.stdout
    assert "after 2 redirects" in done.stdout
    assert run("ping", "http", "-X", "HEAD", f"{target.url}/json", cwd=tmp_path).code == 0


def test_check_names_the_step_of_each_request_and_shows_every_redirect(
    tmp_path: Path, target: RunningTarget
) -> None:
    body = """
    class Shop(Workflow):
        @step()
        async def login(self):
            return await self.client.http.get("{url}/redirect/1")

        @step("login")
        async def pay(self):
            await self.client.http.get("{url}/json")
            return await self.client.http.get("{url}/status/200")
    """
    write(tmp_path / "shop.py", body.replace("{url}", target.url))
    done = run("check", "shop.py", cwd=tmp_path)
    assert done.code == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith(("-- ", "> GET"))]
    one = [
        "-- login",
        "> GET /redirect/1 HTTP/1.1",
        "> GET / HTTP/1.1",
        "-- pay",
        "> GET /json HTTP/1.1",
        "-- pay",
        "> GET /status/200 HTTP/1.1",
    ]
    assert sorted(lines) == sorted(one * 2), "of two users"
    assert "\n< HTTP/1.1 302" in done.stdout


def test_ping_shows_tls_and_refuses_an_unverified_certificate(
    tmp_path: Path, tls_target: RunningTarget
) -> None:
    distrusted = run("ping", "http", tls_target.url, cwd=tmp_path)
    assert distrusted.code == 3
    assert "no response: tls" in distrusted.stdout
    trusted = run("ping", "http", tls_target.url, "--insecure", cwd=tmp_path)
    assert trusted.code == 0
    assert "TLS" in trusted.stdout.splitlines()[-1]


def test_a_new_file_passes_check_and_run_unchanged(tmp_path: Path, target: RunningTarget) -> None:
    made = run("new", "load-test", "--url", target.url, cwd=tmp_path)
    assert made.code == 0
    assert "load-test.py" in made.stdout
    assert "class LoadTest(Workflow):" in (tmp_path / "load-test.py").read_text()
    assert run("check", "load-test.py", cwd=tmp_path).code == 0
    done = run("run", "load-test.py", "--duration", "1s", "--json", "r.json", "-q", cwd=tmp_path)
    assert done.code == 0, done.stderr
    result = results(tmp_path / "r.json")
    assert all(step["failed"] == 0 for step in result["workflows"][0]["steps"])
    (tmp_path / "load-test.py").write_text("")
    assert run("new", "load-test.py", "--force", cwd=tmp_path).code == 0
    assert (tmp_path / "load-test.py").read_text()


def test_a_new_file_for_a_server_sends_only_to_the_address_that_was_given(
    tmp_path: Path, target: RunningTarget
) -> None:
    for url, route in ((f"{target.url}/", "/"), (f"{target.url}/bytes/9", "/bytes/{n}")):
        target.reset()
        assert run("new", "shop.py", "--url", url, "--force", cwd=tmp_path).code == 0
        assert run("check", "shop.py", cwd=tmp_path).code == 0
        assert list(target.counts()["routes"]) == [route]
    assert run("new", "own.py", cwd=tmp_path).code == 0
    assert run("check", "own.py", "--set", f"base={target.url}", cwd=tmp_path).code == 0
    assert {"/json", "/echo"} <= set(target.counts()["routes"])


def test_an_internal_error_prints_a_short_message_and_writes_a_crash_log(tmp_path: Path) -> None:
    script = (
        "import sys, hyperscale.cli.command_line as command_line\n"
        "def fail(arguments): raise ZeroDivisionError('ours')\n"
        "command_line._main = fail\n"
        "sys.exit(command_line.run_command_line([]))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "internal error: ZeroDivisionError: ours" in done.stderr
    assert "Traceback" not in done.stderr
    [log] = tmp_path.glob("hyperscale-crash-*.log")
    assert str(log) in done.stderr
    assert "Traceback" in log.read_text()
