"""Asking, rule by rule: direct and relayed probes, nacks, sessions, and what answers them."""

import pytest

from hyperscale.membership.events import (
    DialAnswered,
    DialMember,
    MemberDied,
    MemberState,
    SendDatagram,
)
from hyperscale.membership.messages import Ack, ClaimedState, IndirectAck, Nack, PingRequest, Sender
from hyperscale.wire.roles import Role
from tests.membership.bench import Bench


def test_silence_leads_from_direct_to_indirect_probes_to_suspicion() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.pings("c"), answering=("a", "b"))
    assert bench.all(PingRequest) == []
    bench.until(lambda: bench.all(PingRequest), answering=("a", "b"))
    assert {request.target for request in bench.all(PingRequest)} == {"c"}
    assert [dial.node for dial in bench.all(DialMember)] == ["c"]
    assert bench.core.state_of("c") is MemberState.ALIVE
    bench.run(0.6, answering=("a", "b"))
    assert bench.core.state_of("c") is MemberState.SUSPECT


def test_an_indirect_ack_clears_the_suspect() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.all(PingRequest), answering=("a", "b"))
    request = bench.all(PingRequest)[0]
    bench.receive("a", IndirectAck(Sender("a:1", Role.MANAGER), request.sequence, "c", 100))
    bench.run(0.6, answering=("a", "b"))
    assert bench.core.state_of("c") is MemberState.ALIVE


@pytest.mark.parametrize(("nacking", "score"), [(2, 0), (1, 1), (0, 2)])
def test_each_missing_nack_costs_health(nacking: int, score: int) -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.all(PingRequest), answering=("a", "b"))
    request = bench.all(PingRequest)[0]
    for relay in ("a", "b")[:nacking]:
        bench.receive(relay, Nack(Sender(f"{relay}:1", Role.MANAGER), request.sequence))
    bench.until(lambda: bench.core.state_of("c") is MemberState.SUSPECT)
    assert bench.core.awareness.score == score


def test_the_death_of_the_only_peer_does_not_lower_local_health() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.run(30.0, answering=("a",))
    assert bench.core.state_of("b") is MemberState.DEAD
    assert bench.core.awareness.score <= 2


def test_a_relay_pings_the_target_and_answers_with_ack_or_nack() -> None:
    bench = Bench()
    bench.meet("a", "b")
    request = PingRequest(Sender("a:1", Role.MANAGER), 77, "b", "b:1")
    bench.receive("a", request)
    (ping,) = bench.pings("b")
    bench.ack("b", ping)
    (vouch,) = bench.all(IndirectAck)
    assert (vouch.sequence, vouch.target, vouch.incarnation) == (77, "b", 100)
    bench.receive("a", request)
    bench.run(0.4)
    (nack,) = bench.all(Nack)
    assert nack.sequence == 77


def test_an_ack_of_another_node_is_ignored() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.effects.clear()
    bench.run(1.0)
    for ping in bench.pings("b"):
        bench.receive("a", Ack(Sender("a:1", Role.MANAGER), ping.sequence))
    bench.run(3.0, answering=("a",))
    assert bench.core.state_of("b") is MemberState.SUSPECT


def test_an_answered_dial_clears_the_suspect() -> None:
    bench = Bench()
    bench.meet("a")
    bench.run(2.5)
    assert bench.core.state_of("a") is MemberState.SUSPECT
    bench.handle(DialAnswered("a", 100, "a:1", "a", 100))
    assert bench.core.state_of("a") is MemberState.ALIVE
    bench.handle(DialAnswered("a", 99, "a:1", "a", 99))
    bench.handle(DialAnswered("nobody", 1, "nobody:1", "nobody", 1))
    assert bench.core.state_of("a") is MemberState.ALIVE


def test_another_process_at_the_address_means_the_member_is_dead() -> None:
    for life in (1, 200):
        bench = Bench()
        bench.meet("a")
        bench.handle(DialAnswered("a", 100, "elsewhere:1", "b", life))
        assert bench.core.state_of("a") is MemberState.ALIVE
        bench.handle(DialAnswered("a", 100, "a:1", "b", life))
        assert bench.core.state_of("a") is MemberState.DEAD
        (died,) = bench.all(MemberDied)
        assert died.evidence is ClaimedState.REFUSED


def test_a_later_incarnation_at_the_address_ends_the_earlier_one() -> None:
    bench = Bench()
    bench.meet("a")
    bench.handle(DialAnswered("a", 100, "a:1", "a", 101))
    assert bench.core.state_of("a") is MemberState.DEAD


def test_an_earlier_incarnation_is_notified_of_the_later_one() -> None:
    bench = Bench()
    bench.meet("a")
    bench.effects.clear()
    bench.handle(DialAnswered("a", 100, "a:1", "a", 40))
    (sent,) = bench.all(SendDatagram)
    assert sent.address == "a:1"
    assert [(news.node, news.incarnation) for news in sent.datagram.updates] == [("a", 100)]
    assert bench.core.state_of("a") is MemberState.ALIVE
