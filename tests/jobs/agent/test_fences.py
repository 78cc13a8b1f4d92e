"""Which commands the agent obeys: terms, attempts, tombstones and free cores."""

import pytest

from hyperscale.jobs.agent import fences as agent_fences
from hyperscale.jobs.agent.core import LEAVING
from hyperscale.jobs.agent.events import DrainRequested, FitnessChecked, SendReport
from hyperscale.jobs.agent.fences import REMEMBERED_S, Fences
from hyperscale.jobs.messages import AnnounceCores, DeliverResult, PartPhase, Refusal
from hyperscale.plan.status import PartStatus
from tests.lab.agent_world import (
    AgentWorld,
    ack,
    attempt_id,
    list_attempts,
    prepare,
    renew,
    start,
    stop,
)


def test_a_repeated_command_gets_the_same_reply_and_changes_nothing() -> None:
    world = AgentWorld()
    first = world.part(prepare(cores=2))
    assert world.part(prepare(cores=2)) == first
    world.get_ready()
    first = world.part(start())
    assert world.part(start()) == first
    assert world.started[attempt_id()] == 1
    assert world.agent.free_cores == 2


def test_an_attempt_continues_under_a_higher_term_and_reports_to_the_new_leader() -> None:
    world = AgentWorld()
    world.runs()
    world.report(attempt_id(), 0, 1)
    reply = world.part(prepare(term=5), sender="m2")
    assert (reply.accepted, reply.phase, reply.seen_term) == (True, PartPhase.RUNNING, 5)
    assert world.stopping == {}
    reports = [e for e in world.wait(1) if isinstance(e, SendReport)]
    assert {report.to for report in reports} == {"m2"}


@pytest.mark.parametrize("command", [prepare(term=1), start(term=1), stop(term=1)])
def test_a_lower_term_is_refused_with_the_term_and_attempt_seen(command: object) -> None:
    world = AgentWorld()
    world.runs()
    world.command(renew(attempt_id(), term=4), sender="m2")
    reply = world.part(command)  # type: ignore[arg-type]  # the three above
    assert (reply.accepted, reply.refusal) == (False, Refusal.STALE_TERM)
    assert (reply.seen_term, reply.seen_attempt) == (4, 1)
    assert reply.phase is PartPhase.RUNNING
    assert world.stopping == {}


def test_a_deposed_leader_renews_no_lease_and_lists_no_attempt() -> None:
    world = AgentWorld()
    world.runs()
    world.command(list_attempts(term=4), sender="m2")
    lease_s = world.leases[attempt_id()]
    world.now_s += 1
    renewed = world.renewed(renew(attempt_id(), term=3))
    assert (renewed.accepted, renewed.seen_term) == (False, 4)
    assert world.leases[attempt_id()] == lease_s
    assert not world.listed(list_attempts(term=3)).accepted


def test_a_higher_attempt_begins_when_the_older_one_has_left() -> None:
    world = AgentWorld(cores=2)
    world.runs(cores=2)
    newer = attempt_id(2)
    reply = world.part(prepare(newer, cores=2))
    assert (reply.accepted, reply.phase, reply.seen_attempt) == (True, PartPhase.PREPARING, 2)
    assert world.stopping == {attempt_id(): "superseded by attempt 2"}
    assert world.preparing == {}
    world.obey_stops()
    assert world.preparing == {newer: (0, 1)}
    assert world.result(attempt_id()).status is PartStatus.STOPPED
    assert not world.result(attempt_id()).is_retryable
    late = world.part(prepare(attempt_id()))
    assert late.phase is PartPhase.FINISHED, "its result is not acknowledged"
    world.command(ack(attempt_id()))
    late = world.part(prepare(attempt_id()))
    assert (late.refusal, late.seen_attempt) == (Refusal.STALE_ATTEMPT, 2)


def test_a_waiting_attempt_is_superseded_before_it_begins() -> None:
    world = AgentWorld(cores=2)
    world.runs(cores=2)
    world.part(prepare(attempt_id(2), cores=2))
    world.part(prepare(attempt_id(3), cores=1))
    assert world.agent.attempts[attempt_id(2)] is PartPhase.FINISHED
    assert world.result(attempt_id(2)).report is None
    world.obey_stops()
    assert list(world.preparing) == [attempt_id(3)]
    assert world.agent.free_cores == 1


def test_a_higher_attempt_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    world = AgentWorld(cores=2)
    world.runs(cores=1)
    other = attempt_id(job="dc.1-b")
    world.runs(other)
    reply = world.part(prepare(attempt_id(2), cores=2))
    assert (reply.refusal, reply.seen_attempt) == (Refusal.NO_CORES, 1)
    assert world.stopping == {}
    assert world.part(prepare(attempt_id(2), cores=1)).accepted


def test_a_stop_before_the_prepare_command_leaves_a_tombstone() -> None:
    world = AgentWorld()
    reply = world.part(stop())
    assert (reply.accepted, reply.phase) == (True, PartPhase.UNKNOWN)
    late = world.part(prepare())
    assert (late.accepted, late.refusal) == (False, Refusal.STALE_ATTEMPT)
    assert world.part(start()).refusal is Refusal.STALE_ATTEMPT
    assert world.begun == []
    assert world.part(prepare(attempt_id(2))).accepted


@pytest.mark.parametrize("phase", ["preparing", "ready", "running"])
def test_a_stop_ends_an_attempt_in_every_phase(phase: str) -> None:
    world = AgentWorld()
    world.part(prepare())
    if phase != "preparing":
        world.get_ready()
    if phase == "running":
        world.part(start())
        world.report(attempt_id(), 0, 7)
    reply = world.part(stop(reason="cancelled by alice"))
    assert (reply.accepted, reply.phase) == (True, PartPhase.STOPPING)
    world.obey_stops()
    assert world.part(stop()).phase is PartPhase.FINISHED
    result = world.result()
    assert (result.status, result.error) == (PartStatus.STOPPED, "cancelled by alice")
    assert not result.is_retryable
    assert (result.report is not None) == (phase == "running")
    world.command(ack())
    assert world.part(stop()).phase is PartPhase.UNKNOWN
    assert world.part(prepare()).refusal is Refusal.STALE_ATTEMPT


def test_a_stop_of_an_older_attempt_does_not_stop_the_newer_one() -> None:
    world = AgentWorld()
    world.runs(attempt_id(2))
    reply = world.part(stop(attempt_id(1)))
    assert (reply.refusal, reply.seen_attempt) == (Refusal.STALE_ATTEMPT, 2)
    assert world.agent.attempts == {attempt_id(2): PartPhase.RUNNING}


def test_a_start_of_an_unknown_or_unprepared_attempt_is_refused() -> None:
    world = AgentWorld()
    assert world.part(start()).refusal is Refusal.UNKNOWN_ATTEMPT
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
        {"attempt_id": attempt_id(0)},
        {"attempt_id": attempt_id().__class__("dc.1-a", "Other", 0, 1)},
    ],
)
def test_an_invalid_command_is_refused(wrong: dict[str, object]) -> None:
    reply = AgentWorld().part(prepare(**wrong))  # type: ignore[arg-type]  # invalid on purpose
    assert reply.refusal is Refusal.INVALID
    assert reply.reason


def test_more_cores_than_are_free_are_refused() -> None:
    world = AgentWorld(cores=2)
    reply = world.part(prepare(cores=3))
    assert (reply.refusal, reply.seen_attempt) == (Refusal.NO_CORES, 0)
    assert reply.reason == "3 cores requested, 2 free"
    assert world.part(prepare(cores=2)).accepted


def test_shared_attempts_run_beside_others_up_to_a_limit() -> None:
    world = AgentWorld(cores=1)
    world.runs()
    jobs = [attempt_id(job=f"dc.1-{n}") for n in range(3)]
    for job in jobs:
        world.runs(job, shared=True)
    assert sorted(world.places) == [0, 1, 2, 3]
    reply = world.part(prepare(attempt_id(job="dc.1-z"), shared=True))
    assert reply.refusal is Refusal.NO_CORES
    told = world.sent(AnnounceCores)[-1]
    assert sorted((held.cores, held.shared) for held in told.held) == [
        (1, False),
        (1, True),
        (1, True),
        (1, True),
    ]


def test_a_shared_attempt_waits_for_the_attempt_it_supersedes() -> None:
    world = AgentWorld(cores=1)
    world.runs()
    world.part(prepare(attempt_id(2), shared=True))
    assert world.preparing == {}
    world.obey_stops()
    assert list(world.preparing) == [attempt_id(2)]


def test_cores_are_announced_on_change_and_each_second() -> None:
    world = AgentWorld(cores=3)
    world.part(prepare(cores=2))
    told = world.sent(AnnounceCores)[-1]
    assert (told.worker, told.incarnation, told.total) == ("w1", 7, 3)
    assert [(held.attempt_id, held.cores) for held in told.held] == [(attempt_id(), 2)]
    later = world.sent(AnnounceCores, world.wait(3))
    assert 3 <= len(later) <= 4
    versions = [message.version for message in world.sent(AnnounceCores)]
    assert versions == sorted(set(versions))


def test_a_draining_worker_accepts_no_attempt_and_finishes_the_running_ones() -> None:
    world = AgentWorld()
    world.runs()
    world.feed(DrainRequested())
    assert world.sent(AnnounceCores)[-1].draining
    reply = world.part(prepare(attempt_id(job="dc.1-b")))
    assert reply.refusal is Refusal.DRAINING
    assert world.part(prepare(attempt_id(2))).refusal is Refusal.DRAINING
    assert world.stopping == {}
    world.end()
    assert world.result().status is PartStatus.COMPLETED


def test_an_unfit_worker_accepts_no_attempt_until_it_is_fit() -> None:
    world = AgentWorld()
    world.runs()
    world.feed(FitnessChecked(("the disk is full",)))
    announced = world.sent(AnnounceCores)[-1]
    assert (announced.unfit, announced.accepts_work) == (("the disk is full",), False)
    reply = world.part(prepare(attempt_id(job="dc.1-b")))
    assert (reply.refusal, reply.reason) == (Refusal.UNFIT, "the disk is full")
    assert world.stopping == {}
    world.feed(FitnessChecked(()))
    assert world.sent(AnnounceCores)[-1].accepts_work
    assert world.part(prepare(attempt_id(job="dc.1-b"))).accepted


def test_a_leaving_worker_stops_its_attempts_for_a_retry() -> None:
    world = AgentWorld()
    world.runs()
    world.part(prepare(attempt_id(job="dc.1-b")))
    world.feed(DrainRequested(hands_over=True))
    world.obey_stops()
    results = {result.attempt_id: result for result in world.sent(DeliverResult)}
    assert len(results) == 2
    for result in results.values():
        assert (result.status, result.error) == (PartStatus.STOPPED, LEAVING)
        assert result.is_retryable


def test_old_tombstones_are_forgotten_while_an_older_attempt_runs() -> None:
    fences = Fences()
    long, done, later = (
        attempt_id(job="dc.1-long"),
        attempt_id(job="dc.1-done"),
        attempt_id(job="dc.1-later"),
    )
    fences.begin(long, now_s=0.0)
    fences.bury(done, now_s=1.0)
    fences.bury(later, now_s=REMEMBERED_S)
    fences.forget_old(now_s=REMEMBERED_S + 1.0)
    assert [fences.attempt(each) for each in (long, done, later)] == [1, 0, 1]


def test_the_number_of_tombstones_is_limited_while_the_oldest_attempt_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_fences, "REMEMBERED_MAX", 3)
    fences = Fences()
    runs = [attempt_id(job=f"dc.1-{n}") for n in range(6)]
    fences.begin(runs[0], now_s=0.0)
    for run in runs[1:]:
        fences.bury(run, now_s=1.0)
    fences.forget_old(now_s=2.0)
    assert [run for run in runs if fences.attempt(run)] == [runs[0], *runs[-2:]]
