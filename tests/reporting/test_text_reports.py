import csv
import io
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given

from hyperscale.reporting.csv_report import COLUMNS, encode_csv
from hyperscale.reporting.junit_report import encode_junit
from hyperscale.reporting.results import RunResult, RunStatus
from hyperscale.reporting.xml_report import encode_xml, xml_text
from tests.reporting.runs import hostile_results, shop_result


def rows(content: bytes, delimiter: str = ",") -> list[dict[str, str]]:
    text = io.StringIO(content.decode("utf-8"), newline="")
    return list(csv.DictReader(text, delimiter=delimiter))


def test_csv_has_a_row_per_step_and_empty_cells_for_what_was_not_measured() -> None:
    login, pay, note = rows(encode_csv(shop_result()))
    assert tuple(login) == COLUMNS
    assert (login["workflow"], login["step"], login["kind"]) == ("Shop", "login", "test")
    assert (login["total"], pay["failed"], pay["errors"]) == ("400", "16", "timeout=16")
    assert pay["status_codes"] == "200=384"
    assert float(login["latency_p99_ms"]) == pytest.approx(16, rel=0.001)
    assert float(login["first_byte_p50_ms"]) == pytest.approx(13, rel=0.001)
    assert login["tls_p50_ms"] == note["latency_p99_ms"] == ""


@given(hostile_results)
def test_csv_preserves_hostile_names(result: RunResult) -> None:
    for delimiter in (",", ";", "\t"):
        read = rows(encode_csv(result, delimiter=delimiter), delimiter)
        expected = [(w.name, step.name) for w in result.workflows for step in w.steps]
        assert [(row["workflow"], row["step"]) for row in read] == expected
        assert all(set(row) == set(COLUMNS) for row in read)


def test_xml_holds_every_count() -> None:
    root = ET.fromstring(encode_xml(shop_result(("login.p99", "<250ms"))))
    assert root.attrib["schema"] == "1"
    assert root.attrib["status"] == "completed"
    assert root.attrib["saturated"] == "false"
    threshold = root.find("thresholds/threshold")
    assert threshold is not None
    assert (threshold.get("name"), threshold.get("limit")) == ("login.p99", "<250ms")
    pay = root.findall("workflows/workflow/steps/step")[1]
    assert (pay.get("name"), pay.get("total"), pay.get("failed")) == ("pay", "400", "16")
    error = pay.find("error")
    assert error is not None
    assert error.attrib == {"class": "timeout", "count": "16"}
    assert len(pay.findall("series/point")) == 4
    assert root.findall("workflows/workflow/metrics/metric")[0].get("value") == "400.0"


@given(hostile_results)
def test_xml_preserves_hostile_names_except_characters_it_cannot_hold(result: RunResult) -> None:
    root = ET.fromstring(encode_xml(result))
    names = [node.get("name") for node in root.findall("workflows/workflow/steps/step")]
    assert names == [xml_text(step.name) for w in result.workflows for step in w.steps]
    warnings = [node.text or "" for node in root.findall("warning")]
    # A parser reads every line end in text as one newline.
    assert warnings == [
        xml_text(text).replace("\r\n", "\n").replace("\r", "\n") for text in result.warnings
    ]


def cases(result: RunResult) -> dict[str, str]:
    """Test case to outcome."""
    root = ET.fromstring(encode_junit(result))
    return {
        case.attrib["name"]: next(
            (child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed"
        )
        for case in root.iter("testcase")
    }


def test_junit_has_a_case_for_the_run_and_each_threshold_and_check() -> None:
    assert cases(shop_result(("login.p99", "<250ms"), ("errors", "<1%"))) == {
        "run": "passed",
        "threshold login.p99 <250ms": "passed",
        "threshold errors <1%": "failure",
        "check is_fast": "failure",
    }


def test_junit_says_what_was_measured() -> None:
    root = ET.fromstring(encode_junit(shop_result(("errors", "<1%"), ("note.p99", "<1s"))))
    messages = [failure.attrib["message"] for failure in root.iter("failure")]
    assert messages == [
        "was 2%, limit <1%",
        "there were no samples",
        "1 of 4 failed; the first: slot 1",
    ]


def test_junit_leaves_a_check_to_the_threshold_that_judges_checks() -> None:
    assert cases(shop_result(("checks", ">=75%")))["check is_fast"] == "passed"


def test_junit_reports_a_run_that_went_wrong_as_an_error() -> None:
    assert cases(shop_result(status=RunStatus.FAILED))["run"] == "error"


@given(hostile_results)
def test_junit_is_well_formed_and_its_counts_are_those_of_its_cases(result: RunResult) -> None:
    root = ET.fromstring(encode_junit(result))
    assert root.tag == "testsuites"
    for node in (root, *root.findall("testsuite")):
        found = list(node.iter("testcase"))
        assert int(node.attrib["tests"]) == len(found)
        for tag, name in (("failure", "failures"), ("error", "errors")):
            assert int(node.attrib[name]) == sum(case.find(tag) is not None for case in found)
    for suite in root.findall("testsuite"):
        assert {"name", "timestamp", "hostname", "time", "skipped"} <= set(suite.attrib)
        for case in suite.findall("testcase"):
            assert {"name", "classname", "time"} <= set(case.attrib)
