"""Test files written for earlier versions of Hyperscale run as they are."""

import json
from pathlib import Path

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import run

EARLIER = """
import json, time
from hyperscale.core.graph import Workflow
from hyperscale.core.hooks import depends, step
from hyperscale.plugin import CustomReporter, CustomResult, StepMetricSet, WorkflowMetricSet
from hyperscale.testing import URL, GRPCResponse, HTTPResponse, PlaywrightResult, TCPResponse


class Checked(CustomResult):
    status: int
    note: str = ""

    @property
    def successful(self) -> bool:
        return self.status == 200

    def context(self) -> str:
        return self.note


class Lines(CustomReporter):
    async def connect(self) -> None:
        self.lines = []

    async def submit_workflow_results(self, results: WorkflowMetricSet) -> None:
        self.lines.append([results.workflow, results.status])

    async def submit_step_results(self, results: StepMetricSet) -> None:
        counts = {metric.name: metric.value for metric in results.metrics}
        self.lines.append([results.workflow, results.step, counts["ok"], counts["failed"]])

    async def close(self) -> None:
        with open("lines.json", "w") as file:
            json.dump(self.lines, file)


class Test(Workflow):
    vus = 2
    iterations = 10
    duration = "30s"

    @step()
    async def fetch(self, url: URL = "{url}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("fetch")
    async def checked(self, fetch: HTTPResponse | None = None) -> Checked:
        began = time.monotonic()
        result = Checked(status=fetch.status_code, note="wrong status")
        result.timings = {"request_start": began, "request_end": began + 2.0}
        return result


reporters = [Lines()]
"""


def test_a_file_with_plugins_of_an_earlier_version_runs_unchanged(
    tmp_path: Path, target: RunningTarget
) -> None:
    (tmp_path / "earlier.py").write_text(EARLIER.replace("{url}", target.url))
    done = run("run", "earlier.py", "--ui", "none", "--json", "out.json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    lines = json.loads((tmp_path / "lines.json").read_text())
    assert lines == [["Test", "completed"], ["Test", "fetch", 10, 0], ["Test", "checked", 10, 0]]
    (workflow,) = json.loads((tmp_path / "out.json").read_text())["workflows"]
    latency = {step["name"]: step["latency_ms"]["p50"] for step in workflow["steps"]}
    assert latency["checked"] == pytest.approx(2000, rel=0.01), "timings say 2 s"
