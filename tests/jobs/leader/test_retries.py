"""Failed attempts count within a window of load; workers are excluded from a part for a while."""

import pytest

from hyperscale.jobs.committed.events import AttemptFault, JobStatus
from hyperscale.jobs.committed.state import Part, Segment
from hyperscale.jobs.leader.retries import RetryLimits
from hyperscale.plan.status import PartStatus
from tests.lab.job_builders import workflow
from tests.lab.leader_rig import Rig

LIMITS = RetryLimits()
LONG_S = 3 * 3600.0


def part_of(*failed: tuple[str, float, float, AttemptFault]) -> Part:
    """Make a part of failed attempts: worker, load in all in s, time of the group in s, fault."""
    segments: list[Segment] = []
    for worker, load_s, time_s, fault in failed:
        began_s = segments[-1].load_until_s if segments else 0.0
        segments.append(
            Segment(
                attempt=len(segments) + 1,
                worker=worker,
                reason=f"{worker} failed",
                began_s=began_s,
                elapsed_s=load_s - began_s,
                ended_ms=round(time_s * 1000),
                fault=fault,
            )
        )
    return Part(first_slot=0, cores=1, attempt=len(segments), segments=segments)


def fail(rig: Rig, job: str, *, after_s: float = 0.2, reports: bool = True) -> str:
    """End the executor of the job's only part after a while; return its worker."""
    rig.run(after_s, reports=reports)
    worker = rig.job(job).workflows["Load"].parts[0].worker
    rig.finish(worker, PartStatus.FAILED, error="an executor died", is_retryable=True)
    rig.run(0.3)
    return worker


def test_failures_count_together_until_the_part_had_as_much_load_as_the_window() -> None:
    died = AttemptFault.EXECUTOR_DIED
    part = part_of(
        *[(f"w{n}", load_s, 9_000.0, died) for n, load_s in enumerate((10.0, 100.0, 310.0, 399.9))]
    )
    assert [each.worker for each in LIMITS.failures(part)] == ["w1", "w2", "w3"]
    assert not LIMITS.is_used_up(part)


def test_attempts_without_load_count_however_far_apart_they_are() -> None:
    part = part_of(*[(f"w{n}", 0.0, 400.0 * n, AttemptFault.NOT_PREPARED) for n in range(4)])
    assert LIMITS.is_used_up(part)
    assert LIMITS.describe(part) == "given up after 4 attempts without any load: w3 failed"


def test_a_worker_is_excluded_for_the_window_and_the_longest_excluded_comes_first() -> None:
    part = part_of(
        ("w2", 0.0, 10.0, AttemptFault.NOT_PREPARED),
        ("w1", 0.0, 20.0, AttemptFault.EXECUTOR_DIED),
        ("w0", 0.0, 30.0, AttemptFault.REFUSED),
        ("w2", 0.0, 40.0, AttemptFault.NONE),
    )

    def excluded(time_s: float) -> list[str]:
        return LIMITS.excluded(part, time_ms=round(time_s * 1000), returned=set())

    assert excluded(50.0) == ["w2", "w1", "w0"]
    assert excluded(310.0) == ["w1", "w0"]
    assert excluded(331.0) == []


def test_a_worker_that_came_back_is_excluded_only_for_faults_that_a_restart_does_not_heal() -> None:
    part = part_of(
        ("w0", 0.0, 1.0, AttemptFault.WORKER_LOST), ("w1", 0.0, 2.0, AttemptFault.NOT_PREPARED)
    )
    assert LIMITS.excluded(part, time_ms=3_000, returned={"w0", "w1"}) == ["w1"]


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_part_goes_round_the_workers_and_then_to_the_one_excluded_longest_ago(
    is_taken_over: bool,
) -> None:
    rig = Rig(workers=3, cores=1, retries=RetryLimits(max=9))
    job = rig.submit(workflow("Load", vus=1, duration_s=LONG_S))
    tried = []
    for _ in range(7):
        tried.append(fail(rig, job))
        if is_taken_over:
            rig.take_over()
    assert sorted(tried[:3]) == ["w0", "w1", "w2"]
    assert tried[3:6] == tried[:3]
    assert tried[6] == tried[0]


def test_an_exclusion_ends_with_the_window_also_under_another_leader() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1, duration_s=LONG_S))
    first = fail(rig, job)
    rig.run(200.0, reports=True)
    rig.take_over()
    second = rig.job(job).workflows["Load"].parts[0].worker
    rig.run(101.0, reports=True)
    rig.kill(second)
    rig.run(0.3)
    assert rig.job(job).workflows["Load"].parts[0].worker == first


def test_a_part_that_never_gets_to_its_load_ends_however_slowly_it_fails() -> None:
    rig = Rig(workers=6, cores=1)
    for worker in rig.workers.values():
        worker.readies = False
    job = rig.submit(workflow("Load", vus=1, duration_s=LONG_S))
    for _ in range(4):
        fail(rig, job, after_s=110.0, reports=False)
    ended = rig.job(job)
    assert ended.status is JobStatus.FAILED
    assert "given up after 4 attempts without any load: an executor died" in ended.reason


def test_no_retry_at_all_may_be_configured() -> None:
    rig = Rig(workers=2, cores=1, retries=RetryLimits(max=0))
    job = rig.submit(workflow("Load", vus=1))
    fail(rig, job)
    assert "given up after 1 attempt within 5m of load: " in rig.job(job).reason
