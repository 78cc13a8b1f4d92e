"""What a worker's agent tells of its runs while they run: reports, views, output."""

from itertools import pairwise

import pytest

from hyperscale.jobs.agent.events import (
    PlacePrinted,
    ReportAnswered,
    SendMessage,
    SendReport,
    UsageMeasured,
)
from hyperscale.jobs.agent.output import OUTPUT_BURST_BYTES
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
from tests.jobs.agent.world import AgentWorld, attempt_id, list_attempts


def _answer(world: AgentWorld, taken: ReportProgressReply | None, *, to: str = "m1") -> None:
    world.feed(ReportAnswered(1, to, taken))


@pytest.mark.parametrize("level", list(Backpressure))
def test_backpressure_stretches_the_interval_and_even_reject_keeps_a_probe(
    level: Backpressure,
) -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(attempt_id(), 0, 1)
    sent_s: list[float] = []
    for _ in range(600):
        if any(isinstance(effect, SendReport) for effect in world.wait(0.1)):
            sent_s.append(world.now_s)
            _answer(world, ReportProgressReply(backpressure=level))
    steps_s = [later - earlier for earlier, later in pairwise(sent_s[2:])]
    assert steps_s
    assert min(steps_s) == pytest.approx(PROGRESS_S[level], abs=0.11)
    assert max(steps_s) == pytest.approx(PROGRESS_S[level], abs=0.11)


def test_relief_is_heard_at_the_next_probe() -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(attempt_id(), 0, 1)
    world.wait(0.1)
    _answer(world, ReportProgressReply(backpressure=Backpressure.REJECT))
    assert [e for e in world.wait(4.4) if isinstance(e, SendReport)] == []
    assert [e for e in world.wait(0.9) if isinstance(e, SendReport)]
    _answer(world, ReportProgressReply())
    assert [e for e in world.wait(0.5) if isinstance(e, SendReport)]


def test_workers_that_begin_together_do_not_go_on_reporting_together() -> None:
    third_s: set[int] = set()
    for number in range(10):
        world = AgentWorld(worker=f"w{number}")
        world.runs(on_isolation=Isolation.CONTINUE)
        world.report(attempt_id(), 0, 1)
        sent_s: list[float] = []
        while len(sent_s) < 3:
            if any(isinstance(effect, SendReport) for effect in world.wait(0.01)):
                sent_s.append(world.now_s)
                _answer(world, ReportProgressReply())
        assert sent_s[0] == pytest.approx(1000.0, abs=0.1)
        third_s.add(round(sent_s[2] * 20))
    assert len(third_s) >= 5


def test_one_report_at_a_time_and_a_lost_answer_does_not_end_them() -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    world.report(attempt_id(), 0, 1)
    assert len([e for e in world.wait(5) if isinstance(e, SendReport)]) == 1
    _answer(world, None)
    assert len([e for e in world.wait(1) if isinstance(e, SendReport)]) == 1


def test_a_leader_that_is_none_any_more_says_who_is() -> None:
    world = AgentWorld()
    world.runs()
    world.report(attempt_id(), 0, 1)
    world.wait(0.1)
    _answer(world, ReportProgressReply(leader="m9"))
    assert {e.to for e in world.wait(1) if isinstance(e, SendReport)} == {"m9"}


def test_runs_of_a_group_share_one_message_with_sequences_of_their_own() -> None:
    world = AgentWorld()
    other = attempt_id(job="dc.1-b")
    world.runs()
    world.runs(other)
    world.report(attempt_id(), 0, 3)
    world.report(other, 1, 4)
    world.feed(UsageMeasured(cpu=0.5, memory=0.25))
    world.wait(0.1)
    _answer(world, ReportProgressReply())
    world.wait(0.6)
    last = world.said(ReportProgress)[-1]
    assert {part.run: part.report.steps[0].counts.total for part in last.parts} == {
        attempt_id(): 3,
        other: 4,
    }
    assert (last.cpu, last.memory) == (0.5, 0.25)
    sequences = [
        part.report.sequence
        for progress in world.said(ReportProgress)
        for part in progress.parts
        if part.run == other
    ]
    assert sequences == sorted(set(sequences))


def test_the_elapsed_time_is_of_this_attempt_and_the_report_of_the_workflow() -> None:
    world = AgentWorld()
    world.runs(attempt_id(2), elapsed_s=20.0)
    world.report(attempt_id(2), 0, 3, elapsed_s=25.0)
    world.wait(0.1)
    (part,) = world.said(ReportProgress)[-1].parts
    assert part.elapsed_s == 5.0
    assert part.report.elapsed_s == 25.0


def test_a_run_whose_actions_take_long_says_so_before_it_is_taken_for_stuck() -> None:
    world = AgentWorld()
    world.runs(on_isolation=Isolation.CONTINUE)
    pleas = []
    for second in range(15):
        world.report(attempt_id(), 0, 3, sequence=second + 1)
        world.wait(1)
        _answer(world, ReportProgressReply())
        pleas.append(world.said(ReportProgress)[-1].parts[0].extension)
    assert pleas[5] == ""
    assert pleas[-1].startswith("1 virtual users have been in their steps for 1")
    world.report(attempt_id(), 0, 4, sequence=99)
    world.wait(1)
    assert world.said(ReportProgress)[-1].parts[0].extension == ""


def test_who_runs_gets_everything_there_is_to_know() -> None:
    world = AgentWorld()
    world.runs(cores=2)
    world.report(attempt_id(), 0, 3)
    here = world.runs_here(list_attempts(term=2), sender="m2")
    assert (here.worker, here.accepted, here.seen_term) == ("w1", True, 2)
    (view,) = here.parts
    assert (view.run, view.phase, view.cores) == (attempt_id(), PartPhase.RUNNING, 2)
    assert view.report is not None
    assert view.report.steps[0].counts.total == 3


def test_output_is_brought_to_the_leader_with_its_slot_and_bounded() -> None:
    world = AgentWorld()
    world.runs(cores=2, first_slot=4, slots=8)
    world.feed(PlacePrinted(attempt_id(), 1, "stdout", "hello\n"))
    world.feed(PlacePrinted(attempt_id(), 1, "stdout", "again\n"))
    world.wait(0.3)
    (output,) = world.said(ForwardOutput)
    assert (output.slot, output.stream, output.text) == (5, "stdout", "hello\nagain\n")
    line = "x" * 1023 + "\n"
    for _ in range(2 * OUTPUT_BURST_BYTES // len(line)):
        world.feed(PlacePrinted(attempt_id(), 0, "stdout", line))
    outputs = world.said(ForwardOutput, world.wait(1))
    assert sum(len(each.text) for each in outputs) < OUTPUT_BURST_BYTES + 1000
    assert "bytes of output were dropped" in outputs[-1].text


def test_pieces_of_output_are_numbered_on_whoever_leads() -> None:
    world = AgentWorld()
    world.runs(cores=2)

    def prints() -> None:
        for place in (0, 1):
            world.feed(PlacePrinted(attempt_id(), place, "stdout", "tick\n"))
        world.wait(0.3)

    prints()
    world.runs_here(list_attempts(term=2), sender="m2")
    prints()
    sent = [
        (effect.to, effect.message.number)
        for effect in world.effects
        if isinstance(effect, SendMessage) and isinstance(effect.message, ForwardOutput)
    ]
    first = sent[0][1]
    assert first > 0
    assert sent == [("m1", first), ("m1", first + 1), ("m2", first + 2), ("m2", first + 3)]


def test_an_attempt_that_begins_again_on_a_restarted_worker_numbers_its_output_anew() -> None:
    numbers: list[int] = []
    for incarnation in (5_000, 9_000):
        world = AgentWorld(incarnation=incarnation)
        world.runs()
        for _ in range(2):
            world.feed(PlacePrinted(attempt_id(), 0, "stdout", "tick\n"))
            world.wait(0.3)
        numbers += [output.number for output in world.said(ForwardOutput)]
    assert len(set(numbers)) == 4
    assert numbers == sorted(numbers)


def test_output_comes_before_the_end() -> None:
    world = AgentWorld()
    world.runs()
    world.feed(PlacePrinted(attempt_id(), 0, "stdout", "last words\n"))
    world.end()
    messages = [effect.message for effect in world.effects if isinstance(effect, SendMessage)]
    kinds = [type(m) for m in messages if isinstance(m, ForwardOutput | DeliverResult)]
    assert kinds == [ForwardOutput, DeliverResult]
