"""The notes in the results of a job."""

import pytest

from hyperscale import Workflow, step
from hyperscale.client.package import package_classes
from hyperscale.client.results import result_of_end
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.outcome import JobEnd
from hyperscale.jobs.committed.state import Job, WorkflowState
from hyperscale.stats.workflow import WorkflowStats
from hyperscale.testing import URL, HTTPResponse


class Reader(Workflow):
    vus = 1
    duration = "1s"

    @step()
    async def home(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse:
        return await self.client.http.get(url)


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        ("Reader.open failed: FileNotFoundError: [Errno 2] No such file: 'x.csv'", True),
        ("Reader.open failed: ValueError: no", False),
    ],
)
def test_a_missing_file_adds_a_note_that_opened_files_are_not_sent(
    error: str, is_told: bool
) -> None:
    plan = package_classes([Reader], test_name="reader").plan
    job = Job(
        id="default.1-abcdefghijklmnopqrst",
        key="k",
        digest="",
        plan=plan,
        status=JobStatus.FAILED,
        reason=f"Reader failed: {error}",
        workflows={"Reader": WorkflowState(error=error, ended_as=JobStatus.FAILED)},
    )
    end = JobEnd(job, {"Reader": WorkflowStats(plan.workflows[0])}, segments=[], gaps=[], usage=[])
    assert any("must be on every worker" in each for each in result_of_end(end).warnings) == is_told
