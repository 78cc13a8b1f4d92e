"""The contract of reporters, at real servers: what is read back is what results.json says."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from hyperscale.reporting import Reporter, RunResult, SQLiteConfig, submit_all
from hyperscale.reporting.json_report import decode_json, encode_json
from hyperscale.reporting.rows import rows_of
from tests.reporting.cloud_destinations import CLOUD_DESTINATIONS
from tests.reporting.destinations import DESTINATIONS, FAST, Destination, exact, read_sqlite
from tests.reporting.runs import shop_result
from tests.services.base import Service
from tests.services.clouds import Moto
from tests.services.fixtures import GetService
from tests.services.recording import Lambda


def fresh_result(run_id: str) -> RunResult:
    """Return a result of a run that has just ended, read from its results.json."""
    result = shop_result(("login.p99", "<250ms"), ("errors", "<1%"))
    started = (datetime.now(UTC) - timedelta(seconds=10)).isoformat(timespec="milliseconds")
    result = msgspec.structs.replace(
        result, run_id=run_id, started_at=started.replace("+00:00", "Z")
    )
    return decode_json(encode_json(result))


def start(name: str, service: GetService) -> Service:
    """Return a running server; the recording of Lambda hands its calls on to a real API."""
    server = service(name)
    if isinstance(server, Lambda) and not server.upstream:
        aws = service("aws")
        assert isinstance(aws, Moto)
        server.upstream = aws.url
        aws.create_function("results")
    return server


ALL = [*DESTINATIONS, *CLOUD_DESTINATIONS]


@pytest.mark.parametrize("destination", ALL, ids=lambda each: f"{each.kind.name}-{each.service}")
def test_what_was_reported_is_read_back(destination: Destination, service: GetService) -> None:
    server = start(destination.service, service)
    result = fresh_result(f"a-{destination.kind.value}")
    reporter = Reporter(destination.kind, destination.configure(server, FAST))
    expected = {destination.key(row): row.value for row in rows_of(result)}
    assert len(expected) == len(rows_of(result)) > 80
    for _ in range(2):  # sent again, it replaces itself
        assert asyncio.run(submit_all([reporter], result)) == []
        found = destination.read(server, rows_of(result))
        if destination.tolerance:
            assert found == pytest.approx(expected, rel=1e-5, abs=destination.tolerance)
        else:
            assert found == expected


def test_a_result_is_read_back_from_a_sqlite_file(tmp_path: Path) -> None:
    result = fresh_result("a-sqlite")
    reporter = Reporter("sqlite", SQLiteConfig(path=str(tmp_path / "results.db")))
    for _ in range(2):  # sent again, it replaces itself
        assert asyncio.run(submit_all([reporter], result)) == []
        stored = read_sqlite(tmp_path / "results.db", rows_of(result))
        assert stored == {exact(row): row.value for row in rows_of(result)}


def test_every_number_of_results_json_is_a_row() -> None:
    """Walk the JSON itself: no number of a workflow or step is missing from the rows."""
    result = fresh_result("a-walk")
    rows = {
        (row.workflow, row.step, row.metric_group, row.name): row.value for row in rows_of(result)
    }
    document = json.loads(encode_json(result))
    for workflow in document["workflows"]:
        name = workflow["name"]
        for step in [workflow, *workflow["steps"]]:
            place = (name, "" if step is workflow else step["name"])
            for key in ("total", "ok", "failed", "none", "cut", "sent"):
                assert rows[(*place, "counts", key)] == step[key]
            assert rows[(*place, "counts", "rate")] == step["rate_per_second"]
            assert rows[(*place, "counts", "requests")] == step["requests_per_second"]
            for key, value in step["latency_ms"].items():
                assert rows.get((*place, "latency", key)) == value
            for code, count in step.get("status_codes", {}).items():
                assert rows[(*place, "status", code)] == count
            for error, count in step.get("errors", {}).items():
                assert rows[(*place, "errors", error)] == count
            for phase, values in step.get("phases_ms", {}).items():
                for key, value in values.items():
                    assert rows[(*place, "phase", f"{phase}.{key}")] == value
        for check in workflow["checks"]:
            for outcome in ("passed", "failed"):
                assert rows[(name, "", "checks", f"{check['name']}.{outcome}")] == check[outcome]
        for metric in workflow["metrics"]:
            assert rows[(name, "", "custom", metric["name"])] == metric["value"]
            if metric["p99"] is not None:
                assert rows[(name, "", "custom", f"{metric['name']}.p99")] == metric["p99"]
    for threshold in document["thresholds"]:
        key = (threshold["workflow"], "", "thresholds", threshold["name"] + threshold["limit"])
        assert rows[key] == threshold["passed"]
    assert rows[("", "", "run", "passed")] == document["passed"]
    assert rows[("", "", "run", "elapsed")] == document["elapsed_seconds"]
