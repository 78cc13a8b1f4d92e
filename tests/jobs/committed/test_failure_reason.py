"""Why jobs failed, as one of a few reasons."""

import pytest

from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.failure_reason import FailureReason, failure_reason
from hyperscale.jobs.committed.state import Job, Part, PartEnd, Stop, WorkflowState
from hyperscale.plan.status import PartStatus
from tests.lab.job_builders import plan

_J = JobStatus


def ended(status: JobStatus, *, stop: Stop | None = None, **workflows: WorkflowState) -> Job:
    return Job(
        id="dc.1-a",
        key="a",
        digest="",
        plan=plan(),
        status=status,
        stop=stop,
        workflows=workflows,
    )


def part(status: PartStatus | None) -> Part:
    return Part(first_slot=0, cores=1, end=None if status is None else PartEnd(status=status))


COMPLETED = WorkflowState(ended_as=_J.COMPLETED, parts=[part(PartStatus.COMPLETED)])
RAISED = WorkflowState(ended_as=_J.FAILED, parts=[part(PartStatus.FAILED)])
GIVEN_UP = WorkflowState(ended_as=_J.FAILED, parts=[part(None)])
STUCK = WorkflowState(ended_as=_J.TIMEOUT, parts=[part(PartStatus.STOPPED)])
UNSTARTED = WorkflowState(ended_as=_J.FAILED)
DEPENDENT = WorkflowState(ended_as=_J.CANCELLED)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (ended(_J.COMPLETED, a=COMPLETED), None),
        (ended(_J.CANCELLED, stop=Stop(status=_J.CANCELLED, reason=""), a=DEPENDENT), None),
        (
            ended(_J.FAILED, stop=Stop(status=_J.FAILED, reason="", aborted_by="a"), a=STUCK),
            FailureReason.THRESHOLD,
        ),
        (ended(_J.TIMEOUT, stop=Stop(status=_J.TIMEOUT, reason="")), FailureReason.TIMEOUT),
        (ended(_J.FAILED, a=RAISED, b=DEPENDENT), FailureReason.TEST),
        (ended(_J.PARTIAL, a=COMPLETED, b=GIVEN_UP), FailureReason.WORKERS),
        (ended(_J.TIMEOUT, a=STUCK, b=DEPENDENT), FailureReason.TIMEOUT),
        (ended(_J.FAILED, a=UNSTARTED), FailureReason.NOT_DISPATCHED),
        (ended(_J.FAILED, a=GIVEN_UP, b=RAISED), FailureReason.TEST),
        (ended(_J.FAILED, a=WorkflowState(parts=[part(None)])), FailureReason.INTERNAL),
    ],
)
def test_an_ended_job_has_one_reason_or_none(job: Job, reason: FailureReason | None) -> None:
    assert failure_reason(job) is reason
