"""The Grafana dashboards: their shape, their metrics and their queries."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hyperscale.reporting.streams.snapshot import metrics_of
from tests.figures import ROOT
from tests.reporting.runs import shop_stats
from tests.services.fixtures import GetService

BOARDS = sorted((ROOT / "docs/grafana").glob("*.json"))

# What Grafana's schema of dashboards (schemaVersion 39) demands of the parts that we use.
_DATASOURCE = {
    "type": "object",
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
    "required": ["type", "uid"],
}
_PLACE = {"type": "integer", "minimum": 0}
_PANEL = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": ["timeseries", "stat"]},
        "title": {"type": "string", "minLength": 1},
        "datasource": _DATASOURCE,
        "gridPos": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "minimum": 0, "maximum": 23},
                "w": {"type": "integer", "minimum": 1, "maximum": 24},
                "y": _PLACE,
                "h": {"type": "integer", "minimum": 1},
            },
            "required": ["x", "y", "w", "h"],
        },
        "targets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "refId": {"type": "string", "pattern": "^[A-Z]$"},
                    "expr": {"type": "string", "minLength": 1},
                    "datasource": _DATASOURCE,
                },
                "required": ["refId", "expr", "datasource"],
            },
        },
        "fieldConfig": {"type": "object", "required": ["defaults", "overrides"]},
    },
    "required": ["id", "type", "title", "gridPos", "targets", "fieldConfig", "options"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "uid": {"type": "string", "maxLength": 40, "pattern": "^[a-zA-Z0-9_-]+$"},
        "title": {"type": "string"},
        "schemaVersion": {"const": 39},
        "panels": {"type": "array", "minItems": 1, "items": _PANEL},
        "templating": {
            "type": "object",
            "properties": {
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"enum": ["datasource", "query"]}},
                        "required": ["name", "type", "query"],
                    },
                }
            },
            "required": ["list"],
        },
        "annotations": {"type": "object", "required": ["list"]},
        "time": {"type": "object", "required": ["from", "to"]},
    },
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "annotations", "time"],
}


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def queries(board: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [each["expr"] for each in board["annotations"]["list"]]


def test_there_are_two_dashboards() -> None:
    assert [path.stem for path in BOARDS] == ["cluster", "runs"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_has_the_shape_that_grafana_loads(path: Path) -> None:
    board = load(path)
    jsonschema.validate(board, SCHEMA)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    names = {each["name"] for each in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(board)))
    assert used <= names


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_shows_metrics_that_exist(path: Path) -> None:
    documented = set(re.findall(r"`(hyperscale_\w+)`", (ROOT / "docs/metrics.md").read_text()))
    streamed = {metric.name for metric in metrics_of("a-run", [shop_stats()])}
    known = documented | streamed | {"hyperscale_annotation", "hyperscale_errors_total"}
    for query in queries(load(path)):
        for name in re.findall(r"\bhyperscale_\w+", query):
            assert name.removesuffix("_bucket") in known, query


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_prometheus_understands_the_queries_of_a_dashboard(path: Path, service: GetService) -> None:
    server: Any = service("prometheus")
    for query in queries(load(path)):
        text = query.replace("$__rate_interval", "1m")
        server.query(re.sub(r"\$\w+", "any", text))  # raises for a query that it cannot parse
