"""What the machine as a whole promises, in numbers: timeouts, witnesses, rounds, bounds."""

import pytest

from hyperscale.membership.events import (
    DialRefused,
    MemberChanged,
    MemberDied,
    MemberState,
    SendDatagram,
    StartPushPull,
)
from hyperscale.membership.messages import (
    ClaimedState,
    Nack,
    Ping,
    PingRequest,
    Sender,
)
from hyperscale.membership.settings import MembershipConfig
from hyperscale.wire.roles import Role
from tests.membership.bench import Bench, claim

LOOK_S = MembershipConfig().final_probe_s


def seconds_until_dead(bench: Bench, node: str, *, answering: tuple[str, ...]) -> float:
    """From here until `node` is dead."""
    began_s = bench.now_s
    bench.until(lambda: bench.core.state_of(node) is MemberState.DEAD, answering=answering)
    return bench.now_s - began_s


# Suspicion.


@pytest.mark.parametrize(
    ("witnesses", "lasts_s"),
    [(("x",), 10.5), (("x", "y"), 8.25), (("x", "y", "z"), 6.934), (("x", "y", "z", "v"), 6.0)],
)
def test_each_witness_shortens_a_suspicion(witnesses: tuple[str, ...], lasts_s: float) -> None:
    bench = Bench()
    bench.meet(*"abcdef")
    bench.say(*(claim(ClaimedState.SUSPECT, "f", by=by) for by in witnesses))
    suspicion = bench.core.table.peers["f"].suspicion
    assert suspicion is not None
    assert suspicion.deadline_s - bench.now_s == pytest.approx(lasts_s, abs=0.001)


def test_repeated_suspicions_never_delay_the_verdict() -> None:
    bench = Bench()
    others = tuple("abcde")
    bench.meet(*others, "f")
    began_s = bench.now_s
    at = 0
    last_s: float | None = None
    while bench.core.state_of("f") is not MemberState.DEAD:
        bench.say(claim(ClaimedState.SUSPECT, "f", by=f"witness-{at % 20}"))
        at += 1
        suspicion = bench.core.table.peers["f"].suspicion
        if suspicion is not None:
            assert last_s is None or suspicion.deadline_s <= last_s
            last_s = suspicion.deadline_s
        bench.run(0.05, answering=others)
        assert bench.now_s - began_s < 12.0
    assert bench.now_s - began_s == pytest.approx(6.0 + LOOK_S, abs=0.1)


def test_an_accuser_counts_as_one_witness() -> None:
    bench = Bench()
    bench.meet(*"abcdef")
    for _ in range(100):
        bench.say(claim(ClaimedState.SUSPECT, "f", by="x"))
    suspicion = bench.core.table.peers["f"].suspicion
    assert suspicion is not None
    assert suspicion.deadline_s - bench.now_s == pytest.approx(10.5)


def test_a_cluster_of_two_needs_no_witness() -> None:
    bench = Bench()
    bench.meet("a")
    bench.until(lambda: bench.core.state_of("a") is MemberState.SUSPECT)
    assert seconds_until_dead(bench, "a", answering=()) == pytest.approx(6.0 + LOOK_S, abs=0.05)


def test_a_member_passes_its_states_in_order() -> None:
    bench = Bench()
    bench.meet("a", "b")
    seconds_until_dead(bench, "b", answering=("a",))
    changes = [(c.before, c.member.state) for c in bench.all(MemberChanged) if c.member.node == "b"]
    assert changes == [
        (MemberState.ALIVE, MemberState.SUSPECT),
        (MemberState.SUSPECT, MemberState.DEAD),
    ]


# Patience.


def test_the_probe_timeout_includes_the_round_trip_of_the_member() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.core.table.peers["b"].contact.rtt_s = 0.2
    bench.until(lambda: bench.pings("b"), answering=("a",))
    asked_s = bench.now_s
    bench.until(lambda: bench.all(PingRequest), answering=("a",))
    assert bench.now_s - asked_s == pytest.approx(0.5 + 3 * 0.2, abs=0.02)


def test_an_unhealthy_node_probes_less_often_and_waits_longer() -> None:
    well, unwell = Bench(), Bench()
    for bench in (well, unwell):
        bench.meet("a")
    unwell.core.awareness.nacks_missed(8)
    for bench in (well, unwell):
        bench.run(1.5)  # whatever was set before
        bench.effects.clear()
        bench.run(30.0, answering=("a",))
    assert len(unwell.pings()) < len(well.pings())
    unwell.core.awareness.nacks_missed(8)
    unwell.effects.clear()
    unwell.until(unwell.pings)
    asked_s = unwell.now_s
    unwell.until(lambda: len(unwell.pings()) == 2)
    assert unwell.now_s - asked_s > 1.2


def test_only_acks_improve_the_health_score() -> None:
    bench = Bench()
    bench.meet("a")
    bench.core.awareness.nacks_missed(4)
    bench.run(20.0, answering=("a",))
    assert bench.core.awareness.score == 0


# Confirming.


def test_a_leave_confirms_no_member() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(claim(ClaimedState.LEFT, "x"), by="x")
    assert bench.core.state_of("x") is None
    assert bench.all(MemberDied) == []


def test_a_nack_is_not_an_ack_of_the_target() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.all(PingRequest), answering=("a", "b"))
    request = bench.all(PingRequest)[0]
    for relay in ("a", "b"):
        bench.receive(relay, Nack(Sender(f"{relay}:1", Role.MANAGER), request.sequence))
    bench.run(0.6, answering=("a", "b"))
    assert bench.core.state_of("c") is MemberState.SUSPECT


def test_an_unknown_sender_is_pinged_and_its_ack_confirms_it() -> None:
    bench = Bench()
    bench.receive("x", Ping(Sender("x:1"), 1, "self"))
    assert bench.core.state_of("x") is MemberState.UNCONFIRMED
    bench.ack("x", bench.pings("x")[0])
    assert bench.core.state_of("x") is MemberState.ALIVE


# Dying.


def test_a_death_heard_many_times_is_reported_once() -> None:
    bench = Bench()
    bench.meet("a", "b")
    for _ in range(100):
        bench.say(claim(ClaimedState.REFUSED, "b"))
    bench.handle(DialRefused("b", 100, "b:1"))
    (died,) = bench.all(MemberDied)
    assert died.is_from_gossip


def test_this_nodes_own_verdict_does_not_count_as_gossip() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.handle(DialRefused("b", 100, "b:1"))
    bench.say(claim(ClaimedState.REFUSED, "b"))
    (died,) = bench.all(MemberDied)
    assert not died.is_from_gossip


# The dead.


def test_push_pulls_include_silent_members() -> None:
    bench = Bench()
    bench.meet("a", "b")
    seconds_until_dead(bench, "b", answering=("a",))
    bench.effects.clear()
    bench.run(60.0, answering=("a",))
    assert sum(1 for sync in bench.all(StartPushPull) if sync.node == "b") >= 3


def test_a_refused_member_is_pinged_from_time_to_time() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.handle(DialRefused("b", 100, "b:1"))
    bench.effects.clear()
    bench.run(120.0, answering=("a",))
    assert 3 <= len(bench.pings("b")) <= 5
    assert not [sync for sync in bench.all(StartPushPull) if sync.node == "b"]


def test_a_silent_member_found_refused_is_not_reported_dead_again() -> None:
    bench = Bench()
    bench.meet("a", "b")
    seconds_until_dead(bench, "b", answering=("a",))
    bench.handle(DialRefused("b", 100, "b:1"))
    bench.run(2.0, answering=("a",))
    assert len(bench.all(MemberDied)) == 1
    assert bench.told("b")[-1].claim is ClaimedState.REFUSED


# What is kept.


def test_nothing_is_sent_to_a_member_that_left() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(ClaimedState.LEFT, "b"), by="b")
    bench.effects.clear()
    bench.run(120.0, answering=("a",))
    assert not [e for e in bench.effects if isinstance(e, SendDatagram) and e.address == "b:1"]
