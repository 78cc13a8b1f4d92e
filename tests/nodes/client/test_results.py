"""The notes in the results of a job."""

import pytest

from hyperscale import Workflow, step
from hyperscale.client.package import package_classes
from hyperscale.client.results import result_of_end
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.outcome import JobEnd
from hyperscale.jobs.committed.state import Job, Stop, WorkflowState
from hyperscale.stats.workflow import WorkflowStats
from hyperscale.testing import URL, HTTPResponse

_STOP = Stop(status=JobStatus.CANCELLED, reason="wrong file")


class Reader(Workflow):
    vus = 1
    duration = "1s"

    @step()
    async def home(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse:
        return await self.client.http.get(url)


@pytest.mark.parametrize(
    ("stop", "reason", "error", "notes"),
    [
        (None, "Reader: it broke", "it broke", []),  # the reason of a job without a stop
        (_STOP, "wrong file", "wrong file", []),
        (_STOP, "wrong file", "never started: wrong file", ["the job was cancelled: wrong file"]),
    ],
)
def test_a_note_says_why_a_job_ended_unless_a_workflow_says_the_same(
    stop: Stop | None, reason: str, error: str, notes: list[str]
) -> None:
    plan = package_classes([Reader], test_name="reader").plan
    status = JobStatus.FAILED if stop is None else stop.status
    job = Job(
        id="default.1-abcdefghijklmnopqrst",
        key="k",
        digest="",
        plan=plan,
        status=status,
        reason=reason,
        stop=stop,
        workflows={"Reader": WorkflowState(error=error, ended_as=status)},
    )
    end = JobEnd(job, {"Reader": WorkflowStats(plan.workflows[0])}, segments=[], gaps=[], usage=[])
    assert result_of_end(end).warnings == notes
