"""Sending results elsewhere: three built-in reporters and one of our own.

    hyperscale target                       in another terminal
    hyperscale run examples/reporting.py

Reporters run once, after the test, where it was started. One that fails is reported and
changes nothing else.
"""

from pathlib import Path

from hyperscale import Workflow, check, step
from hyperscale.reporting import (
    CSVConfig,
    CustomReporter,
    JSONConfig,
    Reporter,
    ReporterTypes,
    RunResult,
    SQLiteConfig,
    result_set,
)
from hyperscale.testing import URL, HTTPResponse

OUT = Path("hyperscale-results")


class Browse(Workflow):
    vus = 20
    duration = "3s"
    tags = ["nightly"]
    thresholds = {"errors": "<1%", "home.p99": "<500ms", "checks": ">=99%"}

    @step()
    async def home(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @check()
    def home_is_json(self, home: HTTPResponse) -> bool:
        return home.headers.get("content-type", "").startswith("application/json")


class Lines(CustomReporter):
    """One line per measurement, `name value`, as many time series stores take them."""

    def __init__(self, path: Path) -> None:
        self._path = path  # nothing is opened yet: executors import this file too

    async def connect(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)

    async def submit(self, result: RunResult) -> None:
        lines = [
            f"{metric.workflow}.{metric.step or 'all'}.{metric.group}.{metric.name} {metric.value}"
            for metric in result_set(result).metrics()
        ]
        self._path.write_text("\n".join(lines) + "\n")


reporters = [
    Reporter[JSONConfig](
        reporter_type=ReporterTypes.JSON, config=JSONConfig(path=f"{OUT}/browse.json", indent=2)
    ),
    Reporter[CSVConfig](
        reporter_type=ReporterTypes.CSV, config=CSVConfig(path=f"{OUT}/browse.csv", delimiter=";")
    ),
    Reporter[SQLiteConfig](
        reporter_type=ReporterTypes.SQLite, config=SQLiteConfig(path=f"{OUT}/browse.db")
    ),
    Lines(OUT / "browse.txt"),
]
