"""The worker's agent, rule by rule."""

from itertools import pairwise

import pytest

from hyperscale.jobs.agent import ERROR_CHARS_MAX, LEASE_OVER, LEAVING
from hyperscale.jobs.agent_events import (
    Answered,
    Drain,
    Ended,
    Measured,
    Printed,
    Report,
    Restored,
    Send,
)
from hyperscale.jobs.agent_runs import OUTPUT_BURST_BYTES, PROGRESS_S
from hyperscale.jobs.commands import (
    Backpressure,
    Isolation,
    PartFinished,
    PartOutput,
    PartPhase,
    PartReady,
    PartRefused,
    PartStatus,
    Progress,
    ProgressTaken,
    Refusal,
    WorkerCores,
)
from tests.jobs.agent_world import (
    World,
    ack,
    prepare,
    renew,
    report,
    run_id,
    start,
    stop,
    who_runs,
)

# --- the way of a run -----------------------------------------------------------------------


def test_a_run_goes_from_its_command_to_its_result() -> None:
    world = World()
    answer = world.part(prepare(cores=2))
    assert (answer.accepted, answer.phase) == (True, PartPhase.PREPARING)
    assert world.agent.free_cores == 2
    world.get_ready()
    assert [ready.run for ready in world.said(PartReady)] == [run_id()]
    assert world.part(start()).phase is PartPhase.RUNNING
    assert world.started[run_id()] == 1
    world.report(run_id(), 0, 10)
    world.report(run_id(), 1, 5)
    world.wait(0.6)
    (progress,) = world.said(Progress)[:1]
    assert progress.parts[0].report.steps[0].counts.total == 15
    world.end(provided=b"p")
    result = world.result()
    assert result.status is PartStatus.COMPLETED
    assert result.report is not None
    assert result.report.steps[0].counts.total == 15
    assert result.provided == [b"p", b"p"]
    assert world.agent.free_cores == 4
    world.command(ack())
    assert world.agent.is_idle
    assert world.disk == {}


def test_a_result_is_stored_before_it_is_sent_and_sent_again_until_it_is_acknowledged() -> None:
    world = World()
    world.runs()
    world.end()
    assert len(world.said(PartFinished)) == 1
    world.wait(30)
    sent = len(world.said(PartFinished))
    assert 4 <= sent <= 12
    assert run_id() in world.disk
    world.command(ack())
    world.wait(60)
    assert len(world.said(PartFinished)) == sent
    assert world.disk == {}


def test_after_ten_minutes_a_result_waits_on_disk_until_a_leader_asks() -> None:
    world = World()
    world.runs()
    world.end()
    world.wait(700)
    assert world.said(PartFinished, world.wait(600)) == []
    here = world.runs_here(who_runs(term=2), sender="m2")
    assert [(view.run, view.phase) for view in here.parts] == [(run_id(), PartPhase.FINISHED)]
    effects = world.wait(0.5)
    assert [m.run for m in world.said(PartFinished, effects)] == [run_id()]
    assert {e.to for e in effects if isinstance(e, Send) and e.to} == {"m2"}


def test_results_of_an_earlier_life_are_offered_to_every_manager_until_a_leader_shows() -> None:
    first = World()
    first.runs()
    first.end()
    world = World()
    world.feed(Restored(tuple(first.disk.values())))
    effects = world.wait(1)
    offers = [e for e in effects if isinstance(e, Send) and isinstance(e.message, PartFinished)]
    assert [offer.to for offer in offers] == [""]
    answer = world.part(prepare())
    assert answer.phase is PartPhase.FINISHED, "the same attempt does not run again"
    world.command(renew(term=3), sender="m3")
    offers = [
        e for e in world.wait(0.5) if isinstance(e, Send) and isinstance(e.message, PartFinished)
    ]
    assert [offer.to for offer in offers] == ["m3"]


def test_a_failed_preparation_is_told_until_acknowledged_and_frees_its_cores() -> None:
    world = World()
    world.part(prepare(cores=4))
    world.fail_to_prepare(error="no module named shop", is_input=True)
    assert world.agent.free_cores == 4
    world.wait(3)
    refusals = world.said(PartRefused)
    assert len(refusals) >= 2
    assert refusals[0].is_input
    assert refusals[0].error == "no module named shop"
    world.command(ack())
    assert world.said(PartRefused, world.wait(30)) == []
    assert world.agent.is_idle


def test_an_error_of_any_length_fits_into_a_message() -> None:
    world = World()
    world.part(prepare())
    world.fail_to_prepare(error="x" * 10_000_000)
    assert len(world.said(PartRefused)[0].error) == ERROR_CHARS_MAX
    world.runs(run_id(2))
    world.end(run_id(2), status=PartStatus.FAILED, error="y" * 10_000_000)
    assert len(world.result(run_id(2)).error or "") == ERROR_CHARS_MAX


def test_ready_is_repeated_until_the_start() -> None:
    world = World()
    world.part(prepare())
    world.get_ready()
    world.command(renew(run_id()))
    world.wait(2.5)
    assert len(world.said(PartReady)) == 3
    world.part(start())
    assert world.said(PartReady, world.wait(2)) == []


def test_a_core_that_fails_ends_the_others_of_its_part() -> None:
    world = World()
    world.runs(cores=3)
    world.feed(Ended(run_id(), 1, PartStatus.FAILED, error="killed by SIGSEGV", is_dead=True))
    assert world.stopping == {run_id(): "another core of the part failed: killed by SIGSEGV"}
    world.vacate(run_id(), 1)
    assert world.said(PartFinished) == []
    world.obey_stops()
    result = world.result()
    assert (result.status, result.error) == (PartStatus.FAILED, "killed by SIGSEGV")
    assert result.is_retryable


def test_what_a_killed_executor_did_after_its_last_report_is_unheard_of() -> None:
    world = World()
    world.runs()
    world.wait(1.05)
    world.report(run_id(), 0, 10, elapsed_s=1.0)
    world.wait(0.3)
    world.feed(Ended(run_id(), 0, PartStatus.FAILED, error="killed by SIGKILL", is_dead=True))
    world.vacate(run_id(), 0)
    assert world.result().unheard_s == pytest.approx(0.3, abs=0.01)


def test_by_the_end_of_its_lease_a_killed_executor_sent_no_more() -> None:
    world = World()
    world.runs(lease_ms=8_000)
    world.now_s += 30
    world.end(status=PartStatus.FAILED, error="killed by SIGKILL", is_dead=True)
    assert world.result().unheard_s <= 8.0


def test_an_executor_that_told_its_end_has_told_all() -> None:
    world = World()
    world.runs()
    world.wait(3.0)
    world.end(status=PartStatus.FAILED, error="boom", report=report(10, elapsed_s=2.9))
    assert world.result().unheard_s == 0.0


def test_a_failure_of_user_code_is_not_worth_another_attempt() -> None:
    world = World()
    world.runs()
    world.end(status=PartStatus.FAILED, error="Load.provide failed")
    assert not world.result().is_retryable
    assert world.result().status is PartStatus.FAILED


def test_cores_are_free_only_when_the_executors_are_gone() -> None:
    world = World(cores=1)
    world.runs()
    world.feed(Ended(run_id(), 0, PartStatus.COMPLETED))
    other = run_id(job="dc.1-b")
    assert world.part(prepare(other)).refusal is Refusal.NO_CORES
    assert world.said(PartFinished) == []
    world.vacate(run_id(), 0)
    assert world.part(prepare(other)).accepted


# --- fences ---------------------------------------------------------------------------------


def test_the_same_command_again_gets_the_same_answer_and_changes_nothing() -> None:
    world = World()
    first = world.part(prepare(cores=2))
    assert world.part(prepare(cores=2)) == first
    world.get_ready()
    first = world.part(start())
    assert world.part(start()) == first
    assert world.started[run_id()] == 1
    assert world.agent.free_cores == 2


def test_a_higher_term_with_the_same_attempt_goes_on_and_reports_to_the_new_leader() -> None:
    world = World()
    world.runs()
    world.report(run_id(), 0, 1)
    answer = world.part(prepare(term=5), sender="m2")
    assert (answer.accepted, answer.phase, answer.seen_term) == (True, PartPhase.RUNNING, 5)
    assert world.stopping == {}
    reports = [e for e in world.wait(1) if isinstance(e, Report)]
    assert {report.to for report in reports} == {"m2"}


@pytest.mark.parametrize("command", [prepare(term=1), start(term=1), stop(term=1)])
def test_a_lower_term_is_refused_with_what_was_seen(command: object) -> None:
    world = World()
    world.runs()
    world.command(renew(run_id(), term=4), sender="m2")
    answer = world.part(command)  # type: ignore[arg-type]  # the three above
    assert (answer.accepted, answer.refusal) == (False, Refusal.STALE_TERM)
    assert (answer.seen_term, answer.seen_attempt) == (4, 1)
    assert answer.phase is PartPhase.RUNNING
    assert world.stopping == {}


def test_a_deposed_leader_renews_nothing_and_is_told_nothing() -> None:
    world = World()
    world.runs()
    world.command(who_runs(term=4), sender="m2")
    lease_s = world.leases[run_id()]
    world.now_s += 1
    renewed = world.renewed(renew(run_id(), term=3))
    assert (renewed.accepted, renewed.seen_term) == (False, 4)
    assert world.leases[run_id()] == lease_s
    assert not world.runs_here(who_runs(term=3)).accepted


def test_a_higher_attempt_stops_the_old_one_and_begins_when_it_is_gone() -> None:
    world = World(cores=2)
    world.runs(cores=2)
    newer = run_id(2)
    answer = world.part(prepare(newer, cores=2))
    assert (answer.accepted, answer.phase, answer.seen_attempt) == (True, PartPhase.PREPARING, 2)
    assert world.stopping == {run_id(): "superseded by attempt 2"}
    assert world.preparing == {}
    world.obey_stops()
    assert world.preparing == {newer: (0, 1)}
    assert world.result(run_id()).status is PartStatus.STOPPED
    assert not world.result(run_id()).is_retryable
    late = world.part(prepare(run_id()))
    assert late.phase is PartPhase.FINISHED, "its result still waits"
    world.command(ack(run_id()))
    late = world.part(prepare(run_id()))
    assert (late.refusal, late.seen_attempt) == (Refusal.STALE_ATTEMPT, 2)


def test_an_attempt_that_still_waits_is_superseded_without_having_begun() -> None:
    world = World(cores=2)
    world.runs(cores=2)
    world.part(prepare(run_id(2), cores=2))
    world.part(prepare(run_id(3), cores=1))
    assert world.agent.runs[run_id(2)] is PartPhase.FINISHED
    assert world.result(run_id(2)).report is None
    world.obey_stops()
    assert list(world.preparing) == [run_id(3)]
    assert world.agent.free_cores == 1


def test_what_does_not_fit_beside_the_old_attempt_is_refused_and_changes_nothing() -> None:
    world = World(cores=2)
    world.runs(cores=1)
    other = run_id(job="dc.1-b")
    world.runs(other)
    answer = world.part(prepare(run_id(2), cores=2))
    assert (answer.refusal, answer.seen_attempt) == (Refusal.NO_CORES, 1)
    assert world.stopping == {}
    assert world.part(prepare(run_id(2), cores=1)).accepted


def test_a_stop_that_comes_first_leaves_a_tombstone() -> None:
    world = World()
    answer = world.part(stop())
    assert (answer.accepted, answer.phase) == (True, PartPhase.UNKNOWN)
    late = world.part(prepare())
    assert (late.accepted, late.refusal) == (False, Refusal.STALE_ATTEMPT)
    assert world.part(start()).refusal is Refusal.STALE_ATTEMPT
    assert world.begun == []
    assert world.part(prepare(run_id(2))).accepted


@pytest.mark.parametrize("phase", ["preparing", "ready", "running"])
def test_a_stop_ends_a_run_whatever_it_is_doing(phase: str) -> None:
    world = World()
    world.part(prepare())
    if phase != "preparing":
        world.get_ready()
    if phase == "running":
        world.part(start())
        world.report(run_id(), 0, 7)
    answer = world.part(stop(reason="cancelled by alice"))
    assert (answer.accepted, answer.phase) == (True, PartPhase.STOPPING)
    world.obey_stops()
    assert world.part(stop()).phase is PartPhase.FINISHED
    result = world.result()
    assert (result.status, result.error) == (PartStatus.STOPPED, "cancelled by alice")
    assert not result.is_retryable
    assert (result.report is not None) == (phase == "running")
    world.command(ack())
    assert world.part(stop()).phase is PartPhase.UNKNOWN
    assert world.part(prepare()).refusal is Refusal.STALE_ATTEMPT


def test_a_stop_of_an_old_attempt_does_not_touch_the_new_one() -> None:
    world = World()
    world.runs(run_id(2))
    answer = world.part(stop(run_id(1)))
    assert (answer.refusal, answer.seen_attempt) == (Refusal.STALE_ATTEMPT, 2)
    assert world.agent.runs == {run_id(2): PartPhase.RUNNING}


def test_a_start_of_what_is_not_here_or_not_ready_is_refused() -> None:
    world = World()
    assert world.part(start()).refusal is Refusal.UNKNOWN_RUN
    world.part(prepare())
    assert world.part(start()).refusal is Refusal.INVALID
    world.get_ready()
    assert world.part(start()).accepted


@pytest.mark.parametrize(
    "wrong",
    [
        {"cores": 0},
        {"first_slot": 1},
        {"bundle": "../../etc/passwd"},
        {"bundle": ""},
        {"run": run_id(0)},
        {"run": run_id().__class__("dc.1-a", "Other", 0, 1)},
    ],
)
def test_a_command_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    answer = World().part(prepare(**wrong))  # type: ignore[arg-type]  # made wrong on purpose
    assert answer.refusal is Refusal.INVALID
    assert answer.reason


# --- cores ----------------------------------------------------------------------------------


def test_more_than_there_is_room_for_is_refused() -> None:
    world = World(cores=2)
    answer = world.part(prepare(cores=3))
    assert (answer.refusal, answer.seen_attempt) == (Refusal.NO_CORES, 0)
    assert answer.reason == "3 cores asked for, 2 free"
    assert world.part(prepare(cores=2)).accepted


def test_shared_runs_go_beside_the_others_up_to_a_bound() -> None:
    world = World(cores=1)
    world.runs()
    jobs = [run_id(job=f"dc.1-{n}") for n in range(3)]
    for job in jobs:
        world.runs(job, shared=True)
    assert sorted(world.places) == [0, 1, 2, 3]
    answer = world.part(prepare(run_id(job="dc.1-z"), shared=True))
    assert answer.refusal is Refusal.NO_CORES
    told = world.said(WorkerCores)[-1]
    assert sorted((held.cores, held.shared) for held in told.held) == [
        (1, False),
        (1, True),
        (1, True),
        (1, True),
    ]


def test_a_shared_run_also_waits_for_the_attempt_it_supersedes() -> None:
    world = World(cores=1)
    world.runs()
    world.part(prepare(run_id(2), shared=True))
    assert world.preparing == {}
    world.obey_stops()
    assert list(world.preparing) == [run_id(2)]


def test_cores_are_told_at_once_when_they_change_and_each_second() -> None:
    world = World(cores=3)
    world.part(prepare(cores=2))
    told = world.said(WorkerCores)[-1]
    assert (told.worker, told.incarnation, told.total) == ("w1", 7, 3)
    assert [(held.run, held.cores) for held in told.held] == [(run_id(), 2)]
    later = world.said(WorkerCores, world.wait(3))
    assert 3 <= len(later) <= 4
    versions = [message.version for message in world.said(WorkerCores)]
    assert versions == sorted(set(versions))


def test_a_draining_worker_takes_nothing_new_and_finishes_what_it_has() -> None:
    world = World()
    world.runs()
    world.feed(Drain())
    assert world.said(WorkerCores)[-1].draining
    answer = world.part(prepare(run_id(job="dc.1-b")))
    assert answer.refusal is Refusal.DRAINING
    assert world.part(prepare(run_id(2))).refusal is Refusal.DRAINING
    assert world.stopping == {}
    world.end()
    assert world.result().status is PartStatus.COMPLETED


def test_a_worker_that_leaves_hands_its_runs_over() -> None:
    world = World()
    world.runs()
    world.part(prepare(run_id(job="dc.1-b")))
    world.feed(Drain(hands_over=True))
    world.obey_stops()
    results = {result.run: result for result in world.said(PartFinished)}
    assert len(results) == 2
    for result in results.values():
        assert (result.status, result.error) == (PartStatus.STOPPED, LEAVING)
        assert result.is_retryable


# --- leases ---------------------------------------------------------------------------------


def test_a_lease_that_nobody_renews_ends_the_run() -> None:
    world = World()
    world.runs(lease_ms=8_000)
    begun_s = world.now_s
    assert world.leases[run_id()] == begun_s + 8.0
    world.wait(7.9)
    assert world.stopping == {}
    world.wait(0.2)
    assert world.stopping == {run_id(): LEASE_OVER}
    world.obey_stops()
    result = world.result()
    assert (result.status, result.error) == (PartStatus.STOPPED, LEASE_OVER)
    assert result.is_retryable


def test_renewals_keep_a_run_going_and_only_the_listed_ones() -> None:
    world = World()
    other = run_id(job="dc.1-b")
    world.runs()
    world.runs(other)
    for _ in range(20):
        world.wait(1)
        answer = world.renewed(renew(run_id(), run_id(job="gone")))
    assert answer.unknown == [run_id(job="gone")]
    assert world.stopping == {other: LEASE_OVER}
    assert world.agent.runs[run_id()] is PartPhase.RUNNING
    assert answer.unlisted == [other]


def test_a_renewal_counts_from_the_stamp_it_carries() -> None:
    world = World()
    world.runs()
    stamp_ms = world.renewed(renew(run_id())).stamp_ms
    world.now_s += 5
    world.command(renew(run_id(), stamp_ms=stamp_ms, lease_ms=9_000))
    assert world.leases[run_id()] == pytest.approx(world.now_s - 5 + 9.0)
    world.now_s += 3
    world.command(renew(run_id(), stamp_ms=stamp_ms, lease_ms=9_000))  # had been under way for long
    world.wait(1.1)
    assert world.stopping == {run_id(): LEASE_OVER}


def test_a_start_that_is_older_than_its_lease_is_refused() -> None:
    world = World()
    world.part(prepare(lease_ms=60_000))
    world.get_ready()
    stamp_ms = world.said(PartReady)[0].stamp_ms
    world.now_s += 9
    answer = world.part(start(stamp_ms=stamp_ms))
    assert answer.refusal is Refusal.INVALID
    assert world.started[run_id()] == 0
    assert world.part(start(stamp_ms=answer.stamp_ms)).accepted


def test_load_begins_under_the_lease_of_its_start_also_if_that_is_shorter() -> None:
    world = World()
    world.part(prepare(lease_ms=60_000))
    world.get_ready()
    assert world.leases[run_id()] == world.now_s + 60
    assert world.part(start(lease_ms=8_000)).accepted
    assert world.leases[run_id()] == world.now_s + 8


def test_what_was_never_started_is_given_up_without_a_leader() -> None:
    world = World()
    world.part(prepare(on_isolation=Isolation.CONTINUE))
    world.get_ready()
    world.wait(9)
    assert world.stopping == {run_id(): LEASE_OVER}


def test_a_run_that_is_to_continue_in_isolation_has_no_lease() -> None:
    world = World()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.wait(600)
    assert world.stopping == {}
    assert world.leases == {}
    world.end()
    assert world.result().status is PartStatus.COMPLETED


def test_an_executor_that_ended_by_its_own_lease_is_worth_another_attempt() -> None:
    world = World()
    world.runs()
    world.end(status=PartStatus.STOPPED, error=LEASE_OVER)
    assert (world.result().error, world.result().is_retryable) == (LEASE_OVER, True)


def test_an_executor_that_was_killed_for_its_lease_is_told_as_that() -> None:
    world = World()
    world.runs(lease_ms=8_000)
    world.now_s += 9
    world.end(status=PartStatus.FAILED, error="killed by SIGKILL", is_dead=True)
    result = world.result()
    assert (result.status, result.error) == (PartStatus.STOPPED, LEASE_OVER)
    assert result.is_retryable


# --- reports --------------------------------------------------------------------------------


def _answer(world: World, taken: ProgressTaken | None, *, to: str = "m1") -> None:
    world.feed(Answered(1, to, taken))


@pytest.mark.parametrize("level", list(Backpressure))
def test_backpressure_stretches_the_interval_and_even_reject_keeps_a_probe(
    level: Backpressure,
) -> None:
    world = World()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(run_id(), 0, 1)
    sent_s: list[float] = []
    for _ in range(600):
        if any(isinstance(effect, Report) for effect in world.wait(0.1)):
            sent_s.append(world.now_s)
            _answer(world, ProgressTaken(backpressure=level))
    steps_s = [later - earlier for earlier, later in pairwise(sent_s[2:])]
    assert steps_s
    assert min(steps_s) == pytest.approx(PROGRESS_S[level], abs=0.11)
    assert max(steps_s) == pytest.approx(PROGRESS_S[level], abs=0.11)


def test_relief_is_heard_at_the_next_probe() -> None:
    world = World()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(run_id(), 0, 1)
    world.wait(0.1)
    _answer(world, ProgressTaken(backpressure=Backpressure.REJECT))
    assert [e for e in world.wait(4.8) if isinstance(e, Report)] == []
    assert [e for e in world.wait(0.5) if isinstance(e, Report)]
    _answer(world, ProgressTaken())
    assert [e for e in world.wait(0.5) if isinstance(e, Report)]


def test_one_report_at_a_time_and_a_lost_answer_does_not_end_them() -> None:
    world = World()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(run_id(), 0, 1)
    assert len([e for e in world.wait(5) if isinstance(e, Report)]) == 1
    _answer(world, None)
    assert len([e for e in world.wait(1) if isinstance(e, Report)]) == 1


def test_a_leader_that_is_none_any_more_says_who_is() -> None:
    world = World()
    world.runs()
    world.report(run_id(), 0, 1)
    world.wait(0.1)
    _answer(world, ProgressTaken(leader="m9"))
    assert {e.to for e in world.wait(1) if isinstance(e, Report)} == {"m9"}


def test_runs_of_a_group_share_one_message_with_sequences_of_their_own() -> None:
    world = World()
    other = run_id(job="dc.1-b")
    world.runs()
    world.runs(other)
    world.report(run_id(), 0, 3)
    world.report(other, 1, 4)
    world.feed(Measured(cpu=0.5, memory=0.25))
    world.wait(0.1)
    _answer(world, ProgressTaken())
    world.wait(0.6)
    last = world.said(Progress)[-1]
    assert {part.run: part.report.steps[0].counts.total for part in last.parts} == {
        run_id(): 3,
        other: 4,
    }
    assert (last.cpu, last.memory) == (0.5, 0.25)
    sequences = [
        part.report.sequence
        for progress in world.said(Progress)
        for part in progress.parts
        if part.run == other
    ]
    assert sequences == sorted(set(sequences))


def test_the_elapsed_time_is_of_this_attempt_and_the_report_of_the_workflow() -> None:
    world = World()
    world.runs(run_id(2), elapsed_s=20.0)
    world.report(run_id(2), 0, 3, elapsed_s=25.0)
    world.wait(0.1)
    (part,) = world.said(Progress)[-1].parts
    assert part.elapsed_s == 5.0
    assert part.report.elapsed_s == 25.0


def test_a_run_whose_actions_take_long_says_so_before_it_is_taken_for_stuck() -> None:
    world = World()
    world.runs(on_isolation=Isolation.CONTINUE)
    pleas = []
    for second in range(15):
        world.report(run_id(), 0, 3, sequence=second + 1)
        world.wait(1)
        _answer(world, ProgressTaken())
        pleas.append(world.said(Progress)[-1].parts[0].extension)
    assert pleas[5] == ""
    assert pleas[-1].startswith("1 virtual users have been in their steps for 1")
    world.report(run_id(), 0, 4, sequence=99)
    world.wait(1)
    assert world.said(Progress)[-1].parts[0].extension == ""


def test_who_runs_gets_everything_there_is_to_know() -> None:
    world = World()
    world.runs(cores=2)
    world.report(run_id(), 0, 3)
    here = world.runs_here(who_runs(term=2), sender="m2")
    assert (here.worker, here.accepted, here.seen_term) == ("w1", True, 2)
    (view,) = here.parts
    assert (view.run, view.phase, view.cores) == (run_id(), PartPhase.RUNNING, 2)
    assert view.report is not None
    assert view.report.steps[0].counts.total == 3


def test_output_is_brought_to_the_leader_with_its_slot_and_bounded() -> None:
    world = World()
    world.runs(cores=2, first_slot=4, slots=8)
    world.feed(Printed(run_id(), 1, "stdout", "hello\n"))
    world.feed(Printed(run_id(), 1, "stdout", "again\n"))
    world.wait(0.3)
    (output,) = world.said(PartOutput)
    assert (output.slot, output.stream, output.text) == (5, "stdout", "hello\nagain\n")
    line = "x" * 1023 + "\n"
    for _ in range(2 * OUTPUT_BURST_BYTES // len(line)):
        world.feed(Printed(run_id(), 0, "stdout", line))
    outputs = world.said(PartOutput, world.wait(1))
    assert sum(len(each.text) for each in outputs) < OUTPUT_BURST_BYTES + 1000
    assert "too many to bring here" in outputs[-1].text


def test_output_comes_before_the_end() -> None:
    world = World()
    world.runs()
    world.feed(Printed(run_id(), 0, "stdout", "last words\n"))
    world.end()
    messages = [effect.message for effect in world.effects if isinstance(effect, Send)]
    kinds = [type(m) for m in messages if isinstance(m, PartOutput | PartFinished)]
    assert kinds == [PartOutput, PartFinished]
