"""The agent: an attempt from its first command to its acknowledged result."""

import msgspec
import pytest

from hyperscale.jobs.agent.events import PlaceEnded, ResultsRestored, SendMessage
from hyperscale.jobs.agent.results import ERROR_CHARS_MAX
from hyperscale.jobs.messages import (
    AnnouncePrepareFailed,
    AnnounceReady,
    DeliverResult,
    PartPhase,
    Refusal,
    ReportProgress,
)
from hyperscale.plan.status import PartStatus
from tests.lab.agent_world import (
    AgentWorld,
    ack,
    attempt_id,
    list_attempts,
    prepare,
    renew,
    report,
    start,
    stop,
)
from tests.lab.reports import read


def test_an_attempt_goes_from_its_command_to_its_result() -> None:
    world = AgentWorld()
    reply = world.part(prepare(cores=2))
    assert (reply.accepted, reply.phase) == (True, PartPhase.PREPARING)
    assert world.agent.free_cores == 2
    world.get_ready()
    assert [ready.attempt_id for ready in world.sent(AnnounceReady)] == [attempt_id()]
    assert world.part(start()).phase is PartPhase.RUNNING
    assert world.started[attempt_id()] == 1
    world.report(attempt_id(), 0, 10)
    world.report(attempt_id(), 1, 5)
    world.wait(0.6)
    (progress,) = world.sent(ReportProgress)[:1]
    assert read(progress.parts[0].report).steps[0].counts.total == 15
    world.end(provided=b"p")
    result = world.result()
    assert result.status is PartStatus.COMPLETED
    assert result.report is not None
    assert read(result.report).steps[0].counts.total == 15
    assert result.provided == [b"p", b"p"]
    assert world.agent.free_cores == 4
    world.command(ack())
    assert world.agent.is_idle
    assert world.disk == {}


def test_a_result_is_stored_before_it_is_sent_and_sent_again_until_it_is_acknowledged() -> None:
    world = AgentWorld()
    world.runs()
    world.end()
    assert len(world.sent(DeliverResult)) == 1
    world.wait(30)
    sent = len(world.sent(DeliverResult))
    assert 4 <= sent <= 12
    assert attempt_id() in world.disk
    world.command(ack())
    world.wait(60)
    assert len(world.sent(DeliverResult)) == sent
    assert world.disk == {}


def test_after_ten_minutes_a_result_waits_on_disk_until_a_leader_lists_the_attempts() -> None:
    world = AgentWorld()
    world.runs()
    world.end()
    world.wait(700)
    assert world.sent(DeliverResult, world.wait(600)) == []
    here = world.listed(list_attempts(term=2), sender="m2")
    assert [(view.attempt_id, view.phase) for view in here.parts] == [
        (attempt_id(), PartPhase.FINISHED)
    ]
    effects = world.wait(0.5)
    assert [m.attempt_id for m in world.sent(DeliverResult, effects)] == [attempt_id()]
    assert {e.to for e in effects if isinstance(e, SendMessage) and e.to} == {"m2"}


def test_restored_results_are_sent_to_every_manager_until_a_leader_commands() -> None:
    first = AgentWorld()
    first.runs()
    first.end()
    world = AgentWorld()
    world.feed(ResultsRestored(tuple(first.disk.values())))
    effects = world.wait(1)
    offers = [
        e for e in effects if isinstance(e, SendMessage) and isinstance(e.message, DeliverResult)
    ]
    assert [offer.to for offer in offers] == [None]
    reply = world.part(prepare())
    assert reply.phase is PartPhase.FINISHED, "the same attempt does not begin again"
    world.command(renew(term=3), sender="m3")
    offers = [
        e
        for e in world.wait(0.5)
        if isinstance(e, SendMessage) and isinstance(e.message, DeliverResult)
    ]
    assert [offer.to for offer in offers] == ["m3"]


def test_a_failed_preparation_is_announced_until_acknowledged_and_frees_its_cores() -> None:
    world = AgentWorld()
    world.part(prepare(cores=4))
    world.fail_to_prepare(error="no module named shop")
    assert world.agent.free_cores == 4
    world.wait(3)
    refusals = world.sent(AnnouncePrepareFailed)
    assert len(refusals) >= 2
    assert not refusals[0].is_retryable
    assert refusals[0].error == "no module named shop"
    world.command(ack())
    assert world.sent(AnnouncePrepareFailed, world.wait(30)) == []
    assert world.agent.is_idle


@pytest.mark.parametrize("is_retryable", [False, True])
def test_requests_of_setup_hooks_are_in_the_result_of_a_failed_preparation(
    is_retryable: bool,
) -> None:
    world = AgentWorld()
    world.part(prepare(cores=2))
    world.report(attempt_id(), 0, 20, elapsed_s=0.0)
    world.fail_to_prepare(
        error="Load.warm failed", hint="see its output", is_retryable=is_retryable
    )
    assert world.sent(AnnouncePrepareFailed) == []
    result = world.result()
    assert (result.status, result.is_retryable) == (PartStatus.FAILED, is_retryable)
    assert result.error == "Load.warm failed (hint: see its output)"
    assert result.report is not None
    assert read(result.report).steps[0].counts.sent == 20
    assert (result.elapsed_s, result.unheard_s) == (0.0, 0.0)
    assert world.agent.free_cores == 4
    world.command(ack())
    assert world.agent.is_idle
    assert world.disk == {}


def test_a_long_error_is_cut_to_fit_into_a_message() -> None:
    world = AgentWorld()
    world.part(prepare())
    world.fail_to_prepare(error="x" * 10_000_000)
    assert len(world.sent(AnnouncePrepareFailed)[0].error) == ERROR_CHARS_MAX
    world.runs(attempt_id(2))
    world.end(attempt_id(2), status=PartStatus.FAILED, error="y" * 10_000_000)
    assert len(world.result(attempt_id(2)).error or "") == ERROR_CHARS_MAX


def test_a_part_that_provides_too_much_context_fails_without_a_retry() -> None:
    world = AgentWorld()
    world.runs(cores=2)
    world.report(attempt_id(), 1, 10)
    world.end(provided=b"x" * 40_000, report=report(10))
    result = world.result()
    assert (result.status, result.is_retryable) == (PartStatus.FAILED, False)
    assert "80,000 bytes of context" in (result.error or "")
    assert result.provided == []
    assert result.report is not None
    assert read(result.report).steps[0].counts.total == 20
    assert world.disk[attempt_id()] == result


def test_a_stopped_part_provides_no_context() -> None:
    world = AgentWorld()
    world.runs(cores=2)
    world.feed(PlaceEnded(attempt_id(), 0, PartStatus.COMPLETED, provided=b"x" * 80_000))
    world.vacate(attempt_id(), 0)
    world.part(stop())
    world.obey_stops()
    result = world.result()
    assert (result.status, result.error, result.provided) == (PartStatus.STOPPED, "cancelled", [])


def test_a_restored_result_that_is_too_large_is_sent_as_a_failure() -> None:
    first = AgentWorld()
    first.runs()
    first.end()
    left = msgspec.structs.replace(first.result(), provided=[bytes(18_000_000)])
    world = AgentWorld()
    world.feed(ResultsRestored((left,)))
    world.wait(1)
    told = world.result()
    assert (told.status, told.provided) == (PartStatus.FAILED, [])
    world.command(ack())
    assert world.agent.is_idle


def test_ready_is_announced_until_the_start() -> None:
    world = AgentWorld()
    world.part(prepare())
    world.get_ready()
    world.command(renew(attempt_id()))
    world.wait(2.5)
    assert len(world.sent(AnnounceReady)) == 3
    world.part(start())
    assert world.sent(AnnounceReady, world.wait(2)) == []


def test_a_failed_executor_stops_the_others_of_its_part() -> None:
    world = AgentWorld()
    world.runs(cores=3)
    world.feed(
        PlaceEnded(attempt_id(), 1, PartStatus.FAILED, error="killed by SIGSEGV", is_dead=True)
    )
    assert world.stopping == {attempt_id(): "another core of the part failed: killed by SIGSEGV"}
    world.vacate(attempt_id(), 1)
    assert world.sent(DeliverResult) == []
    world.obey_stops()
    result = world.result()
    assert (result.status, result.error) == (PartStatus.FAILED, "killed by SIGSEGV")
    assert result.is_retryable


def test_the_time_after_the_last_report_of_a_killed_executor_is_a_gap() -> None:
    world = AgentWorld()
    world.runs()
    world.wait(1.05)
    world.report(attempt_id(), 0, 10, elapsed_s=1.0)
    world.wait(0.3)
    world.feed(
        PlaceEnded(attempt_id(), 0, PartStatus.FAILED, error="killed by SIGKILL", is_dead=True)
    )
    world.vacate(attempt_id(), 0)
    assert world.result().unheard_s == pytest.approx(0.3, abs=0.01)


def test_a_gap_ends_with_the_lease() -> None:
    world = AgentWorld()
    world.runs(lease_ms=8_000)
    world.now_s += 30
    world.end(status=PartStatus.FAILED, error="killed by SIGKILL", is_dead=True)
    assert world.result().unheard_s <= 8.0


def test_an_executor_with_a_last_report_leaves_no_gap() -> None:
    world = AgentWorld()
    world.runs()
    world.wait(3.0)
    world.end(status=PartStatus.FAILED, error="boom", report=report(10, elapsed_s=2.9))
    assert world.result().unheard_s == 0.0


def test_a_failure_of_user_code_is_not_retried() -> None:
    world = AgentWorld()
    world.runs()
    world.end(status=PartStatus.FAILED, error="Load.provide failed")
    assert not world.result().is_retryable
    assert world.result().status is PartStatus.FAILED


def test_cores_are_free_only_when_their_places_are_vacant() -> None:
    world = AgentWorld(cores=1)
    world.runs()
    world.feed(PlaceEnded(attempt_id(), 0, PartStatus.COMPLETED))
    other = attempt_id(job="dc.1-b")
    assert world.part(prepare(other)).refusal is Refusal.NO_CORES
    assert world.sent(DeliverResult) == []
    world.vacate(attempt_id(), 0)
    assert world.part(prepare(other)).accepted
