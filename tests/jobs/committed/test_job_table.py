"""Keys and limits of the table of jobs, through the machine that uses it."""

import pytest

from hyperscale.jobs.committed.events import Code, JobFinished, JobStatus
from hyperscale.jobs.committed.job_table import Limits
from tests.jobs.committed.test_machine import MachineLog
from tests.lab.job_builders import plan, submission, workflow


def test_the_same_key_again_is_the_same_job() -> None:
    log = MachineLog()
    first, second = log.put(submission()), log.put(submission())
    assert second.ok
    assert second.was_duplicate
    assert second.job == first.job
    assert len(log.machine.views()) == 1


def test_the_same_key_with_another_payload_is_a_conflict() -> None:
    log = MachineLog()
    first = log.put(submission())
    other = log.put(submission(wanted=plan(workflow("Other"))))
    assert (other.ok, other.code, other.job) == (False, Code.CONFLICT, first.job)
    assert "another submission" in other.error
    assert other.hint == "take a new key for a new job"
    assert len(log.machine.views()) == 1


@pytest.mark.parametrize("key", ["", "k" * 129])
def test_a_malformed_key_is_refused(key: str) -> None:
    reply = MachineLog().put(submission(key))
    assert (reply.ok, reply.code) == (False, Code.INVALID_KEY)
    assert "Invalid idempotency key format" in reply.error
    assert "printable text" in reply.hint


def test_a_key_is_remembered_longer_than_the_job() -> None:
    log = MachineLog(Limits(ended_jobs=1))
    job = log.submit()
    log.put(JobFinished(job=job, status=JobStatus.COMPLETED))
    for number in range(3):
        other = log.submit(key=f"other-{number}")
        log.put(JobFinished(job=other, status=JobStatus.COMPLETED))
    assert log.machine.job(job) is None
    assert log.put(submission()).was_duplicate


def test_a_key_may_be_used_again_once_it_is_older_than_the_history() -> None:
    limits = Limits(keys_ms=1_000, ended_ms=10)
    log = MachineLog(limits)
    job = log.submit()
    log.stamp_ms += 5_000
    assert log.put(submission()).was_duplicate  # never while the job runs
    log.put(JobFinished(job=job, status=JobStatus.COMPLETED))
    log.stamp_ms += 5_000
    log.submit(key="another")  # looks after old keys
    assert not log.put(submission()).was_duplicate


def test_a_submission_beyond_the_limit_of_jobs_may_be_repeated_later() -> None:
    log = MachineLog(Limits(jobs=2))
    jobs = [log.submit(key=f"k{number}") for number in range(2)]
    refused = log.put(submission("k3"))
    assert (refused.ok, refused.code) == (False, Code.CAPACITY)
    assert refused.hint == "try again later"
    log.put(JobFinished(job=jobs[0], status=JobStatus.CANCELLED))
    assert log.put(submission("k3")).ok
