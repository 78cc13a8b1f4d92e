"""A leader that takes over from another, and one that leads no more."""

import msgspec
import pytest

from hyperscale.jobs.committed.events import JobOptions, JobStatus, Reply, WorkflowDispatched
from hyperscale.jobs.leader import events as ev
from hyperscale.jobs.messages import (
    AttemptId,
    Isolation,
    PartPhase,
    PreparePart,
)
from hyperscale.jobs.worker_events import WorkerDown
from tests.lab.job_builders import plan, submission, workflow
from tests.lab.leader_rig import Rig


@pytest.mark.parametrize("phase", ["running", "ready", "preparing"])
def test_a_new_leader_continues_the_attempts_of_its_predecessor(phase: str) -> None:
    rig = Rig()
    if phase != "running":
        rig.workers["w1"].readies = False
    job = rig.submit(workflow("Load"))
    rig.run(3.0, reports=True)
    before = len(rig.prepared())
    rig.take_over()
    rig.run(3.0, reports=True)
    if phase != "running":
        rig.ready("w1")
        rig.run(1.0)
    assert rig.job(job).status is JobStatus.RUNNING
    assert len(rig.prepared()) == before
    assert all(part.attempt == 1 for part in rig.job(job).workflows["Load"].parts)
    rig.run(3.0, reports=True)
    rig.finish("w0", total=10)
    rig.finish("w1", total=10)
    assert rig.job(job).status is JobStatus.COMPLETED
    assert "AttemptRevoked" not in rig.kinds()


def test_a_new_leader_gives_up_attempts_that_their_workers_do_not_list() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(6.0, reports=True)
    rig.workers["w0"].restart()
    rig.take_over()
    rig.run(2.0)
    part = rig.job(job).workflows["Load"].parts[0]
    assert part.attempt == 2
    assert part.began_s > 0


def test_a_new_leader_stops_attempts_that_are_not_committed() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    stranger = AttemptId(job, "Load", 0, 7)
    command = rig.prepared()[0]
    rig.workers["w1"].commands[stranger] = msgspec.structs.replace(command, attempt_id=stranger)
    rig.workers["w1"].phases[stranger] = PartPhase.RUNNING
    rig.take_over()
    assert stranger in rig.workers["w1"].stops


def test_a_new_leader_waits_a_whole_lease_for_a_silent_worker() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.workers["w0"].is_silent = True
    rig.take_over()
    rig.feed(ev.WorkerDown("w0", is_certain=False))
    took_over_s = rig.now_s
    rig.run(7.9)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.run(4.0)
    started_s = rig.workers["w1"].starts[AttemptId(job, "Load", 0, 2)]
    assert took_over_s + 10.0 <= started_s <= took_over_s + 10.3


def test_a_new_leader_waits_for_the_end_of_load_that_its_predecessor_gave_up() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.workers["w0"].is_silent = True
    rig.feed(ev.WorkerDown("w0", is_certain=False))
    second = AttemptId(job, "Load", 0, 2)
    while rig.workers["w1"].phases.get(second) is not PartPhase.READY:
        rig.run(0.1)
    rig.take_over()
    took_over_s = rig.now_s
    rig.run(4.0)
    assert took_over_s + 2.0 <= rig.workers["w1"].starts[second] <= took_over_s + 2.3


def test_the_first_report_of_an_attempt_is_checkpointed_for_the_next_leader() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(1.5, reports=True)
    rig.take_over()
    rig.kill("w0")
    rig.run(0.5)
    part = rig.job(job).workflows["Load"].parts[0]
    assert part.attempt == 2
    assert 1.0 <= part.began_s <= 3.0


def test_an_attempt_that_had_not_begun_leaves_no_gap_and_its_part_runs_whole() -> None:
    rig = Rig(workers=2, cores=1)
    rig.workers["w0"].readies = False
    job = rig.submit(workflow("Load", vus=1))
    rig.run(5.0)
    rig.take_over()
    rig.run(20.0)
    rig.kill("w0")
    rig.run(0.5)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.began_s) == (2, 0.0)
    assert rig.job(job).workflows["Load"].gaps == []


def test_the_gap_of_an_attempt_includes_its_silence_before_the_leader_changed() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1), options=JobOptions(on_isolation=Isolation.CONTINUE))
    rig.run(6.0, reports=True)
    rig.run(12.0)  # with checkpoints, but without news
    rig.take_over()
    rig.kill("w0")
    rig.run(0.5)
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert 12.0 <= gap.seconds <= 14.0


def test_a_new_leader_does_not_wait_for_a_worker_that_died_before() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(7.0, reports=True)
    rig.workers["w0"].is_up = False
    rig.allocate(WorkerDown("w0"))
    rig.take_over()
    rig.run(2.3)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker) == (2, "w1")


def test_a_worker_that_dies_just_after_an_election_is_replaced_at_once() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(12.0, reports=True)
    rig.take_over()
    rig.kill("w0")
    rig.run(0.2)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker) == (2, "w1")


def test_a_new_leader_picks_up_a_job_at_any_point() -> None:
    """Leadership changes after every single commit; the job ends all the same."""
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("A", vus=2), workflow("B", "A", vus=2))
    for _ in range(60):
        rig.take_over()
        rig.run(0.7, reports=True)
        for name in rig.workers:
            rig.finish(name)
        if rig.job(job).has_ended:
            break
    assert rig.job(job).status is JobStatus.COMPLETED


def test_an_entry_from_before_the_election_changes_nothing() -> None:
    rig = Rig(workers=1, cores=1)
    rig.submit(workflow("Load", vus=1))
    rig.workers["w0"].is_silent = True
    rig.take_over()
    (event,) = [each for each in rig.events if isinstance(each, WorkflowDispatched)]
    effects = rig.leader.handle(ev.EventApplied(event, Reply(ok=True)), now_s=rig.now_s)
    assert not any(isinstance(getattr(e, "command", None), PreparePart) for e in effects)


@pytest.mark.parametrize("last", ["the request", "the dispatch"])
def test_an_attempt_that_its_leader_did_not_prepare_gets_cores_of_its_own(last: str) -> None:
    rig = Rig(workers=3, cores=1)
    rig.silences = WorkflowDispatched if last == "the request" else PreparePart
    job = rig.commit(submission("k", plan(workflow("Load"))))
    rig.run(1.0)
    rig.silences = None
    rig.take_over()
    rig.run(3.0)
    assert rig.job(job).status is JobStatus.RUNNING
    assert [c.shared for c in rig.prepared()] == [False, False, False]
    second = rig.submit(workflow("Second"), key="second")
    rig.run(2.0)
    assert rig.job(second).status is JobStatus.SUBMITTED
