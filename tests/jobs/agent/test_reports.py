"""What the agent sends about running attempts: reports, views and output."""

from itertools import pairwise

import pytest

from hyperscale.jobs.agent.attempts import OUTPUT_BURST_BYTES
from hyperscale.jobs.agent.events import (
    PlacePrinted,
    ReportAnswered,
    SendMessage,
    SendReport,
    UsageMeasured,
)
from hyperscale.jobs.agent.reports import PROGRESS_S
from hyperscale.jobs.messages import (
    Backpressure,
    DeliverResult,
    ForwardOutput,
    Isolation,
    PartPhase,
    ReportProgress,
    ReportProgressReply,
)
from tests.lab.agent_world import AgentWorld, attempt_id, list_attempts
from tests.lab.reports import read


def _reply(world: AgentWorld, taken: ReportProgressReply | None, *, to: str = "m1") -> None:
    world.feed(ReportAnswered(1, to, taken))


@pytest.mark.parametrize("level", list(Backpressure))
def test_backpressure_sets_the_interval_and_reject_still_sends_probes(
    level: Backpressure,
) -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(attempt_id(), 0, 1)
    sent_s: list[float] = []
    for _ in range(600):
        if any(isinstance(effect, SendReport) for effect in world.wait(0.1)):
            sent_s.append(world.now_s)
            _reply(world, ReportProgressReply(backpressure=level))
    steps_s = [later - earlier for earlier, later in pairwise(sent_s[2:])]
    assert steps_s
    assert min(steps_s) == pytest.approx(PROGRESS_S[level], abs=0.11)
    assert max(steps_s) == pytest.approx(PROGRESS_S[level], abs=0.11)


def test_relief_shortens_the_interval_at_the_next_probe() -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(attempt_id(), 0, 1)
    world.wait(0.1)
    _reply(world, ReportProgressReply(backpressure=Backpressure.REJECT))
    assert [e for e in world.wait(4.4) if isinstance(e, SendReport)] == []
    assert [e for e in world.wait(0.9) if isinstance(e, SendReport)]
    _reply(world, ReportProgressReply())
    assert [e for e in world.wait(0.5) if isinstance(e, SendReport)]


def test_workers_that_start_together_spread_their_reports() -> None:
    third_s: set[int] = set()
    for number in range(10):
        world = AgentWorld(worker=f"w{number}")
        world.runs(on_isolation=Isolation.CONTINUE)
        world.report(attempt_id(), 0, 1)
        sent_s: list[float] = []
        while len(sent_s) < 3:
            if any(isinstance(effect, SendReport) for effect in world.wait(0.01)):
                sent_s.append(world.now_s)
                _reply(world, ReportProgressReply())
        assert sent_s[0] == pytest.approx(1000.0, abs=0.1)
        third_s.add(round(sent_s[2] * 20))
    assert len(third_s) >= 5


def test_one_report_is_in_flight_and_a_lost_reply_does_not_stop_reports() -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(attempt_id(), 0, 1)
    assert len([e for e in world.wait(5) if isinstance(e, SendReport)]) == 1
    _reply(world, None)
    assert len([e for e in world.wait(1) if isinstance(e, SendReport)]) == 1


def test_reports_follow_the_leader_named_in_a_reply() -> None:
    world = AgentWorld()
    world.runs()
    world.report(attempt_id(), 0, 1)
    world.wait(0.1)
    _reply(world, ReportProgressReply(leader="m9"))
    assert {e.to for e in world.wait(1) if isinstance(e, SendReport)} == {"m9"}


def test_attempts_of_a_group_share_one_message_with_separate_sequences() -> None:
    world = AgentWorld()
    other = attempt_id(job="dc.1-b")
    world.runs()
    world.runs(other)
    world.report(attempt_id(), 0, 3)
    world.report(other, 1, 4)
    world.feed(UsageMeasured(cpu=0.5, memory=0.25))
    world.wait(0.1)
    _reply(world, ReportProgressReply())
    world.wait(0.6)
    last = world.sent(ReportProgress)[-1]
    assert {part.attempt_id: read(part.report).steps[0].counts.total for part in last.parts} == {
        attempt_id(): 3,
        other: 4,
    }
    assert (last.cpu, last.memory) == (0.5, 0.25)
    sequences = [
        read(part.report).sequence
        for progress in world.sent(ReportProgress)
        for part in progress.parts
        if part.attempt_id == other
    ]
    assert sequences == sorted(set(sequences))


def test_elapsed_time_is_that_of_the_attempt_and_the_report_that_of_the_workflow() -> None:
    world = AgentWorld()
    world.runs(attempt_id(2), elapsed_s=20.0)
    world.report(attempt_id(2), 0, 3, elapsed_s=25.0)
    world.wait(0.1)
    (part,) = world.sent(ReportProgress)[-1].parts
    assert part.elapsed_s == 5.0
    assert read(part.report).elapsed_s == 25.0


def test_a_part_with_long_actions_asks_for_more_time() -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    extensions = []
    for second in range(15):
        world.report(attempt_id(), 0, 3, sequence=second + 1)
        world.wait(1)
        _reply(world, ReportProgressReply())
        extensions.append(world.sent(ReportProgress)[-1].parts[0].wants_extension)
    assert (extensions[5], extensions[-1]) == (False, True)
    world.report(attempt_id(), 0, 4, sequence=99)
    world.wait(1)
    assert world.sent(ReportProgress)[-1].parts[0].wants_extension is False


def test_a_new_leader_gets_phase_and_statistics_of_every_attempt() -> None:
    world = AgentWorld()
    world.runs(cores=2)
    world.report(attempt_id(), 0, 3)
    here = world.listed(list_attempts(term=2), sender="m2")
    assert (here.accepted, here.seen_term) == (True, 2)
    (view,) = here.parts
    assert (view.attempt_id, view.phase) == (attempt_id(), PartPhase.RUNNING)
    assert view.report is not None
    assert read(view.report).steps[0].counts.total == 3


def test_output_is_forwarded_with_its_slot_and_limited_by_a_rate() -> None:
    world = AgentWorld()
    world.runs(cores=2, first_slot=4, slots=8)
    world.feed(PlacePrinted(attempt_id(), 1, "stdout", "hello\n"))
    world.feed(PlacePrinted(attempt_id(), 1, "stdout", "again\n"))
    world.wait(0.3)
    (output,) = world.sent(ForwardOutput)
    assert (output.slot, output.stream, output.text) == (5, "stdout", "hello\nagain\n")
    line = "x" * 1023 + "\n"
    for _ in range(2 * OUTPUT_BURST_BYTES // len(line)):
        world.feed(PlacePrinted(attempt_id(), 0, "stdout", line))
    outputs = world.sent(ForwardOutput, world.wait(1))
    assert sum(len(each.text) for each in outputs) < OUTPUT_BURST_BYTES + 1000
    assert "bytes of output were dropped" in outputs[-1].text


def test_pieces_of_output_are_numbered_across_leaders() -> None:
    world = AgentWorld()
    world.runs(cores=2)

    def prints() -> None:
        for place in (0, 1):
            world.feed(PlacePrinted(attempt_id(), place, "stdout", "tick\n"))
        world.wait(0.3)

    prints()
    world.listed(list_attempts(term=2), sender="m2")
    prints()
    sent = [
        (effect.to, effect.message.number)
        for effect in world.effects
        if isinstance(effect, SendMessage) and isinstance(effect.message, ForwardOutput)
    ]
    first = sent[0][1]
    assert first > 0
    assert sent == [("m1", first), ("m1", first + 1), ("m2", first + 2), ("m2", first + 3)]


def test_output_after_a_restart_of_the_worker_gets_new_numbers() -> None:
    numbers: list[int] = []
    for incarnation in (5_000, 9_000):
        world = AgentWorld(incarnation=incarnation)
        world.runs()
        for _ in range(2):
            world.feed(PlacePrinted(attempt_id(), 0, "stdout", "tick\n"))
            world.wait(0.3)
        numbers += [output.number for output in world.sent(ForwardOutput)]
    assert len(set(numbers)) == 4
    assert numbers == sorted(numbers)


def test_output_is_forwarded_before_the_result() -> None:
    world = AgentWorld()
    world.runs()
    world.feed(PlacePrinted(attempt_id(), 0, "stdout", "last words\n"))
    world.end()
    messages = [effect.message for effect in world.effects if isinstance(effect, SendMessage)]
    kinds = [type(m) for m in messages if isinstance(m, ForwardOutput | DeliverResult)]
    assert kinds == [ForwardOutput, DeliverResult]
