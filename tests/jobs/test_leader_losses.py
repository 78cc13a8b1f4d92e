"""What a leader does about workers that die, fall silent, refuse or fail: retries and gaps."""

import pytest
from msgspec.structs import replace

from hyperscale.jobs.committed.events import JobOptions, JobStatus
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.jobs.leader import events as ev
from hyperscale.jobs.leader.gaps import RATE_PER_CORE_MAX
from hyperscale.jobs.leader.retries import RetryLimits
from hyperscale.jobs.messages import (
    AttemptId,
    Isolation,
    PartPhase,
    PartProgress,
    Refusal,
    ReportProgress,
)
from hyperscale.plan import StepKind, StepPlan
from hyperscale.plan.status import PartStatus
from hyperscale.sansio.core import Tick
from tests.lab.job_builders import report, workflow
from tests.lab.leader_rig import Rig
from tests.lab.reports import SeriesPoint

failures = RetryLimits().failures


def test_the_part_of_a_dead_worker_runs_elsewhere_at_once_for_the_rest_of_its_duration() -> None:
    rig = Rig(workers=3, cores=2)
    job = rig.submit(workflow("Load", vus=4, duration_s=30.0))
    rig.run(10.0, reports=True)
    victim = rig.prepared()[0].attempt_id
    name = rig.job(job).workflows["Load"].parts[victim.part].worker
    rig.kill(name)
    rig.run(0.2)
    part = rig.job(job).workflows["Load"].parts[victim.part]
    assert (part.attempt, part.is_open) == (2, True)
    assert part.worker != name
    (command,) = [c for c in rig.prepared() if c.attempt_id.attempt == 2]
    assert command.elapsed_s == pytest.approx(10.0, abs=1.0)
    assert not command.shared  # the third worker was idle
    assert (command.first_slot, command.slots) == (victim.part * 2, 4)
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.worker == name
    assert gap.seconds <= 1.0
    assert gap.requests_max >= 100 * gap.seconds
    assert rig.running()[part.worker]


def test_the_part_of_a_dead_worker_shares_cores_if_none_is_free() -> None:
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("Load"))
    rig.run(3.0, reports=True)
    rig.kill("w0")
    rig.run(0.2)
    (command,) = [c for c in rig.prepared() if c.attempt_id.attempt == 2]
    assert command.shared
    assert rig.job(job).workflows["Load"].parts[0].worker == "w1"


def test_requests_of_a_dead_worker_stay_in_the_totals() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(10.0, reports=True)
    rig.kill("w0")
    rig.run(5.0, reports=True)
    rig.finish("w1", total=77)
    end = outcome_of(rig.records[job])
    stats = end.stats["Load"]
    reported = stats.total_counts().total
    assert 77 + 900 <= reported <= 77 + 1100
    assert end.job.status is JobStatus.COMPLETED
    assert [segment.worker for segment in end.segments] == ["w0"]
    assert [(row.worker, row.attempt) for row in end.usage] == [("w0", 1), ("w1", 2)]
    assert stats.parts == 2
    assert stats.latest(0, 1) is not None
    assert stats.latest(0, 2) is not None


def test_the_seconds_of_a_dead_worker_stay_in_the_series() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    (attempt_id,) = rig.running()["w0"]
    for second in range(20):
        made = report(
            sequence=second + 1,
            elapsed_s=second + 1.0,
            total=(second + 1) * 50,
            series=[SeriesPoint(second=second, total=50)],
        )
        part = PartProgress(attempt_id=attempt_id, report=made, elapsed_s=second + 1.0)
        rig.feed(ev.ProgressReported(ReportProgress(worker="w0", group=1, parts=[part])))
        rig.run(1.0)
    rig.kill("w0")
    rig.run(1.0)
    rig.finish("w1", total=0)
    series = outcome_of(rig.records[job]).stats["Load"].series("hit")
    assert [(point.at_s, point.total) for point in series[:20]] == [(at, 50) for at in range(20)]


def test_a_refused_attempt_of_a_worker_that_died_later_is_no_segment() -> None:
    rig = Rig(workers=2, cores=1)
    rig.workers["w0"].refusal = rig.workers["w1"].refusal = Refusal.NO_CORES
    job = rig.submit(workflow("Load", vus=1))
    rig.workers["w0"].refusal = Refusal.NONE
    rig.run(10.0, reports=True)
    (attempt_id,) = rig.running()["w0"]
    assert attempt_id.attempt > 1
    rig.workers["w1"].refusal = Refusal.NONE
    rig.kill("w0")
    rig.run(5.0, reports=True)
    rig.finish("w1")
    assert [each.attempt for each in outcome_of(rig.records[job]).segments] == [attempt_id.attempt]


def test_a_silent_worker_is_given_up_after_its_lease_and_its_load_begins_after_a_margin() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(5.0, reports=True)
    heard_s = rig.leader.state.workers["w0"].heard_s
    rig.workers["w0"].is_silent = True
    rig.feed(ev.WorkerDown("w0", is_certain=False))
    rig.run(heard_s + 7.9 - rig.now_s)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.run(1.0)
    second = AttemptId(job, "Load", 0, 2)
    assert rig.workers["w1"].phases[second] is PartPhase.READY
    rig.run(3.0)
    assert heard_s + 10.0 <= rig.workers["w1"].starts[second] <= heard_s + 10.3
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.seconds <= 9.0


def test_one_of_many_silent_workers_is_given_up_only_after_the_margin() -> None:
    """Until then it may turn out that the network is to blame."""
    rig = Rig(workers=3, cores=1)
    job = rig.submit(workflow("Load", vus=2))
    rig.run(5.0, reports=True)
    heard_s = rig.leader.state.workers["w0"].heard_s
    for name in ("w0", "w1"):
        rig.workers[name].is_silent = True
        rig.feed(ev.WorkerDown(name, is_certain=False))
    rig.run(heard_s + 9.9 - rig.now_s)
    assert [part.attempt for part in rig.job(job).workflows["Load"].parts] == [1, 1]
    rig.run(1.0)
    assert [part.attempt for part in rig.job(job).workflows["Load"].parts] == [2, 2]


def test_a_silent_worker_that_membership_sees_is_given_up_only_after_the_margin() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(5.0, reports=True)
    heard_s = rig.leader.state.workers["w0"].heard_s
    rig.workers["w0"].is_silent = True
    rig.run(heard_s + 9.9 - rig.now_s)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.run(0.6)
    assert AttemptId(job, "Load", 0, 2) in rig.workers["w1"].starts


def test_a_silent_worker_that_membership_sees_gets_no_new_attempt_after_it_returned_once() -> None:
    rig = Rig(workers=2, cores=1)
    rig.kill("w0")
    rig.revive("w0")
    job = rig.submit(workflow("Load", vus=2))
    rig.run(3.0, reports=True)
    rig.workers["w0"].is_silent = True
    rig.run(11.5)
    assert [part.worker for part in rig.job(job).workflows["Load"].parts] == ["w1", "w1"]


def test_the_lease_of_a_lost_attempt_is_not_renewed_when_its_worker_answers_again() -> None:
    """The next attempt is under way, and counts on the lease of this one."""
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    first = AttemptId(job, "Load", 0, 1)
    rig.run(5.0, reports=True)
    worker = rig.workers["w0"]
    assert worker.renewed == [first]
    worker.is_silent = True
    rig.feed(ev.WorkerDown("w0", is_certain=False))
    rig.commits = False
    rig.run(8.5)
    worker.is_silent = False
    before = worker.renewals
    rig.run(3.0)
    assert worker.renewals > before
    assert worker.renewed == []
    rig.commits = True
    rig.run(2.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2
    assert first in worker.stops


def test_a_worker_that_is_silent_for_less_than_a_lease_keeps_its_attempt() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    for _ in range(5):
        rig.workers["w0"].is_silent = True
        rig.run(5.0)
        rig.workers["w0"].is_silent = False
        rig.run(2.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1


def test_attempts_are_kept_while_silence_is_attributed_to_the_network() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(2.0)
    rig.workers["w0"].is_silent = True
    rig.feed(ev.WorkersHeld(frozenset({"w0"})))
    rig.run(20.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.feed(ev.WorkersHeld(frozenset()))
    rig.run(1.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2


def test_a_part_that_continues_in_isolation_is_not_started_elsewhere_on_silence() -> None:
    rig = Rig(workers=2, cores=1)
    options = JobOptions(on_isolation=Isolation.CONTINUE)
    job = rig.submit(workflow("Load", vus=1), options=options)
    rig.workers["w0"].is_silent = True
    rig.run(25.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.workers["w0"].is_silent = False
    rig.kill("w0")
    assert rig.job(job).workflows["Load"].parts[0].segments[-1].costs_retry


def test_a_part_that_continues_in_isolation_is_waited_for_until_its_own_end() -> None:
    rig = Rig(workers=2, cores=1)
    options = JobOptions(on_isolation=Isolation.CONTINUE)
    job = rig.submit(workflow("Load", vus=1, duration_s=10.0), options=options)
    rig.workers["w0"].is_silent = True
    rig.run(60.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.run(30.0)
    assert rig.job(job).has_ended or rig.job(job).workflows["Load"].parts[0].attempt == 2


def test_a_part_that_has_not_begun_does_not_continue_in_isolation() -> None:
    rig = Rig(workers=2, cores=1)
    rig.workers["w0"].is_silent = True
    options = JobOptions(on_isolation=Isolation.CONTINUE)
    job = rig.submit(workflow("Load", vus=1), options=options)
    rig.run(12.0)
    assert rig.job(job).workflows["Load"].parts[0].worker == "w1"


def test_the_result_of_a_revoked_attempt_decides_nothing() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.workers["w0"].is_silent = True
    rig.run(15.0)
    assert rig.running()["w1"]
    rig.workers["w0"].is_silent = False
    rig.finish("w0", PartStatus.FAILED, error="late")
    assert rig.job(job).status is JobStatus.RUNNING
    assert rig.workers["w0"].acks
    rig.finish("w1")
    assert rig.job(job).status is JobStatus.COMPLETED


def test_a_workflow_fails_after_three_retries_and_its_dependents_are_cancelled() -> None:
    rig = Rig(workers=6, cores=1)
    job = rig.submit(workflow("Load", vus=1), workflow("After", "Load"))
    for attempt in range(1, 5):
        part = rig.job(job).workflows["Load"].parts[0]
        assert part.attempt == attempt
        rig.run(1.0, reports=True)
        rig.kill(part.worker)
        rig.run(0.3)
    ended = rig.job(job)
    assert ended.status is JobStatus.FAILED
    assert "given up after 4 attempts within 5m of load: worker" in (
        ended.workflows["Load"].error or ""
    )
    assert ended.workflows["After"].error == "dependency failed: Load"


def test_deaths_far_apart_do_not_end_a_long_test() -> None:
    rig = Rig(workers=6, cores=1)
    job = rig.submit(workflow("Load", vus=1, duration_s=3600.0))
    for attempt in range(1, 6):
        part = rig.job(job).workflows["Load"].parts[0]
        assert part.attempt == attempt
        rig.kill(part.worker)
        rig.run(101.0, reports=True)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.is_open, len(failures(part))) == (6, True, 3)


def test_a_part_that_fails_by_itself_is_not_retried() -> None:
    rig = Rig()
    job = rig.submit(workflow("A", vus=1), workflow("B", vus=1))
    rig.finish("w0", PartStatus.FAILED, error="KeyError: 'x'", workflow="A")
    rig.finish("w1", PartStatus.FAILED, error="KeyError: 'x'", workflow="A")
    rig.run(1.0)
    states = rig.job(job).workflows
    assert states["A"].error == "KeyError: 'x'"
    assert sum(part.attempt for part in states["A"].parts) == 1
    rig.finish("w0", workflow="B")
    rig.finish("w1", workflow="B")
    assert rig.job(job).status is JobStatus.PARTIAL


def test_one_failed_part_stops_the_others_of_its_workflow() -> None:
    rig = Rig(workers=2)
    job = rig.submit(workflow("Load"))
    rig.finish("w0", PartStatus.FAILED, error="setup: boom")
    assert rig.workers["w1"].stops
    assert rig.job(job).status is JobStatus.FAILED
    assert rig.job(job).workflows["Load"].error == "setup: boom"


def test_the_death_of_an_executor_leads_to_another_attempt_elsewhere() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.finish("w0", PartStatus.FAILED, error="an executor died", is_retryable=True)
    rig.run(0.2)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker, len(failures(part))) == (2, "w1", 1)


def test_a_worker_whose_executor_died_is_tried_again_after_a_while() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1, duration_s=3600.0))
    rig.run(3.0, reports=True)
    for worker, next_worker in (("w0", "w1"), ("w1", "w0")):
        rig.finish(worker, PartStatus.FAILED, error="an executor died", is_retryable=True)
        rig.run(301.0, reports=True)
        part = rig.job(job).workflows["Load"].parts[0]
        assert (part.worker, part.is_open, len(failures(part))) == (next_worker, True, 1)


def test_an_expired_lease_costs_no_retry() -> None:
    rig = Rig(workers=1, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.finish("w0", PartStatus.STOPPED, error="its lease ran out", is_retryable=True)
    rig.run(2.0)
    part = rig.job(job).workflows["Load"].parts[0]
    assert (part.attempt, part.worker, failures(part)) == (2, "w0", [])


def test_a_stopped_attempt_leaves_no_gap() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.2, reports=True)
    rig.finish("w0", PartStatus.STOPPED, error="the worker is leaving", is_retryable=True)
    rig.run(2.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2
    assert rig.job(job).workflows["Load"].gaps == []


@pytest.mark.parametrize("survivor_s", [0.0, 0.4])
@pytest.mark.parametrize("is_retryable", [False, True])
def test_the_unreported_load_of_a_killed_executor_is_a_gap(
    is_retryable: bool, survivor_s: float
) -> None:
    """Also if another core of the part went on meanwhile, and has told all."""
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.run(0.4)
    rig.finish(
        "w0",
        PartStatus.FAILED,
        total=300,
        is_retryable=is_retryable,
        unheard_s=0.4,
        told_s=survivor_s,
    )
    rig.run(0.2)
    found = rig.records.get(job) or rig.job(job)
    (gap,) = found.workflows["Load"].gaps
    assert (gap.worker, gap.seconds) == ("w0", pytest.approx(0.4))
    assert 40 <= gap.requests_max <= 100


def test_the_gap_of_a_part_that_never_reported_is_bounded_by_the_rate_of_other_parts() -> None:
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("Load", vus=4))
    for _ in range(8):
        rig.run(0.5)
        rig.report("w0")  # 100 requests a second with two cores
    rig.kill("w1")
    rig.run(0.2)
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.worker == "w1"
    assert 100 * gap.seconds <= gap.requests_max <= 250 * gap.seconds


def test_the_gap_of_a_workflow_that_never_reported_is_bounded_by_the_rate_of_a_core() -> None:
    rig = Rig(workers=2, cores=2)
    job = rig.submit(workflow("Load", vus=4))
    rig.run(6.0)
    rig.kill("w1")
    rig.run(0.2)
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.requests_max >= 2 * RATE_PER_CORE_MAX * gap.seconds


def test_the_gap_of_a_dead_worker_ends_when_its_address_began_to_refuse_connections() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(6.0, reports=True)
    refused_s = rig.now_s + 0.1
    rig.run(1.0)
    rig.workers["w0"].is_up = False
    rig.feed(ev.WorkerDown("w0", is_certain=True, ended_s=refused_s))
    (gap,) = rig.job(job).workflows["Load"].gaps
    assert gap.seconds <= 0.65  # half a second since the last report, and what followed it


def test_a_lost_attempt_is_not_started_although_its_worker_comes_back() -> None:
    rig = Rig(workers=2, cores=1)
    away = rig.workers["w0"]
    away.readies = False
    job = rig.submit(workflow("Load", vus=1))
    first, second = AttemptId(job, "Load", 0, 1), AttemptId(job, "Load", 0, 2)
    rig.run(2.0)
    cut_s = rig.now_s
    away.is_silent = True
    rig.feed(ev.WorkerDown("w0", is_certain=False))
    rig.commits = False
    rig.run(8.3)  # its lease is over, the margin is not
    away.is_silent = False
    rig.feed(ev.WorkerUp("w0"))
    rig.ready("w0")
    rig.run(0.5)
    assert first not in away.starts
    late = PartProgress(attempt_id=first, report=report("Load", total=50), elapsed_s=1.0)
    progress = ev.ProgressReported(ReportProgress(worker="w0", group=1, parts=[late]))
    (answer,) = rig.leader.handle(progress, now_s=rig.now_s)
    assert isinstance(answer, ev.AnswerProgress)  # no stop before the revocation is committed
    away.readies = rig.commits = True
    rig.run(4.0)
    assert first not in away.starts
    (start_s,) = [w.starts[second] for w in rig.workers.values() if second in w.starts]
    assert start_s >= cut_s + 8.0


def test_a_full_worker_costs_no_retry() -> None:
    rig = Rig(workers=1, cores=1)
    rig.workers["w0"].refusal = Refusal.NO_CORES
    job = rig.submit(workflow("Load", vus=1))
    rig.run(20.0)
    part = rig.job(job).workflows["Load"].parts[0]
    assert failures(part) == []
    assert 2 <= part.attempt <= 12  # it does not hammer
    rig.workers["w0"].refusal = Refusal.NONE
    rig.run(10.0)
    assert rig.job(job).status is JobStatus.RUNNING


def test_a_worker_that_restarted_unnoticed_loses_its_attempts() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(3.0, reports=True)
    rig.workers["w0"].restart()
    rig.run(4.0)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2


# --- a leader that stood still --------------------------------------------------------------


@pytest.mark.parametrize("first", ["a tick", "a result"])
def test_a_leader_that_was_suspended_reads_messages_before_it_gives_workers_up(
    first: str,
) -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=2, duration_s=3.0))
    rig.run(2.0, reports=True)
    rig.now_s += 12.0  # longer than leases and their margin
    if first == "a tick":
        rig.feed(Tick())
    for name in list(rig.workers):
        rig.finish(name, total=300)
    rig.run(1.0)
    ended = rig.records[job]
    assert (ended.status, ended.workflows["Load"].attempts) == (JobStatus.COMPLETED, 2)
    assert not ended.workflows["Load"].gaps


def test_a_worker_that_fell_silent_while_the_leader_was_suspended_is_given_up_later() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("Load", vus=1))
    rig.run(2.0, reports=True)
    rig.workers["w0"].is_silent = True
    rig.now_s += 12.0
    rig.run(9.0, reports=True)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 1
    rig.run(2.0, reports=True)
    assert rig.job(job).workflows["Load"].parts[0].attempt == 2


def test_a_lost_part_that_shared_cores_shares_those_of_its_job_elsewhere() -> None:
    rig = Rig(workers=2, cores=1)
    job = rig.submit(workflow("A", vus=1), workflow("B", vus=1), workflow("C", vus=1))
    rig.run(3.0, reports=True)
    (beside,) = [c for c in rig.prepared() if c.within_job]
    name = beside.attempt_id.workflow
    home = rig.job(job).workflows[name].parts[0].worker
    other = {"w0": "w1", "w1": "w0"}[home]
    rig.kill(home)
    rig.run(1.0, reports=True)
    lost = rig.job(job).workflows[name]
    assert (lost.parts[0].attempt, lost.parts[0].worker, lost.within_job) == (2, other, True)
    # The core of the other lost workflow runs beside those of any job, as every recovery may.
    (recovered,) = [
        c for c in rig.prepared() if c.attempt_id.attempt == 2 and c.attempt_id.workflow != name
    ]
    assert (recovered.shared, recovered.within_job) == (True, False)
    assert len(rig.running()[other]) == 3


def test_what_setup_left_is_committed_before_its_attempt_is_revoked() -> None:
    rig = Rig(workers=2, cores=1)
    for worker in rig.workers.values():
        worker.readies = False
    setup = StepPlan(name="open", kind=StepKind.SETUP)
    job = rig.submit(replace(workflow("Load", vus=1), steps=(setup,)))
    (first,) = rig.prepared()
    name = rig.job(job).workflows["Load"].parts[0].worker
    leaving = "the worker is leaving"
    rig.finish(name, PartStatus.STOPPED, error=leaving, is_retryable=True, set_up=b"left")
    rig.run(2.0)
    assert rig.kinds().index("WorkflowSetUp") < rig.kinds().index("AttemptRevoked")
    (second,) = rig.prepared()
    assert (first.set_up, second.set_up) == (b"", b"left")
    assert second.attempt_id == replace(first.attempt_id, attempt=2)
    assert rig.job(job).workflows["Load"].set_up == b"left"
