"""The committed rules of setup and teardown: once per workflow, however often requested."""

import pytest
from msgspec.structs import replace

from hyperscale.jobs.committed.events import (
    CancelRequested,
    Code,
    JobStatus,
    PartRedispatched,
    TeardownDispatched,
    TeardownStarted,
    WorkflowEnded,
    WorkflowSetUp,
)
from hyperscale.jobs.committed.state import Teardown
from hyperscale.plan import StepKind, StepPlan
from hyperscale.plan.status import PartStatus
from tests.jobs.committed.test_machine import MachineLog, revoke
from tests.lab.job_builders import plan, submission, workflow

AROUND = tuple(StepPlan(name=kind.value, kind=kind) for kind in (StepKind.SETUP, StepKind.TEARDOWN))


def begun() -> tuple[MachineLog, str]:
    """Return a log with a job of two parts that is about to be set up."""
    log = MachineLog()
    job = log.put(submission(wanted=plan(replace(workflow("Load"), steps=AROUND)))).job
    log.dispatch(job, "Load", 1, 1)
    return log, job


def set_up(job: str, *, attempt: int = 1, context: bytes = b"left") -> WorkflowSetUp:
    return WorkflowSetUp(job=job, workflow="Load", part=0, attempt=attempt, context=context)


def ended() -> tuple[MachineLog, str]:
    """Return a log with a job whose load is over and which is to be torn down."""
    log, job = begun()
    assert log.put(set_up(job)).ok
    log.finish(job, part=0)
    log.finish(job, part=1)
    return log, job


def dispatch(job: str, worker: str = "w0") -> TeardownDispatched:
    return TeardownDispatched(job=job, workflow="Load", worker=worker)


def test_the_first_context_counts_and_a_lost_attempt_leaves_none() -> None:
    log, job = begun()
    assert log.put(revoke(job)).ok
    assert log.put(set_up(job)).code is Code.STALE_ATTEMPT
    again = PartRedispatched(job=job, workflow="Load", part=0, attempt=2, worker="w1")
    assert log.put(again).ok
    assert log.put(set_up(job, attempt=2, context=b"second")).ok
    assert log.put(set_up(job, attempt=2, context=b"third")).code is Code.DUPLICATE
    assert log.job(job).workflows["Load"].set_up == b"second"


def test_a_workflow_that_was_set_up_ends_with_its_teardown() -> None:
    log, job = ended()
    load = log.job(job).workflows["Load"]
    assert (load.has_ended, load.is_tearing_down, load.slots) == (False, True, 2)
    assert log.put(dispatch(job)).ok
    assert log.put(dispatch(job, "w1")).code is Code.DUPLICATE
    assert log.put(TeardownStarted(job=job, workflow="Load", part=2, attempt=1)).ok
    assert log.finish(job, part=2).ok
    load = log.job(job).workflows["Load"]
    assert (load.ended_as, load.teardown, load.set_up) == (
        JobStatus.COMPLETED,
        Teardown.OVER,
        b"",
    )
    assert (load.attempts, load.slots, len(load.workers)) == (2, 2, 2)  # of the load


@pytest.mark.parametrize("is_started", [False, True])
def test_a_lost_teardown_is_given_to_another_worker_only_if_it_was_not_started(
    is_started: bool,
) -> None:
    log, job = ended()
    assert log.put(dispatch(job)).ok
    if is_started:
        assert log.put(TeardownStarted(job=job, workflow="Load", part=2, attempt=1)).ok
    assert log.put(revoke(job, part=2)).ok
    load = log.job(job).workflows["Load"]
    assert load.has_ended is is_started
    assert bool(load.teardown_problem) is is_started
    again = PartRedispatched(job=job, workflow="Load", part=2, attempt=2, worker="w1")
    assert log.put(again).ok is not is_started


def test_a_teardown_that_ends_its_executor_fails_the_workflow() -> None:
    log, job = ended()
    log.put(dispatch(job))
    log.finish(job, part=2, status=PartStatus.FAILED, error="no executor")
    load = log.job(job).workflows["Load"]
    assert (load.ended_as, load.teardown_problem) == (JobStatus.FAILED, "no executor")


def test_a_teardown_that_no_worker_can_run_is_given_up() -> None:
    log, job = ended()
    assert log.put(WorkflowEnded(job=job, workflow="Load", reason="no cores")).ok
    load = log.job(job).workflows["Load"]
    assert (load.ended_as, load.teardown_problem) == (JobStatus.COMPLETED, "no cores")


def test_a_cancelled_job_is_torn_down_if_setup_had_run_even_if_only_its_result_says_so() -> None:
    log, job = begun()
    assert log.put(CancelRequested(job=job, reason="enough")).ok
    assert log.put(revoke(job, part=1)).ok
    assert log.finish(job, part=0, status=PartStatus.STOPPED, set_up=b"left").ok
    load = log.job(job).workflows["Load"]
    assert (load.has_ended, load.is_tearing_down) == (False, True)
    assert log.put(dispatch(job)).ok
    assert log.finish(job, part=2).ok
    assert log.job(job).workflows["Load"].ended_as is JobStatus.CANCELLED


def test_a_workflow_that_was_not_set_up_is_not_torn_down() -> None:
    log, job = begun()
    log.put(CancelRequested(job=job, reason="enough"))
    log.put(revoke(job, part=0))
    log.put(revoke(job, part=1))
    assert log.job(job).workflows["Load"].ended_as is JobStatus.CANCELLED
    assert log.put(dispatch(job)).code is Code.INVALID


def test_the_history_does_not_keep_what_setup_left() -> None:
    log, job = begun()
    log.put(set_up(job, context=b"a secret token"))
    assert b"a secret token" not in b"".join(row[-1] for row in log.rows)


def test_what_setup_left_counts_as_context_only_until_its_workflow_has_ended() -> None:
    log, names = MachineLog(), [f"Load{number}" for number in range(20)]
    flows = [replace(workflow(name), steps=AROUND[:1]) for name in names]
    job = log.put(submission(wanted=plan(*flows))).job
    for name in names:
        log.dispatch(job, name, 1)
        assert log.put(replace(set_up(job, context=bytes(60 * 1024)), workflow=name)).ok
        log.finish(job, name)
        assert log.job(job).workflows[name].ended_as is JobStatus.COMPLETED
