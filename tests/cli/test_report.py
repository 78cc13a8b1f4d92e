"""`hyperscale report`, and reporters named by `--report` of a run."""

import json
import sqlite3
from pathlib import Path

import pytest

from hyperscale.reporting.json_report import decode_json, encode_json
from hyperscale.reporting.rows import rows_of, run_id_of
from tests.conftest import RunningTarget
from tests.lab.command import run, write
from tests.lab.ports import free_port
from tests.reporting.runs import shop_result

TEST = """
    class Shop(Workflow):
        vus = 2
        duration = "10s"
        iterations = 10
        @step()
        async def home(self, url: URL = "{url}/json") -> HTTPResponse:
            return await self.client.http.get(url)
"""


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t0ps3cret")


def stored(file: Path) -> list[tuple[str, int]]:
    """Return the runs of a database and how many metrics each has."""
    connection = sqlite3.connect(file)
    try:
        return connection.execute(
            "SELECT run_id, count(*) FROM hyperscale_metrics GROUP BY run_id"
        ).fetchall()
    finally:
        connection.close()


def test_an_earlier_result_is_sent_and_sent_again(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(encode_json(shop_result()))
    for _ in range(2):
        done = run("report", "results.json", "--to", "sqlite=out/results.db", cwd=tmp_path)
        assert done.code == 0, done.stderr
        assert "Reporter[SQLiteConfig]: delivered run " in done.stdout
    result = decode_json((tmp_path / "results.json").read_bytes())
    assert stored(tmp_path / "out/results.db") == [(run_id_of(result), len(rows_of(result)))]


def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(encode_json(shop_result()))
    write_config(tmp_path, f"http://127.0.0.1:{free_port()}")
    done = run(
        *(
            "report",
            "results.json",
            "--config",
            "reporters.toml",
            "--to",
            "sqlite",
            "--to",
            "metrics",
        ),
        "--dry-run",
        cwd=tmp_path,
    )
    assert done.code == 0, done.stderr
    assert "POST http://127.0.0.1:" in done.stdout
    assert "Authorization: Token ***" in done.stdout
    assert "t0ps3cret" not in done.stdout
    assert "hyperscale_latency,run=" in done.stdout
    assert '"metric_group":"latency","name":"p99"' in done.stdout
    assert not (tmp_path / "hyperscale.db").exists()


def write_config(place: Path, url: str) -> None:
    (place / "reporters.toml").write_text(
        f"""
[reporters.metrics]
type = "influxdb"
url = "{url}"
bucket = "load"
token = "${{TOKEN}}"
deadline_s = 0.5
"""
    )


def test_what_was_lost_is_said_and_is_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(encode_json(shop_result()))
    write_config(tmp_path, f"http://127.0.0.1:{free_port()}")
    done = run("report", "results.json", "--config", "reporters.toml", cwd=tmp_path)
    assert done.code == 3
    assert "Reporter[InfluxDBConfig] failed to submit: lost " in done.stderr
    assert "gave up after " in done.stderr


def test_input_that_cannot_work_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(encode_json(shop_result()))
    for words, reason in (
        (["results.json"], "no reporter is named"),
        (["missing.json", "--to", "sqlite"], "missing.json cannot be read"),
        (["results.json", "--to", "influx"], "did you mean influxdb?"),
        (["results.json", "--to", "postgres=u:secret@db/x"], "contains a password"),
    ):
        done = run("report", *words, cwd=tmp_path)
        assert (done.code, reason in done.stderr) == (2, True), done.stderr


def test_a_run_reports_and_a_failing_reporter_leaves_its_verdict(
    tmp_path: Path, target: RunningTarget
) -> None:
    write(tmp_path / "shop.py", TEST.format(url=target.url))
    write_config(tmp_path, f"http://127.0.0.1:{free_port()}")
    done = run(
        *("run", "shop.py", "--out", "out", "--report", "sqlite=results.db"),
        *("--report", "metrics", "--report-config", "reporters.toml"),
        cwd=tmp_path,
    )
    assert done.code == 0, done.stderr
    assert "Reporter[InfluxDBConfig] failed to submit: lost " in done.stderr
    result = json.loads((tmp_path / "out/results.json").read_bytes())
    assert result["passed"]
    assert [run_id for run_id, _ in stored(tmp_path / "results.db")] == [result["run_id"]]
