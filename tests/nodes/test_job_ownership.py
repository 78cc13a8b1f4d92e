"""What named clients may do with jobs, as the node that they are connected to decides."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hyperscale.client.messages import (
    CancelJob,
    GetJob,
    GetJobReply,
    ListJobs,
    ListJobsReply,
    OutputLine,
    WatchJob,
    WatchJobUpdate,
)
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.keys import job_id
from hyperscale.jobs.committed.state import JobView, WorkflowRow, WorkflowStatus
from hyperscale.nodes.jobs.job_ownership import (
    JobQuota,
    check_owner,
    quota_of,
    without_output_of_others,
)
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.client_access import ClientRole, Principal
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.registry import REGISTRY
from tests.lab.loops import run

ALICE = Principal(name="alice", role=ClientRole.SUBMITTER, jobs_max=3, cores_max=8)
BOB = Principal(name="bob", role=ClientRole.SUBMITTER)
VERA = Principal(name="vera", role=ClientRole.VIEWER)
OLGA = Principal(name="olga", role=ClientRole.OPERATOR)
JOB = job_id("dc", 1, "first")


def view(key: str, *, by: str = "alice", cores: int = 0) -> JobView:
    rows = [
        WorkflowRow(name="a", status=WorkflowStatus.RUNNING, cores=cores),
        WorkflowRow(name="b", status=WorkflowStatus.COMPLETED, cores=100),
    ]
    running = JobStatus.RUNNING
    return JobView(job=job_id("dc", 1, key), status=running, file="f", by=by, workflows=rows)


def call(principal: Principal | None, message: type[Any]) -> InboundCall:
    return cast("InboundCall", SimpleNamespace(principal=principal, spec=REGISTRY.by_type[message]))


async def find(_call: InboundCall, request: GetJob) -> GetJobReply:
    return GetJobReply(job=view("first") if request.job == JOB else None)


@pytest.mark.parametrize("principal", [None, ALICE, OLGA])
def test_owners_operators_and_clients_without_a_name_may_change_a_job(
    principal: Principal | None,
) -> None:
    run(lambda: check_owner(call(principal, CancelJob), CancelJob(job=JOB), find))


def test_another_submitter_may_look_at_a_job_but_not_change_it() -> None:
    run(lambda: check_owner(call(BOB, GetJob), GetJob(job=JOB), find))
    with pytest.raises(RemoteError, match="belongs to alice, not to bob") as caught:
        run(lambda: check_owner(call(BOB, CancelJob), CancelJob(job=JOB), find))
    assert caught.value.code is RemoteErrorCode.ROLE
    with pytest.raises(RemoteError) as caught:
        run(lambda: check_owner(call(BOB, CancelJob), CancelJob(job="dc.1-x"), find))
    assert caught.value.code is RemoteErrorCode.UNKNOWN_JOB


@pytest.mark.parametrize(
    ("principal", "is_shown"),
    [(None, True), (ALICE, True), (OLGA, True), (BOB, False), (VERA, False)],
)
def test_what_a_job_prints_is_for_its_owner_and_operators(
    principal: Principal | None, is_shown: bool
) -> None:
    async def updates() -> AsyncGenerator[WatchJobUpdate, None]:
        line = OutputLine(worker="w", workflow="a", slot=0, stream="out", text="a password")
        yield WatchJobUpdate(job=view("first"), output=[line])

    async def watch() -> list[WatchJobUpdate]:
        watched = without_output_of_others(
            call(principal, WatchJob), WatchJob(job=JOB), find, updates()
        )
        return [update async for update in watched]

    (update,) = run(watch)
    assert update.job.status is JobStatus.RUNNING
    assert bool(update.output) is is_shown


def quota(principal: Principal | None, *views: JobView, key: str = "new") -> JobQuota:
    async def listed(_call: InboundCall, request: ListJobs) -> ListJobsReply:
        assert request.live_only
        return ListJobsReply(jobs=list(views))

    return run(lambda: quota_of(call(principal, GetJob), key, listed))


def test_a_quota_counts_the_jobs_and_the_cores_of_one_owner() -> None:
    others = [view(f"other-{n}", by="bob", cores=50) for n in range(9)]
    assert quota(None, *others) == JobQuota()
    assert quota(BOB, *others) == JobQuota()
    assert quota(ALICE, *others) == JobQuota(cores_max=8)
    assert quota(ALICE, *others, view("a", cores=3)) == JobQuota(cores_max=5)
    full = quota(ALICE, view("a", cores=3), view("b", cores=5))
    assert full.problem == "the jobs of alice hold 8 of 8 cores"
    many = [view(key) for key in "abc"]
    assert quota(ALICE, *many).problem == "alice has 3 of 3 jobs that may run or wait"
    assert quota(ALICE, *many, key="c").problem == ""  # the same submission again
