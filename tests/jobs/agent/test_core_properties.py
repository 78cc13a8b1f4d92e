"""Properties of the agent under any sequence of commands; `AgentWorld` checks invariants."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hyperscale.jobs.agent.events import DrainRequested, PlaceEnded
from hyperscale.jobs.agent.fences import REMEMBERED_S, Fences
from hyperscale.jobs.messages import AnnounceCores, AttemptId, PartPhase
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

CORES = 3


@dataclass(frozen=True)
class Act:
    what: str
    attempt_id: AttemptId
    term: int
    cores: int
    shared: bool
    pause_s: float


ACTS = st.builds(
    Act,
    what=st.sampled_from(
        ["prepare"] * 4
        + ["start"] * 3
        + ["stop", "renew", "who", "ack"]
        + ["ready"] * 4
        + ["fail", "end", "end", "die", "obey", "obey", "drain"]
    ),
    attempt_id=st.builds(
        AttemptId,
        st.sampled_from(["dc.1-a", "dc.1-b"]),
        st.just("Load"),
        st.integers(0, 1),
        st.integers(1, 4),
    ),
    term=st.integers(1, 4),
    cores=st.integers(1, CORES),
    shared=st.booleans(),
    pause_s=st.sampled_from([0.0, 0.0, 0.3, 1.0, 4.0, 9.0]),
)


def _pick(choices: object, act: Act) -> AttemptId | None:
    found = sorted(choices, key=repr)  # type: ignore[call-overload]  # any collection of runs
    return found[(act.attempt_id.attempt + act.cores) % len(found)] if found else None


def _act(world: AgentWorld, act: Act) -> None:
    sender = f"m{act.term}"
    match act.what:
        case "prepare":
            command = prepare(act.attempt_id, term=act.term, cores=act.cores, shared=act.shared)
            if act.shared and act.cores == 1:
                command = replace(command, within_job=True)
            world.part(command, sender=sender)
        case "start":
            world.part(start(act.attempt_id, term=act.term), sender=sender)
        case "stop":
            world.part(stop(act.attempt_id, term=act.term), sender=sender)
        case "renew":
            world.command(renew(act.attempt_id, *world.held, term=act.term), sender=sender)
        case "who":
            world.command(list_attempts(term=act.term), sender=sender)
        case "ack":
            world.command(
                ack(_pick(world.disk, act) or act.attempt_id, term=act.term), sender=sender
            )
        case "ready":
            if (run := _pick(world.preparing, act)) is not None:
                world.get_ready(run)
        case "fail":
            if (run := _pick(world.preparing, act)) is not None:
                world.fail_to_prepare(run)
        case "end" | "die":
            status = PartStatus.COMPLETED if act.what == "end" else PartStatus.FAILED
            held = {run for run, places in world.held.items() if places}
            if (run := _pick(held, act)) is not None and world.started[run]:
                place = world.held[run][0]
                world.feed(PlaceEnded(run, place, status, error="x", is_dead=act.what == "die"))
                world.vacate(run, place)
        case "obey":
            world.obey_stops()
        case "drain":
            if act.cores == CORES and act.term == 4:
                world.feed(DrainRequested())


@settings(max_examples=300)
@given(st.lists(ACTS, max_size=60))
def test_no_place_and_no_attempt_is_used_twice(acts: list[Act]) -> None:
    world = AgentWorld(CORES)
    seen_terms: list[int] = []
    for act in acts:
        world.wait(act.pause_s)
        before = dict(world.agent.attempts)
        _act(world, act)
        held = world.sent(AnnounceCores)[-1].held if world.sent(AnnounceCores) else []
        with_core = {each.attempt_id.job for each in held if not each.shared}
        assert all(each.attempt_id.job in with_core for each in held if each.within_job)
        reply = world.renewed(renew(term=0))
        seen_terms.append(reply.seen_term)
        if act.what in ("prepare", "start", "stop") and act.term < seen_terms[-1]:
            assert world.agent.attempts == before, "a deposed leader changed the attempts"
    assert seen_terms == sorted(seen_terms)
    # Every attempt that remains ends on command, with exactly one result.
    for job in ("dc.1-a", "dc.1-b"):
        for part in (0, 1):
            world.part(stop(attempt_id(9, job=job, part=part), term=9), sender="m9")
    world.obey_stops()
    assert set(world.agent.attempts.values()) <= {PartPhase.FINISHED}
    assert world.agent.free_cores == CORES
    assert world.places == {}
    world.wait(1)
    for run in list(world.agent.attempts):
        world.command(ack(run, term=9), sender="m9")
    assert world.agent.is_idle
    assert world.disk == {}


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=30))
def test_the_highest_attempt_never_falls_and_a_tombstone_stays(
    notes: list[tuple[int, bool]],
) -> None:
    fences, highest, buried = Fences(), 0, 0
    for attempt, is_over in notes:
        if is_over:
            fences.bury(attempt_id(attempt), now_s=0.0)
            buried = max(buried, attempt)
        else:
            fences.begin(attempt_id(attempt), now_s=0.0)
        highest = max(highest, attempt)
        assert fences.attempt(attempt_id()) == highest
        assert fences.is_over(attempt_id(buried)) or buried == 0


def test_old_tombstones_are_forgotten_and_running_attempts_are_not() -> None:
    fences = Fences()
    fences.bury(attempt_id(job="old"), now_s=0.0)
    fences.begin(attempt_id(job="running"), now_s=1.0)
    fences.bury(attempt_id(job="young"), now_s=REMEMBERED_S)
    fences.forget_old(now_s=REMEMBERED_S + 10)
    seen = {job: fences.attempt(attempt_id(job=job)) for job in ("old", "running", "young")}
    assert seen == {"old": 0, "running": 1, "young": 1}
