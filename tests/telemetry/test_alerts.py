"""The rules in docs/alerts.yml: valid, on metrics that exist, and each fires when it should."""

import re
import subprocess
from collections import Counter
from pathlib import Path

from tests.telemetry.reference import ALERTS, alert_table, alerts, listed, section

SCENES = Path(__file__).parent / "alerts_test.yml"
_METRIC = re.compile(r"\b((?:hyperscale|process)_\w+)")
_SUFFIX = re.compile(r"_(?:sum|count|bucket)$")


def promtool(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def test_the_alert_rules_are_valid() -> None:
    done = promtool("check", "rules", str(ALERTS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_on_metrics_that_the_page_lists() -> None:
    known = listed()
    used = {name for alert in alerts() for name in _METRIC.findall(alert.expr)}
    assert used
    assert not [name for name in used if not {name, _SUFFIX.sub("", name)} & known.keys()]


def test_the_page_lists_every_alert() -> None:
    why = "run python -m tests.telemetry.reference"
    assert section("alerts") == alert_table(), why


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    done = promtool("test", "rules", str(SCENES))
    assert done.returncode == 0, done.stdout + done.stderr
    # Twice each: once it fires, once it does not.
    tested = Counter(re.findall(r"alertname: (\w+)", SCENES.read_text()))
    assert tested == {alert.name: 2 for alert in alerts()}
