import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given

from hyperscale.reporting.csv_report import encode_csv
from hyperscale.reporting.html.page import encode_html
from hyperscale.reporting.junit_report import encode_junit
from hyperscale.reporting.results import RunResult, RunStatus
from hyperscale.reporting.verdict import reasons_of, run_standing, workflow_standing
from hyperscale.stats.reasons import Reason, ReasonKind
from hyperscale.stats.standing import SIGNS, Standing
from hyperscale.ui.summary import summary
from hyperscale.ui.theme import Theme
from tests import figures
from tests.reporting.runs import hostile_results, shop_result


def fruitless() -> RunResult:
    result = shop_result(("checks", ">=75%"))
    (workflow,) = result.workflows
    reason = Reason(kind=ReasonKind.NO_SUCCESS, text="not one call succeeded")
    failing = msgspec.structs.replace(workflow, ok=0, failed=workflow.total, reasons=[reason])
    return msgspec.structs.replace(result, workflows=[failing], passed=False)


RESULTS = {
    "passed": shop_result(("checks", ">=75%")),
    "failed": shop_result(("login.p99", "<1ms"), ("checks", ">=75%")),
    "a check failed": shop_result(),
    "no success": fruitless(),
    **{status.value: shop_result(status=status) for status in RunStatus},
}


class Badges(HTMLParser):
    """The badges of a page: the colour's class and the text, in order."""

    def __init__(self, result: RunResult) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._depth = 0
        self.feed(encode_html(result).decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        if "badge" in classes:
            self.found.append((classes[1], ""))
            self._depth = 1
        elif self._depth:
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth = max(0, self._depth - 1)

    def handle_data(self, data: str) -> None:
        if self._depth:
            tone, text = self.found[-1]
            self.found[-1] = (tone, text + data)


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_summary_report_and_csv_show_the_same_verdict(result: RunResult) -> None:
    (workflow,) = result.workflows
    standing = workflow_standing(workflow)
    sign = SIGNS[standing]
    lines = summary(result, 200, Theme(colors=None))
    assert lines[1].startswith(f"{sign.symbol} Shop  {standing}")
    assert lines[-1].startswith(f"{SIGNS[run_standing(result)].symbol} {run_standing(result)}")
    badges = Badges(result).found
    assert badges[0] == (SIGNS[run_standing(result)].tone, badges[0][1])
    assert (sign.tone, f"{sign.symbol}{standing}") in badges
    rows = list(csv.DictReader(io.StringIO(encode_csv(result).decode(), newline="")))
    assert {row["workflow_verdict"] for row in rows} == {standing}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_nothing_that_failed_stands_beside_a_tick(result: RunResult) -> None:
    is_good = run_standing(result) is Standing.PASSED
    assert is_good == (not reasons_of(result))
    cases = list(ET.fromstring(encode_junit(result)).iter("testcase"))
    assert is_good == (
        not any(c.find("failure") is not None or c.find("error") is not None for c in cases)
    )
    tick = SIGNS[Standing.PASSED].symbol
    for line in summary(result, 200, Theme(colors=None)):
        assert not (line.startswith(f"{tick} ") and not is_good), line


@given(hostile_results)
def test_a_badge_has_a_sign_of_the_table_and_no_other(result: RunResult) -> None:
    known = {(sign.tone.value, sign.symbol) for sign in SIGNS.values()}
    assert {(tone, text[:1]) for tone, text in Badges(result).found} <= known


def test_no_other_module_has_symbols_of_verdicts() -> None:
    symbols = re.compile("[✓✗⊘◐◌≈]")
    table = Path("hyperscale/stats/standing.py")
    for path in (figures.ROOT / "hyperscale").rglob("*.py"):
        if path != figures.ROOT / table:
            assert not symbols.search(path.read_text("utf-8")), path
