"""The owner of global jobs: delivery, fallback, start, ends, takeover."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from hyperscale.gates.committed.events import (
    DatacenterFinished,
    DatacentersAssigned,
    GlobalCancelRequested,
    GlobalOptions,
    LossPolicy,
)
from hyperscale.gates.committed.state import AssignmentStatus
from hyperscale.gates.datacenters.health import DatacenterHealth
from hyperscale.gates.deadlines import datacenter_deadline_ms
from hyperscale.gates.messages import (
    AssignJob,
    AssignmentAnswer,
    AssignmentResultReply,
    CancelAssignment,
    DeliverAssignmentResult,
    ReportAssignment,
    ReportAssignmentReply,
    StartAssignment,
)
from hyperscale.gates.owner.events import AssignmentAnswered, DatacentersRemoved
from hyperscale.gates.results import merged_record
from hyperscale.jobs.committed.events import JobOptions, JobStatus
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.plan import ThresholdPlan
from tests.gates.global_jobs import OwnedJobs, global_submission
from tests.gates.test_routing import view
from tests.lab.job_builders import plan, report, workflow

BOTH = GlobalOptions(datacenter_count=2)


def result(
    job: str, datacenter: str, status: JobStatus = JobStatus.COMPLETED
) -> DeliverAssignmentResult:
    return DeliverAssignmentResult(job=job, datacenter=datacenter, status=status)


def running(
    *datacenters: str, options: GlobalOptions | None = None, wanted: int = 100
) -> tuple[OwnedJobs, str]:
    jobs = OwnedJobs(*datacenters)
    job = jobs.submit(
        options or GlobalOptions(datacenter_count=len(datacenters)),
        plan(workflow("Load", vus=wanted)),
    )
    jobs.answer()
    jobs.ready(job, *datacenters)
    jobs.answer()
    return jobs, job


# --- assigning ---------------------------------------------------------------------------


def test_a_job_is_split_over_datacenters_and_committed_before_it_is_sent() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(BOTH, plan(workflow("Load", vus=10)))
    assert isinstance(jobs.proposed[0], DatacentersAssigned)
    sent = {
        name: command.plan.workflows[0]
        for _, name, command in jobs.sent
        if isinstance(command, AssignJob)
    }
    assert sorted((each.first_vu, each.vus) for each in sent.values()) == [(0, 5), (5, 5)]
    assert all(each.job == job for each in jobs.commands(AssignJob))
    decision = jobs.job(job).routing
    assert decision is not None
    assert set(decision.primary) == {"east", "west"}


def test_an_assignment_is_repeated_until_it_is_answered_half_a_second_to_ten_seconds_apart() -> (
    None
):
    jobs = OwnedJobs("east")
    jobs.submit()
    times = []
    for _ in range(60):
        if jobs.sent:
            times.append(jobs.sent[0][0])
            jobs.answer(AssignmentAnswer.RETRY)
        jobs.run(0.5)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]


def test_five_failures_open_the_breaker_for_30_seconds_and_three_successes_close_it() -> None:
    jobs = OwnedJobs("east")
    jobs.submit()
    for _ in range(4):
        jobs.answer(None)
        jobs.run(10.0)
    jobs.answer(None)
    opened_s = jobs.now_s
    jobs.run(29.0)
    assert not jobs.sent
    jobs.run(11.0)
    assert jobs.sent[0][0] - opened_s <= 40.0
    breakers = jobs.owner.state.deliveries
    answers = 0
    while breakers.open_breakers(now_s=jobs.now_s):
        answers += len(jobs.sent)
        jobs.answer(AssignmentAnswer.RETRY)
        jobs.run(1.0)
    assert answers == 3


def test_a_definite_refusal_sends_the_part_to_another_datacenter() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit()
    first = jobs.sent[0][1]
    jobs.answer(AssignmentAnswer.REFUSED)
    second = jobs.sent[0][1]
    assert second != first
    replaced, replacement = jobs.job(job).assignments
    assert (replaced.replaced_by, replacement.replaces) == (second, first)
    assert replacement.workflows == replaced.workflows


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (AssignmentAnswer.OK, AssignmentStatus.ACCEPTED),
        (AssignmentAnswer.REFUSED, AssignmentStatus.REFUSED),
    ],
)
def test_an_answer_that_could_not_be_committed_is_asked_for_again(
    answer: AssignmentAnswer, expected: AssignmentStatus
) -> None:
    jobs = OwnedJobs("east")
    job = jobs.submit(GlobalOptions(datacenters=("east",)))
    jobs.commits = False
    jobs.answer(answer)
    assert jobs.job(job).assignments[0].status is AssignmentStatus.ASSIGNED
    jobs.commits = True
    jobs.run(10.0)
    assert len(jobs.commands(AssignJob)) == 1
    jobs.answer(answer)
    assert jobs.job(job).assignments[0].status is expected


def test_silence_is_no_refusal_and_nothing_runs_elsewhere() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit()
    first = jobs.sent[0][1]
    for _ in range(20):
        jobs.answer(None)
        jobs.run(5.0)
    assert {each.datacenter for each in jobs.job(job).assignments} == {first}


def test_a_named_datacenter_that_refuses_is_replaced_only_if_that_is_allowed() -> None:
    jobs = OwnedJobs("east", "west")
    strict = jobs.submit(GlobalOptions(datacenters=("east",)))
    jobs.answer(AssignmentAnswer.REFUSED)
    assert jobs.job(strict).status is JobStatus.FAILED
    assert jobs.job(strict).reason == "east: because"
    jobs = OwnedJobs("east", "west")
    loose = jobs.submit(GlobalOptions(datacenters=("east",), fallback=True))
    jobs.answer(AssignmentAnswer.REFUSED)
    assert [each.datacenter for each in jobs.job(loose).assignments] == ["east", "west"]


def test_a_job_waits_for_a_datacenter_and_fails_with_a_sentence_if_none_comes() -> None:
    jobs = OwnedJobs("east")
    jobs.see(view("east", health=DatacenterHealth.UNHEALTHY))
    job = jobs.submit(GlobalOptions(job=JobOptions(dispatch_timeout_s=60.0)))
    jobs.run(59.0)
    assert jobs.job(job).status is JobStatus.SUBMITTED
    jobs.run(2.0)
    assert jobs.job(job).status is JobStatus.FAILED
    assert jobs.job(job).reason == "no datacenter can run the job: east is unhealthy"


def test_a_job_that_was_assigned_a_moment_ago_counts_in_the_next_choice() -> None:
    jobs = OwnedJobs("east", "west")
    chosen = []
    for number in range(6):
        wanted = plan(workflow("Load", vus=10))
        job = jobs.commit(global_submission(f"key-{number}", wanted=wanted)).job
        chosen.append(jobs.job(job).assignments[0].datacenter)
    assert chosen.count("east") == chosen.count("west") == 3


# --- starting ----------------------------------------------------------------------------


def test_datacenters_start_together_once_all_are_ready() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(BOTH)
    jobs.answer()
    jobs.ready(job, "east")
    assert not jobs.commands(StartAssignment)
    jobs.ready(job, "west")
    starts = jobs.commands(StartAssignment)
    assert len(starts) == 2
    assert jobs.job(job).started_ms > 0


def test_a_start_reaches_the_far_datacenter_as_early_as_its_way_is_longer() -> None:
    jobs = OwnedJobs("near", "far")
    jobs.see(view("near", rtt_ms=10.0), view("far", rtt_ms=210.0))
    job = jobs.submit(BOTH)
    jobs.answer()
    jobs.ready(job, "near", "far")
    starts = {
        name: command.start_in_ms
        for _, name, command in jobs.sent
        if isinstance(command, StartAssignment)
    }
    assert starts["near"] - starts["far"] == pytest.approx(100.0)


def test_after_the_start_timeout_those_that_are_ready_begin_and_the_others_join() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(BOTH)
    jobs.answer()
    jobs.ready(job, "east")
    jobs.run(29.0)
    assert not jobs.commands(StartAssignment)
    jobs.run(2.0)
    assert [name for _, name, c in jobs.sent if isinstance(c, StartAssignment)] == ["east"]
    jobs.answer()
    jobs.run(10.0)
    jobs.ready(job, "west")
    (late,) = jobs.commands(StartAssignment, to="west")
    assert isinstance(late, StartAssignment)
    assert late.elapsed_s == pytest.approx(10.0, abs=1.0)


# --- results -----------------------------------------------------------------------------


def test_a_result_is_acknowledged_once_it_is_committed_and_counts_once() -> None:
    jobs, job = running("east", "west")
    for _ in range(3):
        jobs.report(result(job, "east"), "delivery")
    acknowledged = AssignmentResultReply(is_committed=True)
    assert jobs.replies.count(("delivery", acknowledged)) == 3
    assert jobs.job(job).assignments[0].status is AssignmentStatus.FINISHED or (
        jobs.job(job).assignments[1].status is AssignmentStatus.FINISHED
    )
    jobs.report(result(job, "west"))
    assert jobs.job(job).status is JobStatus.COMPLETED


def test_a_datacenter_without_an_assignment_is_told_that_it_has_none() -> None:
    jobs, job = running("east", "west", options=GlobalOptions(datacenters=("east",)))
    jobs.report(result(job, "west"), "stranger")
    jobs.report(ReportAssignment(job=job, datacenter="west", status=JobStatus.RUNNING), "stranger")
    assert jobs.replies[-2:] == [
        ("stranger", AssignmentResultReply(is_known=False)),
        ("stranger", ReportAssignmentReply(is_known=False)),
    ]
    assert len(jobs.job(job).assignments) == 1


def test_results_of_another_owners_time_count_after_a_takeover() -> None:
    jobs, job = running("east")
    after = jobs.successor()
    after.report(result(job, "east"))
    assert after.job(job).status is JobStatus.COMPLETED


def test_a_successor_delivers_what_was_not_acknowledged_at_once() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(BOTH)
    jobs.answer(of="east")
    after = jobs.successor()
    after.run(0.1)
    assert [name for _, name, c in after.sent if isinstance(c, AssignJob)] == ["west"]
    jobs.commit(GlobalCancelRequested(job=job, reason="enough"))
    after = jobs.successor()
    after.run(0.1)
    assert {name for _, name, c in after.sent if isinstance(c, CancelAssignment)} == {
        "east",
        "west",
    }


# --- ending early ------------------------------------------------------------------------


def test_a_cancel_is_repeated_until_every_datacenter_has_confirmed_its_end() -> None:
    jobs, job = running("east", "west")
    jobs.commit(GlobalCancelRequested(job=job, reason="enough"))
    assert len(jobs.commands(CancelAssignment)) == 2
    jobs.answer(AssignmentAnswer.OK, of="east")
    jobs.answer(None, of="west")
    jobs.report(result(job, "east", JobStatus.CANCELLED))
    assert jobs.job(job).status is JobStatus.CANCELLING
    jobs.run(2.0)
    assert jobs.commands(CancelAssignment, to="west")
    jobs.report(result(job, "west", JobStatus.CANCELLED))
    assert jobs.job(job).status is JobStatus.CANCELLED


def test_a_cancel_that_overtakes_its_assignment_ends_it_as_never_ran() -> None:
    jobs = OwnedJobs("east")
    job = jobs.submit()
    jobs.answer(None)
    jobs.commit(GlobalCancelRequested(job=job, reason="enough"))
    jobs.answer(AssignmentAnswer.NEVER_RAN)
    assert jobs.job(job).status is JobStatus.CANCELLED


def test_the_global_timeout_is_declared_and_sent_to_every_datacenter_without_an_end() -> None:
    options = GlobalOptions(datacenter_count=3, timeout_s=60.0)
    jobs, job = running("a", "b", "c", options=options)
    jobs.report(result(job, "a"))
    jobs.run(61.0)
    stop = jobs.job(job).stop
    assert stop is not None
    assert stop.status is JobStatus.TIMEOUT
    assert stop.reason.startswith("Global timeout exceeded (60.")
    assert {name for _, name, c in jobs.sent if isinstance(c, CancelAssignment)} == {"b", "c"}


def test_a_live_extension_moves_the_deadline_and_a_lapsed_one_does_not() -> None:
    options = GlobalOptions(timeout_s=60.0)
    jobs, job = running("east", options=options)
    jobs.run(55.0)
    extended = ReportAssignment(
        job=job, datacenter="east", status=JobStatus.RUNNING, extension_s=12.0
    )
    jobs.report(extended)
    jobs.run(10.0)
    assert jobs.job(job).stop is None
    jobs.run(10.0)
    assert jobs.job(job).stop is not None


def test_a_successor_enforces_the_original_deadline() -> None:
    jobs, job = running("east", options=GlobalOptions(timeout_s=60.0))
    jobs.run(40.0)
    after = jobs.successor()
    after.run(15.0)
    assert after.job(job).stop is None
    after.run(7.0)
    assert after.job(job).stop is not None


def test_all_datacenters_silent_for_180_seconds_are_stuck_and_one_of_them_is_not() -> None:
    jobs, job = running("a", "b", "c")
    alive = ReportAssignment(job=job, datacenter="a", status=JobStatus.RUNNING)
    for _ in range(40):
        jobs.run(10.0)
        jobs.report(alive)
    assert jobs.job(job).stop is None
    jobs.run(179.0)
    assert jobs.job(job).stop is None
    jobs.run(3.0)
    stop = jobs.job(job).stop
    assert stop is not None
    assert stop.reason.startswith("All DCs stuck: ")
    assert set(stop.reason.removeprefix("All DCs stuck: ").split(", ")) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (LossPolicy.BEST_EFFORT, JobStatus.PARTIAL),
        (LossPolicy.ALL_OR_NOTHING, JobStatus.FAILED),
    ],
)
def test_a_datacenter_that_died_is_lost_120_seconds_after_its_own_deadline_and_the_others_count(
    policy: LossPolicy, expected: JobStatus
) -> None:
    jobs, job = running("east", "west", options=GlobalOptions(datacenter_count=2, policy=policy))
    jobs.run(30.0)
    jobs.report(result(job, "east"))
    west = jobs.job(job).assignment("west")
    assert west is not None
    deadline_ms = datacenter_deadline_ms(jobs.job(job), west, now_ms=0)
    jobs.run(deadline_ms / 1000 - 1000.0 + 119.0 - jobs.now_s)
    assert jobs.job(job).status is JobStatus.RUNNING
    assert jobs.job(job).stop is None
    jobs.run(2.0)
    assert west.status is AssignmentStatus.LOST
    assert jobs.job(job).status is expected
    assert jobs.job(job).reason == "west: not heard for 120 s after its own deadline"


def test_completion_in_the_datacenter_wins_over_a_timeout_that_is_under_way() -> None:
    jobs, job = running("east", options=GlobalOptions(timeout_s=60.0))
    jobs.run(61.0)
    jobs.report(result(job, "east", JobStatus.COMPLETED))
    assert jobs.job(job).status is JobStatus.COMPLETED


def test_a_datacenter_is_lost_only_long_after_its_own_deadline() -> None:
    options = GlobalOptions(timeout_s=60.0, datacenters=("east",))
    jobs, job = running("east", options=options)
    jobs.run(60.0 + 300.0 + 115.0)
    assert jobs.job(job).status is JobStatus.CANCELLING
    jobs.run(10.0)
    assert jobs.job(job).assignments[0].status is AssignmentStatus.LOST
    assert jobs.job(job).status is JobStatus.TIMEOUT
    jobs.report(result(job, "east"))
    assert jobs.job(job).assignments[0].is_late
    assert jobs.job(job).status is JobStatus.TIMEOUT


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (LossPolicy.BEST_EFFORT, JobStatus.RUNNING),
        (LossPolicy.ALL_OR_NOTHING, JobStatus.CANCELLING),
    ],
)
def test_a_failed_datacenter_stops_the_others_only_if_it_is_all_or_nothing(
    policy: LossPolicy, expected: JobStatus
) -> None:
    options = GlobalOptions(datacenter_count=2, policy=policy)
    jobs, job = running("east", "west", options=options)
    jobs.report(result(job, "east", JobStatus.FAILED))
    assert jobs.job(job).status is expected
    jobs.report(result(job, "west", JobStatus.COMPLETED))
    final = {LossPolicy.BEST_EFFORT: JobStatus.PARTIAL, LossPolicy.ALL_OR_NOTHING: JobStatus.FAILED}
    assert jobs.job(job).status is final[policy]


def test_a_removed_datacenter_is_lost_at_once() -> None:
    jobs, job = running("east", "west")
    jobs._take(DatacentersRemoved(frozenset({"east"})))
    lost = jobs.job(job).assignment("east")
    assert lost is not None
    assert (lost.status, lost.reason) == (AssignmentStatus.LOST, "east was removed")


def test_a_threshold_over_all_datacenters_aborts_the_job_everywhere() -> None:
    jobs = OwnedJobs("east", "west")
    limit = ThresholdPlan(name="errors", limit="<10%", abort_on_fail=True)
    load = workflow("Load", vus=10)
    job = jobs.submit(BOTH, plan(replace(load, thresholds=(limit,))))
    assert all(
        not command.plan.workflows[0].thresholds
        for command in jobs.commands(AssignJob)
        if isinstance(command, AssignJob)
    )
    jobs.answer()
    jobs.ready(job, "east", "west")
    for name, failed in (("east", 0), ("west", 30)):
        index = next(a.index for a in jobs.job(job).assignments if a.datacenter == name)
        data = report("Load", slot=index, elapsed_s=5.0, total=100, failed=failed)
        jobs.report(
            ReportAssignment(job=job, datacenter=name, status=JobStatus.RUNNING, reports=[data])
        )
    jobs.run(2.0)
    stop = jobs.job(job).stop
    assert stop is not None
    assert (stop.status, stop.aborted_by) == (JobStatus.FAILED, "Load")
    assert {name for _, name, c in jobs.sent if isinstance(c, CancelAssignment)} == {
        "east",
        "west",
    }


def test_merged_totals_do_not_depend_on_order_or_repetition_of_reports() -> None:
    def totals(order: list[int]) -> int:
        jobs, job = running("east", "west")
        by_index = {each.index: each.datacenter for each in jobs.job(job).assignments}
        # (term << 32) + count orders the reports of one datacenter across its leaders.
        sent = [
            (index, report("Load", slot=index, sequence=(term << 32) + 1, total=total))
            for index in by_index
            for term, total in ((1, 10), (2, 40))
        ]
        for number in order:
            index, data = sent[number]
            jobs.report(
                ReportAssignment(
                    job=job,
                    datacenter=by_index[index],
                    status=JobStatus.RUNNING,
                    reports=[data],
                )
            )
        statistics = jobs.owner.progress(jobs.job(job)).statistics["Load"]
        return statistics.stats.load_counts().total

    assert totals([0, 1, 2, 3]) == totals([3, 1, 2, 0, 1, 3]) == 80


def test_an_answer_about_a_job_that_is_over_changes_nothing() -> None:
    jobs, job = running("east")
    command = AssignJob(job=job, group=1, term=1, plan=plan())
    jobs.report(result(job, "east"))
    before = len(jobs.proposed)
    jobs._take(AssignmentAnswered("east", command, None))
    assert len(jobs.proposed) == before


def test_what_a_lost_datacenter_reported_counts_and_the_rest_is_a_gap() -> None:
    jobs, job = running("east", "west")
    for each in jobs.job(job).assignments:
        data = report("Load", slot=each.index, elapsed_s=4.0, total=100)
        update = ReportAssignment(
            job=job, datacenter=each.datacenter, status=JobStatus.RUNNING, reports=[data]
        )
        jobs.report(update)
    jobs._take(DatacentersRemoved(frozenset({"east"})))
    lost = jobs.job(job).assignment("east")
    assert lost is not None
    merged = merged_record(jobs.job(job))
    end = outcome_of(merged)
    assert end.stats["Load"].load_counts().total == 100
    (gap,) = end.gaps
    assert gap.worker == "east"
    assert gap.seconds == pytest.approx(merged.plan_of("Load").duration_s - 4.0)
    assert gap.requests_max > 0


def test_a_job_that_never_started_leaves_no_gap_in_a_datacenter_that_is_removed() -> None:
    jobs = OwnedJobs("east", "west")
    job = jobs.submit(BOTH, plan(workflow("Load", vus=10)))
    jobs.answer()
    jobs._take(DatacentersRemoved(frozenset({"east"})))
    assert outcome_of(merged_record(jobs.job(job))).gaps == []


def test_a_result_after_the_end_of_the_job_is_shown_and_is_in_no_total() -> None:
    jobs, job = running("east", "west")
    jobs.report(result(job, "west"))
    jobs._take(DatacentersRemoved(frozenset({"east"})))
    record = jobs.job(job)
    assert record.has_ended
    late = DatacenterFinished(
        job=job, datacenter="east", status=JobStatus.COMPLETED, elapsed_s=60.0, result=b"late"
    )
    merged = merged_record(record, [late])
    east = next(each for each in merged.datacenters if each.datacenter == "east")
    assert (east.status, east.elapsed_s, east.late_result) == ("completed", 60.0, b"late")
    assert not merged.workflows["Load"].parts


def test_a_datacenter_that_the_gates_gave_up_on_is_told_to_end_its_part() -> None:
    jobs, job = running("east", "west")
    jobs._take(DatacentersRemoved(frozenset({"east"})))
    jobs.replies.clear()
    jobs.report(ReportAssignment(job=job, datacenter="east", status=JobStatus.RUNNING))
    jobs.report(ReportAssignment(job=job, datacenter="west", status=JobStatus.RUNNING))
    told = [reply.is_over for _, reply in jobs.replies if isinstance(reply, ReportAssignmentReply)]
    assert told == [True, False]
