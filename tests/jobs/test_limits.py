"""What a leader does with workflows that get nowhere: as what they end, and what is said."""

from hyperscale.jobs.committed.events import JobOptions, JobStatus
from hyperscale.jobs.committed.state import view_of
from hyperscale.plan import Priority
from hyperscale.plan.status import PartStatus
from tests.lab.job_builders import workflow
from tests.lab.leader_rig import Rig


def test_a_part_that_is_not_prepared_in_time_is_not_retried() -> None:
    rig = Rig(workers=2, cores=1)
    for worker in rig.workers.values():
        worker.readies = False
    job = rig.submit(workflow("Load", vus=1), workflow("After", "Load"))
    rig.run(119.0)
    assert not rig.job(job).has_ended
    rig.run(3.0)
    ended = rig.job(job)
    assert ended.status is JobStatus.TIMEOUT
    assert "not prepared within 120 s: its setup hooks or imports (part 0 on w0)" in ended.reason
    assert ended.workflows["Load"].parts[0].attempt == 1
    assert rig.workers["w0"].stops
    # What a workflow ended as is shown, and not only that it was stopped.
    assert [row.ended_as for row in view_of(ended, rig.now_ms).workflows] == [
        JobStatus.TIMEOUT,
        JobStatus.CANCELLED,
    ]


def test_a_job_without_workers_left_fails_with_the_last_failure_of_its_part() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    for worker in ("w0", "w1"):
        rig.run(1.0, reports=True)
        rig.kill(worker)
    rig.run(12.0)
    ended = rig.job(job)
    assert ended.status is JobStatus.FAILED
    assert ended.workflows["Load"].error == (
        "given up after 2 attempts: worker w1 died; "
        "no worker can run it: there are no workers that take work"
    )


def test_a_job_with_a_failed_and_a_timed_out_workflow_has_failed() -> None:
    rig = Rig(workers=2, cores=1)
    options = JobOptions(dispatch_timeout_s=20.0)
    rig.submit(workflow("Busy", vus=1, duration_s=600.0))
    alone = workflow("Alone", vus=1, priority=Priority.EXCLUSIVE)
    job = rig.submit(workflow("A", vus=1), alone, key="late", options=options)
    rig.run(22.0, reports=True)
    rig.finish("w1", PartStatus.FAILED, error="boom", workflow="A")
    ends = {name: each.ended_as for name, each in rig.job(job).workflows.items()}
    assert ends == {"A": JobStatus.FAILED, "Alone": JobStatus.TIMEOUT}
    assert rig.job(job).status is JobStatus.FAILED
