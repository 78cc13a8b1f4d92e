import base64
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from hyperscale._native import Histogram
from hyperscale.errors import InputError
from hyperscale.plan import MetricKind
from hyperscale.reporting.build import WorkflowOutcome, build_result
from hyperscale.reporting.json_report import decode_json, encode_json
from hyperscale.reporting.results import (
    RunResult,
    RunStatus,
)
from hyperscale.reporting.schema import PATH, encode_schema
from hyperscale.stats.workflow import WorkflowStats
from tests.reporting.runs import STARTED_AT, hostile_results, shop_result, shop_stats
from tests.stats.parts import Part, make_plan

SCHEMA = json.loads(PATH.read_text("utf-8"))


def validate(result: RunResult) -> dict[str, Any]:
    document = json.loads(encode_json(result))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(
        document, SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    return dict(document)


def test_a_result_is_valid_and_complete() -> None:
    document = validate(shop_result(("login.p99", "<250ms"), ("errors", "<1%")))
    assert document["schema"] == 1
    assert document["started_at"] == "2026-03-01T12:00:00.250Z"
    (workflow,) = document["workflows"]
    login, pay, note = workflow["steps"]
    assert (login["total"], pay["total"], pay["failed"], note["total"]) == (400, 400, 16, 0)
    assert pay["errors"] == {"timeout": 16}
    assert login["status_codes"] == {"200": 400}
    assert login["rate_per_second"] == 100.0
    assert login["latency_ms"]["p99"] == pytest.approx(16, rel=0.001)
    assert login["phases_ms"]["first_byte"]["p99"] == pytest.approx(16, rel=0.001)
    assert login["phases_ms"]["tls"] == {}
    assert note["latency_ms"]["p99"] is None
    assert [point["total"] for point in login["series"]] == [100, 100, 100, 100]
    assert [point["at_seconds"] for point in workflow["series"]] == [0, 1, 2, 3]
    assert (workflow["total"], workflow["failed"]) == (800, 16)
    assert workflow["checks"][0] == {
        "name": "is_fast",
        "passed": 3,
        "failed": 1,
        "first_failure": "slot 1",
    }
    assert {m["name"]: m["value"] for m in workflow["metrics"]} == {
        "carts": 400,
        "render": pytest.approx(0.0045),
    }
    first, second = document["thresholds"]
    assert first == {
        "name": "login.p99",
        "limit": "<250ms",
        "value": pytest.approx(16, rel=0.001),
        "passed": True,
        "workflow": "Shop",
        "unit": "ms",
        "abort_on_fail": False,
        "worst_from_second": None,
    }
    assert (second["value"], second["unit"], second["passed"]) == (2.0, "%", False)


def test_the_histogram_in_a_result_is_the_whole_distribution() -> None:
    (step, *_) = shop_result().workflows[0].steps
    histogram = Histogram.decode(base64.b64decode(step.histogram))
    assert histogram.count == 400
    assert histogram.quantile_ns(0.99) / 1e6 == pytest.approx(step.latency_ms.p99)


def failed_result(file: str, status: RunStatus, error: str, *warnings: str) -> RunResult:
    """Of a run whose only workflow did not even begin."""
    outcome = WorkflowOutcome(
        stats=WorkflowStats(make_plan()), status=status, cores=0, error=error, warnings=warnings
    )
    return build_result(
        file=file,
        status=RunStatus.FAILED,
        started_at=STARTED_AT,
        elapsed_s=0.1,
        outcomes=[outcome],
    )


def test_a_workflow_that_never_ran_has_a_valid_result() -> None:
    result = failed_result("shop.py", RunStatus.CANCELLED, "dependency failed: Seed")
    document = validate(result)
    assert document["workflows"][0]["series"] == []
    assert result.exit_code == 3


def test_text_that_cannot_be_encoded_is_replaced() -> None:
    result = failed_result("caf\udce9.py", RunStatus.FAILED, "\ud800 went wrong", "\udcff")
    document = validate(result)
    assert document["file"] == "caf?.py"
    assert document["workflows"][0]["error"] == "? went wrong"


def test_a_metric_that_is_not_a_number_is_null() -> None:
    stats = WorkflowStats(make_plan(metrics=(("depth", MetricKind.GAUGE),)))
    part = Part()
    part.measure("depth", "gauge", float("inf"))
    stats.apply(part.report())
    outcome = WorkflowOutcome(stats=stats, status=RunStatus.COMPLETED, cores=1)
    result = build_result(
        file="x", status=RunStatus.COMPLETED, started_at=STARTED_AT, elapsed_s=1, outcomes=[outcome]
    )
    assert validate(result)["workflows"][0]["metrics"][0]["value"] is None


@given(hostile_results)
def test_every_result_reads_back_as_it_was_written(result: RunResult) -> None:
    assert decode_json(encode_json(result)) == result
    assert decode_json(encode_json(result, indent=2)) == result


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"schema": 2}', b'{"schema": 1}', b"\xff"]
)
def test_a_document_that_is_not_a_result_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match=r"^old\.json: "):
        decode_json(content, where="old.json")


def test_the_schema_file_is_generated_from_the_types() -> None:
    assert PATH.read_text("utf-8") == encode_schema(), "run: python -m hyperscale.reporting.schema"


def test_every_field_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/results.md").read_text("utf-8")
    missing = [
        f"{name}.{field}"
        for name, table in {**SCHEMA["$defs"], "RunResult": SCHEMA}.items()
        for field in table.get("properties", ())
        if f"`{field}`" not in page or not table["properties"][field]["description"]
    ]
    assert not missing


@pytest.mark.parametrize(
    ("limits", "passed", "exit_code"),
    [
        ((), False, 1),  # a check failed
        ((("checks", ">=75%"),), True, 0),  # unless a threshold says how many may
        ((("checks", ">75%"),), False, 1),
        ((("checks", ">=75%"), ("login.p99", "<1ms")), False, 1),
    ],
)
def test_thresholds_and_checks_decide_whether_a_completed_run_passed(
    limits: tuple[tuple[str, str], ...], passed: bool, exit_code: int
) -> None:
    result = shop_result(*limits)
    assert (result.passed, result.exit_code) == (passed, exit_code)


@pytest.mark.parametrize(
    "status", [RunStatus.PARTIAL, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TIMEOUT]
)
def test_a_run_that_did_not_complete_did_not_pass(status: RunStatus) -> None:
    result = shop_result(("checks", ">=0%"), status=status)
    assert (result.passed, result.exit_code) == (False, 3)


def test_a_saturated_workflow_marks_the_run() -> None:
    outcome = WorkflowOutcome(
        stats=shop_stats(),
        status=RunStatus.COMPLETED,
        cores=2,
        was_saturated=True,
        warnings=("Shop: saturated",),
    )
    result = build_result(
        file="shop.py",
        status=RunStatus.COMPLETED,
        started_at=STARTED_AT,
        elapsed_s=4,
        outcomes=[outcome],
        warnings=["slow disk"],
    )
    assert result.saturated
    assert result.warnings == ["slow disk", "Shop: saturated"]
    assert result.workflows[0].warnings == ["Shop: saturated"]


def test_the_series_of_a_workflow_has_its_users_and_percentiles() -> None:
    stats = WorkflowStats(make_plan(duration_s=6.0))
    for slot, users in enumerate(((0, 2, 1, 5), (0, 5, 4, 1))):
        part = Part(slot=slot, users=users)
        for second in range(6 - slot):  # the second part ends a second earlier
            for n in range(100):
                part.request("login", (n + 1) * 1_000_000, at_s=second + 0.5)
        part.elapsed_s = 6.0 - slot
        stats.apply(part.report())
    result = build_result(
        file="shop.py",
        status=RunStatus.COMPLETED,
        started_at=STARTED_AT,
        elapsed_s=8.0,
        outcomes=[WorkflowOutcome(stats=stats, status=RunStatus.COMPLETED, cores=2, began_s=1.25)],
    )
    (workflow,) = result.workflows
    assert workflow.began_seconds == 1.25
    assert [point.vus for point in workflow.series] == [7, 10, 10, 10, 6, 5]
    for point in workflow.series:
        shown = (point.p50_ms, point.p90_ms, point.p95_ms, point.p99_ms)
        assert shown == pytest.approx((50, 90, 95, 99), rel=0.001)
    assert {point.vus for step in workflow.steps for point in step.series} == {None}
