"""Leases: how long an attempt runs if no job leader renews it."""

import pytest

from hyperscale.jobs.agent.events import CommandReceived, LeaseAttempt, PlaceEnded
from hyperscale.jobs.agent.results import LEASE_OVER
from hyperscale.jobs.messages import AnnounceReady, Isolation, PartPhase, Refusal
from hyperscale.plan.status import PartStatus
from tests.lab.agent_world import AgentWorld, attempt_id, prepare, renew, start


def test_an_attempt_stops_when_its_lease_is_not_renewed() -> None:
    world = AgentWorld()
    world.runs(lease_ms=8_000)
    begun_s = world.now_s
    assert world.leases[attempt_id()] == begun_s + 8.0
    world.wait(7.9)
    assert world.stopping == {}
    world.wait(0.2)
    assert world.stopping == {attempt_id(): LEASE_OVER}
    world.obey_stops()
    result = world.result()
    assert (result.status, result.error) == (PartStatus.STOPPED, LEASE_OVER)
    assert result.is_retryable


def test_renewals_extend_only_the_listed_attempts() -> None:
    world = AgentWorld()
    other = attempt_id(job="dc.1-b")
    world.runs()
    world.runs(other)
    for _ in range(20):
        world.wait(1)
        reply = world.renewed(renew(attempt_id(), attempt_id(job="gone")))
    assert reply.unknown == [attempt_id(job="gone")]
    assert world.stopping == {other: LEASE_OVER}
    assert world.agent.attempts[attempt_id()] is PartPhase.RUNNING
    assert reply.unlisted == [other]


def test_a_renewal_counts_from_the_stamp_it_carries() -> None:
    world = AgentWorld()
    world.runs()
    stamp_ms = world.renewed(renew(attempt_id())).stamp_ms
    world.now_s += 5
    world.command(renew(attempt_id(), stamp_ms=stamp_ms, lease_ms=9_000))
    assert world.leases[attempt_id()] == pytest.approx(world.now_s - 5 + 9.0)
    world.now_s += 3
    world.command(renew(attempt_id(), stamp_ms=stamp_ms, lease_ms=9_000))  # delayed on its way
    world.wait(1.1)
    assert world.stopping == {attempt_id(): LEASE_OVER}


def test_a_start_command_older_than_its_lease_is_refused() -> None:
    world = AgentWorld()
    world.part(prepare(lease_ms=60_000))
    world.get_ready()
    stamp_ms = world.sent(AnnounceReady)[0].stamp_ms
    world.now_s += 9
    reply = world.part(start(stamp_ms=stamp_ms))
    assert reply.refusal is Refusal.INVALID
    assert world.started[attempt_id()] == 0
    assert world.part(start(stamp_ms=reply.stamp_ms)).accepted


def test_load_begins_under_the_lease_of_the_start_command_even_if_it_is_shorter() -> None:
    world = AgentWorld()
    world.part(prepare(lease_ms=60_000))
    world.get_ready()
    assert world.leases[attempt_id()] == world.now_s + 60
    assert world.part(start(lease_ms=8_000)).accepted
    assert world.leases[attempt_id()] == world.now_s + 8


def test_an_attempt_that_was_never_started_stops_without_a_leader() -> None:
    world = AgentWorld()
    world.part(prepare(on_isolation=Isolation.CONTINUE))
    world.get_ready()
    world.wait(9)
    assert world.stopping == {attempt_id(): LEASE_OVER}


def test_an_attempt_that_continues_in_isolation_has_no_lease() -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.wait(600)
    assert world.stopping == {}
    assert world.leases == {}
    world.end()
    assert world.result().status is PartStatus.COMPLETED


def test_an_attempt_whose_executor_stopped_by_its_lease_is_retried() -> None:
    world = AgentWorld()
    world.runs(lease_ms=8_000)
    world.now_s += 8
    world.end(status=PartStatus.STOPPED, error=LEASE_OVER)
    result = world.result()
    assert (result.status, result.error) == (PartStatus.STOPPED, LEASE_OVER)
    assert result.is_retryable


def test_an_executor_that_takes_no_renewals_has_failed() -> None:
    world = AgentWorld()
    world.runs()  # its lease is not over
    world.end(status=PartStatus.STOPPED, error=LEASE_OVER)
    result = world.result()
    assert (result.status, result.is_retryable) == (PartStatus.FAILED, True)
    assert "its lease expired although it was renewed" in (result.error or "")


def test_an_executor_killed_after_its_lease_ends_as_lease_expired() -> None:
    world = AgentWorld()
    world.runs(lease_ms=8_000)
    world.now_s += 9
    world.end(status=PartStatus.FAILED, error="killed by SIGKILL", is_dead=True)
    result = world.result()
    assert (result.status, result.error) == (PartStatus.STOPPED, LEASE_OVER)
    assert result.is_retryable


def test_a_lease_covers_only_places_that_still_belong_to_the_attempt() -> None:
    world = AgentWorld(cores=2)
    other = attempt_id(job="dc.1-b")
    world.runs(cores=2)
    world.end(places=(0,))
    world.part(prepare(other))
    assert world.preparing[other] == (0,)
    world.now_s += 1
    token = object()
    effects = world.feed(CommandReceived("m1", renew(attempt_id()), token))
    assert [e.places for e in effects if isinstance(e, LeaseAttempt)] == [(1,)]
    world.feed(PlaceEnded(attempt_id(), 1, PartStatus.COMPLETED))
    world.now_s += 1
    effects = world.feed(CommandReceived("m1", renew(attempt_id()), token))
    assert [e for e in effects if isinstance(e, LeaseAttempt)] == []
