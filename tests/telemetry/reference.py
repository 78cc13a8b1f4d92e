"""The tables in docs/metrics.md: metrics, made from what nodes export, and alerts.

python -m tests.telemetry.reference     starts a manager and a worker, and writes the tables
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.figures import ROOT
from tests.lab.nodes import NodeCluster
from tests.lab.waiting import until

PAGE = ROOT / "docs" / "metrics.md"
ALERTS = ROOT / "docs" / "alerts.yml"

_HEAD = re.compile(r"^# (HELP|TYPE) (\S+) (.*)$")
_SAMPLE = re.compile(r"^(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)
_ALERT = re.compile(
    r"- alert: (?P<name>\w+)\n\s+expr: '(?P<expr>[^\n]*)'\n.*?severity: (?P<severity>\w+)\n"
    r".*?summary: '(?P<summary>[^\n]*)'\n\s+description: '(?P<todo>[^\n]*)'",
    re.DOTALL,
)
_OPEN = frozenset({"group"})  # labels whose values are not listed
_OF_KIND = frozenset({"le", "quantile"})
_VALUES_MAX = 8


class Metric(NamedTuple):
    """One row of the page."""

    name: str
    kind: str
    labels: str
    about: str


class Alert(NamedTuple):
    """One rule of alerts.yml."""

    name: str
    expr: str
    severity: str
    summary: str
    todo: str


def exported(text: str) -> dict[str, Metric]:
    """Return the metrics in the text that a node exports, by name."""
    about: dict[str, str] = {}
    kinds: dict[str, str] = {}
    labels: dict[str, dict[str, list[str]]] = {}
    for line in text.splitlines():
        if (head := _HEAD.match(line)) is not None:
            (about if head[1] == "HELP" else kinds)[head[2]] = head[3]
        elif (sample := _SAMPLE.match(line)) is not None:
            name = line.partition("{")[0].partition(" ")[0]
            of = labels.setdefault(name if name in kinds else sample[1], {})
            for key, value in _LABEL.findall(sample[2] or ""):
                values = of.setdefault(key, [])
                if value not in values:
                    values.append(value)
    return {
        name: Metric(name, kind, _shown(labels.get(name, {})), about[name])
        for name, kind in kinds.items()
    }


def _shown(labels: dict[str, list[str]]) -> str:
    cells = []
    for key, values in labels.items():
        if key in _OF_KIND:
            continue
        # One value is that of this node.
        is_listed = key not in _OPEN and 1 < len(values) <= _VALUES_MAX
        cells.append(f"`{key}`: {', '.join(values)}" if is_listed else f"`{key}`")
    return "; ".join(cells)


def listed() -> dict[str, Metric]:
    """Return the metrics of the page, by name."""
    rows = [Metric(*row) for row in _ROW.findall(PAGE.read_text())]
    return {row.name: row for row in rows}


def alerts() -> list[Alert]:
    text = ALERTS.read_text()
    found = [
        Alert(**{key: value.replace("''", "'") for key, value in each.groupdict().items()})
        for each in _ALERT.finditer(text)
    ]
    assert len(found) == text.count("- alert:")
    return found


def alert_table() -> str:
    rows = ["| alert | severity | fires when | what to do |", "|---|---|---|---|"]
    for alert in alerts():
        summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", _placeholder, alert.summary)
        todo = re.sub(r"\{\{ \$labels\.(\w+) \}\}", _placeholder, alert.todo)
        rows.append(f"| `{alert.name}` | {alert.severity} | {summary} | {todo} |")
    return "\n".join(rows)


def _placeholder(label: "re.Match[str]") -> str:
    return {"instance": "a node"}.get(label[1], label[1].upper())


def section(name: str) -> str:
    """Return the part of the page between two marks."""
    text = PAGE.read_text()
    begin = text.index(f"<!-- {name} -->") + len(f"<!-- {name} -->")
    return text[begin : text.index(f"<!-- end of {name} -->")].strip()


def tables(manager: dict[str, Metric], worker: dict[str, Metric]) -> Iterator[tuple[str, str]]:
    """Return the tables of the page by name: of every node, of managers and of workers."""
    common = {name for name in manager if name in worker and name != "hyperscale_disk_used_bytes"}
    for title, rows in (
        ("every node", [manager[name] for name in manager if name in common]),
        ("managers", [row for name, row in manager.items() if name not in common]),
        ("workers", [row for name, row in worker.items() if name not in common]),
    ):
        lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
        lines += [f"| `{row.name}` | {row.kind} | {row.labels} | {row.about} |" for row in rows]
        yield title, "\n".join(lines)


def collect(cluster: NodeCluster) -> tuple[str, str]:
    """Return what a manager and a worker export once both are ready and have measured."""
    manager, worker = cluster.form(1, 1)
    for node in (manager, worker):
        until(
            lambda node=node: (  # type: ignore[misc]  # called now
                node.get("/readyz")[0] == 200
                and "hyperscale_disk_used_bytes{" in node.get("/metrics")[1]
                and "hyperscale_peer_rtt_seconds{" in node.get("/metrics")[1]
            ),
            what=f"{node.name} is ready and has measured",
        )
    until(lambda: "hyperscale_cores " in manager.get("/metrics")[1], what="there is an allocator")
    return manager.get("/metrics")[1], worker.get("/metrics")[1]


def _write(name: str, content: str) -> None:
    text = PAGE.read_text()
    begin = text.index(f"<!-- {name} -->") + len(f"<!-- {name} -->")
    end = text.index(f"<!-- end of {name} -->")
    PAGE.write_text(f"{text[:begin]}\n{content}\n{text[end:]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, NodeCluster(Path(folder)) as running:
        texts = collect(running)
    for title, table in tables(*(exported(text) for text in texts)):
        _write(title, table)
    _write("alerts", alert_table())
