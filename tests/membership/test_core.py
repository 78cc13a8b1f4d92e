"""The membership machine, rule by rule."""

import msgspec
import pytest

from hyperscale.errors import InvariantError
from hyperscale.membership.events import (
    Answered,
    Changed,
    Contact,
    Describe,
    Dial,
    Died,
    Drain,
    Gone,
    Leave,
    Move,
    Reborn,
    Refused,
    Send,
    State,
    Sync,
    SyncAnswer,
    SyncAsked,
    Synced,
    SyncFailed,
    Tick,
    Unwatch,
    Watch,
)
from hyperscale.membership.messages import (
    METADATA_BYTES_MAX,
    Ack,
    Claim,
    Gossip,
    Nack,
    Ping,
    PingRequest,
    Record,
    Sender,
    View,
    Vouch,
)
from hyperscale.wire.roles import Role
from tests.membership.bench import Bench, alive, claim

# Confirming.


def test_hearsay_confirms_nobody_and_the_first_ack_does_once() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(alive("x"))
    assert bench.core.state_of("x") is State.UNCONFIRMED
    bench.run(1.0, answering=("a",))
    ping = bench.pings("x")[0]
    bench.ack("x", ping)
    bench.ack("x", ping)
    assert bench.core.state_of("x") is State.ALIVE
    changes = [c for c in bench.all(Changed) if c.member.node == "x"]
    assert [(c.before, c.member.state) for c in changes] == [
        (None, State.UNCONFIRMED),
        (State.UNCONFIRMED, State.ALIVE),
    ]


def test_inbound_traffic_alone_confirms_nobody_but_is_answered_with_a_ping() -> None:
    bench = Bench()
    bench.receive("x", Gossip(Sender("x:1")))
    assert bench.core.state_of("x") is State.UNCONFIRMED
    assert [p.target for p in bench.pings()] == ["x"]


def test_an_unconfirmed_peer_is_never_judged_and_forgotten_after_its_roles_time() -> None:
    for role, lasts_s in ((Role.MANAGER, 105.0), (Role.GATE, 145.0), (Role.WORKER, 180.0)):
        bench = Bench()
        bench.meet("a")
        bench.say(alive("x", role=role))
        bench.say(claim(Claim.SUSPECT, "x"), claim(Claim.SILENT, "x"))
        bench.run(lasts_s - 1.0, answering=("a",))
        assert bench.core.state_of("x") is State.UNCONFIRMED
        assert bench.core.awareness.score == 0
        bench.run(2.0, answering=("a",))
        assert bench.core.state_of("x") is None
        assert bench.all(Died) == []
        assert bench.core.audit.counts["unconfirmed.removed"] == 1


def test_greetings_of_a_silent_stranger_grow_rarer() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(alive("x", role=Role.WORKER))
    bench.run(170.0, answering=("a",))
    assert 10 < len(bench.pings("x")) < 30


def test_an_exchange_over_a_stream_confirms_both_sides() -> None:
    asked = Bench()
    view = View(Sender("a:1", Role.MANAGER), (Record(alive("a")), Record(alive("b"))))
    asked.handle(SyncAsked("a", 100, view, "token"))
    assert asked.core.state_of("a") is State.ALIVE
    assert asked.core.state_of("b") is State.UNCONFIRMED
    (answer,) = asked.all(SyncAnswer)
    assert answer.token == "token"
    assert [r.news.node for r in answer.view.records] == ["self"]
    asking = Bench()
    asking.handle(Contact("a:1"))
    (sync,) = asking.all(Sync)
    assert (sync.address, sync.node, sync.view.is_join) == ("a:1", "", True)
    asking.handle(Synced("a", 100, view))
    assert asking.core.state_of("a") is State.ALIVE


def test_the_table_is_bounded() -> None:
    bench = Bench(members_max=2)
    bench.meet("a", "b")
    bench.say(alive("c"))
    assert bench.core.state_of("c") is None
    bench.receive("d", Gossip(Sender("d:1")))
    assert bench.core.state_of("d") is None


# Probing.


def test_silence_leads_from_direct_to_indirect_probes_to_suspicion() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.pings("c"), answering=("a", "b"))
    assert bench.all(PingRequest) == []
    bench.until(lambda: bench.all(PingRequest), answering=("a", "b"))
    assert {request.target for request in bench.all(PingRequest)} == {"c"}
    assert [dial.node for dial in bench.all(Dial)] == ["c"]
    assert bench.core.state_of("c") is State.ALIVE
    bench.run(0.6, answering=("a", "b"))
    assert bench.core.state_of("c") is State.SUSPECT


def test_a_vouching_relay_clears_its_target() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.all(PingRequest), answering=("a", "b"))
    request = bench.all(PingRequest)[0]
    bench.receive("a", Vouch(Sender("a:1", Role.MANAGER), request.sequence, "c", 100))
    bench.run(0.6, answering=("a", "b"))
    assert bench.core.state_of("c") is State.ALIVE


@pytest.mark.parametrize(("nacking", "score"), [(2, 0), (1, 1), (0, 2)])
def test_each_missing_nack_costs_health(nacking: int, score: int) -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.all(PingRequest), answering=("a", "b"))
    request = bench.all(PingRequest)[0]
    for relay in ("a", "b")[:nacking]:
        bench.receive(relay, Nack(Sender(f"{relay}:1", Role.MANAGER), request.sequence))
    bench.until(lambda: bench.core.state_of("c") is State.SUSPECT)
    assert bench.core.awareness.score == score


def test_a_dead_half_of_two_peers_does_not_cost_the_survivor_its_health() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.run(30.0, answering=("a",))
    assert bench.core.state_of("b") is State.DEAD
    assert bench.core.awareness.score <= 2


def test_a_relay_pings_for_the_asker_and_says_yes_or_no() -> None:
    bench = Bench()
    bench.meet("a", "b")
    request = PingRequest(Sender("a:1", Role.MANAGER), 77, "b", "b:1")
    bench.receive("a", request)
    (ping,) = bench.pings("b")
    bench.ack("b", ping)
    (vouch,) = bench.all(Vouch)
    assert (vouch.sequence, vouch.target, vouch.incarnation) == (77, "b", 100)
    bench.receive("a", request)
    bench.run(0.4)
    (nack,) = bench.all(Nack)
    assert nack.sequence == 77


def test_an_ack_of_the_wrong_node_answers_nothing() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.effects.clear()
    bench.run(1.0)
    for ping in bench.pings("b"):
        bench.receive("a", Ack(Sender("a:1", Role.MANAGER), ping.sequence))
    bench.run(3.0, answering=("a",))
    assert bench.core.state_of("b") is State.SUSPECT


def test_a_session_that_answers_spares_its_node() -> None:
    bench = Bench()
    bench.meet("a")
    bench.run(2.5)
    assert bench.core.state_of("a") is State.SUSPECT
    bench.handle(Answered("a", 100, "a:1", "a", 100))
    assert bench.core.state_of("a") is State.ALIVE
    bench.handle(Answered("a", 99, "a:1", "a", 99))
    bench.handle(Answered("nobody", 1, "nobody:1", "nobody", 1))
    assert bench.core.state_of("a") is State.ALIVE


def test_another_process_at_its_address_means_it_is_gone_whatever_the_clocks_say() -> None:
    for life in (1, 200):
        bench = Bench()
        bench.meet("a")
        bench.handle(Answered("a", 100, "elsewhere:1", "b", life))
        assert bench.core.state_of("a") is State.ALIVE
        bench.handle(Answered("a", 100, "a:1", "b", life))
        assert bench.core.state_of("a") is State.DEAD
        (died,) = bench.all(Died)
        assert died.evidence is Claim.REFUSED


def test_a_later_life_at_its_address_ends_the_earlier_one() -> None:
    bench = Bench()
    bench.meet("a")
    bench.handle(Answered("a", 100, "a:1", "a", 101))
    assert bench.core.state_of("a") is State.DEAD


def test_an_earlier_life_hears_at_once_which_one_is_known() -> None:
    bench = Bench()
    bench.meet("a")
    bench.effects.clear()
    bench.handle(Answered("a", 100, "a:1", "a", 40))
    (sent,) = bench.all(Send)
    assert sent.address == "a:1"
    assert [(news.node, news.incarnation) for news in sent.datagram.news] == [("a", 100)]
    assert bench.core.state_of("a") is State.ALIVE


# Suspecting and refuting.


def test_an_accusation_is_told_to_its_subject_first() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(Claim.SUSPECT, "b", by="z"))
    bench.run(1.5, answering=("a",))
    ping = bench.pings("b")[0]
    assert [(n.node, n.claim) for n in ping.news[:1]] == [("b", Claim.SUSPECT)]


def test_only_a_higher_refutation_clears_by_hearsay() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(Claim.SUSPECT, "b", 3))
    assert bench.core.state_of("b") is State.SUSPECT
    bench.say(alive("b", refutation=3))
    assert bench.core.state_of("b") is State.SUSPECT
    bench.say(alive("b", refutation=4))
    assert bench.core.state_of("b") is State.ALIVE
    bench.say(claim(Claim.SUSPECT, "b", 3))
    assert bench.core.state_of("b") is State.ALIVE


def test_this_node_refutes_what_is_said_of_it_and_feels_less_well() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(claim(Claim.SUSPECT, "self", 0, incarnation=500))
    assert bench.core.station.refutation == 1
    assert bench.core.awareness.score == 1
    bench.say(claim(Claim.SUSPECT, "self", 0, incarnation=500))
    assert bench.core.station.refutation == 1
    bench.say(claim(Claim.SILENT, "self", 6, incarnation=500))
    assert bench.core.station.refutation == 7
    assert [n.refutation for n in bench.told("self")][:2] == [1, 7]
    assert bench.all(Died) == []


def test_accusations_of_an_earlier_life_are_nothing_to_this_one() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(claim(Claim.SUSPECT, "self", 9, incarnation=499))
    bench.say(claim(Claim.REFUSED, "self", 9, incarnation=499))
    assert (bench.core.incarnation, bench.core.station.refutation) == (500, 0)


def test_who_is_said_to_be_gone_goes_on_as_a_new_incarnation() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(claim(Claim.REFUSED, "self", incarnation=500))
    assert bench.all(Reborn) == [Reborn(501)]
    assert bench.core.incarnation == 501


def test_a_clock_that_went_back_is_overtaken() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(alive("self", incarnation=9_000))
    assert bench.core.incarnation == 9_001
    # Two processes of one name must not chase each other without end.
    bench.say(alive("self", incarnation=10_000))
    assert bench.core.incarnation == 9_001


def test_an_unanswered_suspicion_ends_in_a_last_look_and_then_in_death() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(Claim.SUSPECT, "b", by="z"))
    bench.effects.clear()
    while bench.core.state_of("b") is State.SUSPECT:
        bench.run(0.1, answering=("a",))
    (died,) = bench.all(Died)
    assert (died.member.node, died.evidence) == ("b", Claim.SILENT)
    assert not died.is_from_gossip
    assert 6.0 <= bench.now_s - died.member.since_s + 7.5 < 12.5
    assert len(bench.pings("b")) >= bench.core._config.last_look_pings


def test_hearsay_of_silence_is_a_suspicion_and_never_more() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.say(claim(Claim.SILENT, "b"))
    assert bench.core.state_of("b") is State.SUSPECT
    bench.run(20.0, answering=("a", "b", "c"))
    assert bench.core.state_of("b") is State.ALIVE
    assert bench.all(Died) == []


# Dying.


def test_refused_evidence_kills_at_once_and_once() -> None:
    bench = Bench()
    bench.meet("a", "b")
    for _ in range(3):
        bench.handle(Refused("b", 100, "b:1"))
    (died,) = bench.all(Died)
    assert (died.member.node, died.evidence, died.is_from_gossip) == ("b", Claim.REFUSED, False)
    bench.run(1.0, answering=("a",))
    assert {n.claim for n in bench.told("b")} == {Claim.REFUSED}


def test_refused_evidence_of_another_life_or_an_old_address_is_none() -> None:
    bench = Bench()
    bench.meet("a")
    bench.handle(Refused("a", 99, "a:1"))
    bench.handle(Refused("a", 100, "elsewhere:1"))
    bench.handle(Refused("nobody", 100, "nobody:1"))
    assert bench.core.state_of("a") is State.ALIVE


def test_hearsay_of_a_gone_process_kills_and_is_told_on() -> None:
    bench = Bench()
    bench.meet("a", "b")
    for _ in range(100):
        bench.say(claim(Claim.REFUSED, "b"))
    (died,) = bench.all(Died)
    assert died.is_from_gossip
    assert bench.core.audit.counts["member.died"] == 1
    bench.run(1.0, answering=("a",))
    assert bench.told("b")


def test_news_of_a_stale_life_changes_nothing() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(Claim.REFUSED, "b", incarnation=99), alive("b", incarnation=99))
    assert bench.core.state_of("b") is State.ALIVE


def test_a_death_of_someone_unknown_is_nobodys() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(claim(Claim.REFUSED, "x"), claim(Claim.SILENT, "y"), claim(Claim.LEFT, "z"))
    assert bench.all(Died) == []
    assert {m.node for m in bench.core.members()} == {"self", "a"}


def test_a_gone_life_stays_gone_and_whoever_speaks_of_it_is_corrected() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.handle(Refused("b", 100, "b:1"))
    bench.run(20.0, answering=("a",))
    bench.effects.clear()
    bench.say(alive("b", refutation=50))
    assert bench.core.state_of("b") is State.DEAD
    bench.run(1.0, answering=("a",))
    assert {n.claim for n in bench.told("b")} == {Claim.REFUSED}


def test_a_restarted_node_dies_once_and_is_confirmed_anew() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(alive("b", incarnation=200))
    (died,) = bench.all(Died)
    assert (died.member.incarnation, died.evidence) == (100, Claim.REFUSED)
    assert bench.core.state_of("b") is State.UNCONFIRMED
    bench.run(1.0, answering=("a",))
    bench.ack("b", bench.pings("b")[-1], incarnation=200)
    assert bench.core.state_of("b") is State.ALIVE


def test_another_process_at_its_address_means_a_node_is_gone() -> None:
    bench = Bench()
    bench.meet("a")
    sender = Sender("a:1", Role.MANAGER)
    bench.receive("new", Gossip(sender), incarnation=300)
    bench.receive("new", Ack(sender, bench.pings("new")[-1].sequence), incarnation=300)
    assert bench.core.state_of("new") is State.ALIVE
    assert bench.core.state_of("a") is State.DEAD
    (died,) = bench.all(Died)
    assert died.evidence is Claim.REFUSED


def test_a_silent_member_that_returns_refutes_and_is_asked_for_what_was_missed() -> None:
    bench = Bench()
    bench.meet("a", "b")
    while bench.core.state_of("b") is not State.DEAD:
        bench.run(1.0, answering=("a",))
    bench.effects.clear()
    bench.receive("b", Ping(Sender("b:1", Role.MANAGER), 5, "self"))
    (ack,) = bench.all(Ack)
    assert [(n.node, n.claim) for n in ack.news[:1]] == [("b", Claim.SILENT)]
    assert [s.node for s in bench.all(Sync)] == ["b"]
    assert bench.core.state_of("b") is State.DEAD
    bench.receive("b", Gossip(Sender("b:1", Role.MANAGER, 1)))
    assert bench.core.state_of("b") is State.ALIVE
    assert bench.all(Died) == []


def test_the_silent_are_asked_again_and_again_and_forgotten_after_a_day() -> None:
    bench = Bench(tombstone_s=600.0)
    bench.meet("a", "b", "c")
    bench.run(15.0, answering=("a",))
    bench.effects.clear()
    bench.run(20.0, answering=("a",))
    asked = [p.target for p in bench.pings() if p.target != "a"]
    assert asked.count("b") >= 3
    assert asked.count("c") >= 3
    bench.run(600.0, answering=("a",))
    assert bench.core.state_of("b") is None
    assert bench.core.audit.counts["tombstone.removed"] == 2


# Stalls.


def test_after_a_stall_nobody_is_judged_before_the_socket_is_read() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(Claim.SUSPECT, "b", by="z"))
    bench.run(0.2, answering=("a",))
    due_s = bench.core.roster.peers["b"].suspicion.deadline_s
    bench.now_s = due_s + 4.0  # stood still past every deadline
    assert any(isinstance(effect, Drain) for effect in bench.handle(Tick()))
    assert bench.core.state_of("b") is State.SUSPECT
    assert bench.core.roster.peers["b"].suspicion.looks == 0
    bench.receive("a", Gossip(Sender("a:1", Role.MANAGER), (alive("b", refutation=1),)))
    assert bench.core.state_of("b") is State.ALIVE
    assert bench.core.audit.counts["node.stalled"] == 1
    assert bench.core.awareness.score > 0


def test_a_stall_is_counted_once_however_many_packets_waited() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.now_s += 10.0
    for _ in range(50):
        bench.say(alive("b"))
    assert bench.core.audit.counts["node.stalled"] == 1


def test_small_delays_are_no_stall() -> None:
    bench = Bench()
    bench.meet("a")
    for _ in range(20):
        bench.now_s = bench.core.wake_at_s() + 0.3
        bench.run(0.0, answering=("a",))
    assert "node.stalled" not in bench.core.audit.counts


# Leaving, moving, describing.


def test_leaving_is_told_widely_and_never_refuted() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.handle(Leave())
    bench.handle(Leave())
    assert {n.claim for n in bench.told("self")} == {Claim.LEFT}
    bench.say(claim(Claim.SUSPECT, "self", 5, incarnation=500))
    assert bench.core.station.refutation == 0
    assert bench.all(Gone) == []
    bench.run(1.1)
    assert bench.all(Gone) == [Gone()]
    bench.receive("a", Ping(Sender("a:1", Role.MANAGER), 9, "self"))
    assert bench.all(Ack)[-1].news[0].claim is Claim.LEFT


def test_who_leaves_is_gone_without_having_died() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(Claim.LEFT, "b"), by="b")
    assert bench.core.state_of("b") is State.LEFT
    assert bench.all(Died) == []
    bench.handle(Refused("b", 100, "b:1"))
    assert bench.core.state_of("b") is State.LEFT
    assert bench.core.audit.counts["member.left"] == 1


def test_a_known_node_at_a_new_address_is_followed_there() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(msgspec.structs.replace(alive("b", refutation=1), address="new:2"))
    assert bench.core.roster.peers["b"].address == "new:2"
    assert bench.core.state_of("b") is State.ALIVE
    bench.run(3.0, answering=("a", "b"))
    sent = [e for e in bench.effects if isinstance(e, Send) and isinstance(e.datagram, Ping)]
    assert {e.address for e in sent if e.datagram.target == "b"} == {"new:2"}
    assert bench.core.audit.counts["member.moved"] == 1


def test_a_move_of_this_node_outranks_what_was_known() -> None:
    bench = Bench()
    bench.meet("a")
    bench.handle(Move("elsewhere:7", 8))
    bench.run(1.0, answering=("a",))
    news = bench.told("self")[-1]
    assert (news.address, news.stream_port, news.refutation) == ("elsewhere:7", 8, 1)
    assert bench.core.members()[0].stream_address == "elsewhere:8"


def test_metadata_rides_on_acks_until_it_is_known() -> None:
    bench = Bench()
    bench.meet("a")
    bench.handle(Describe(b"cores=8"))
    bench.handle(Describe(b"cores=8"))
    for seen, expected in ((0, (1, b"cores=8")), (1, (0, b""))):
        bench.receive("a", Ping(Sender("a:1", Role.MANAGER), 1, "self", seen))
        ack = bench.all(Ack)[-1]
        assert (ack.metadata_version, ack.metadata) == expected
    with pytest.raises(InvariantError, match="513 bytes, at most 512"):
        bench.handle(Describe(b"x" * (METADATA_BYTES_MAX + 1)))


def test_only_newer_metadata_is_taken() -> None:
    bench = Bench()
    bench.meet("a")
    for version, metadata in ((2, b"two"), (1, b"one"), (3, b"three")):
        bench.run(1.1)
        bench.ack("a", bench.pings("a")[-1], metadata_version=version, metadata=metadata)
    assert bench.core.roster.peers["a"].metadata == b"three"
    seen = [c.member.metadata for c in bench.all(Changed) if c.member.state is c.before]
    assert seen == [b"two", b"three"]


def test_metadata_of_a_new_life_starts_over() -> None:
    bench = Bench()
    bench.meet("a")
    bench.run(1.1)
    bench.ack("a", bench.pings("a")[-1], metadata_version=9, metadata=b"old life")
    view = View(Sender("a:1", Role.MANAGER), (Record(alive("a", incarnation=200), 1, b"new"),))
    bench.handle(Synced("a", 200, view))
    assert bench.core.roster.peers["a"].metadata == b"new"


# Watching, exchanging.


def test_sessions_are_kept_with_whom_the_ring_gives_and_roles_allow() -> None:
    manager = Bench()
    manager.meet("a", "w1", "w2")
    manager.run(1.5, answering=("a", "w1", "w2"))
    watched = set(manager.core._watching)
    assert watched == {"a", "w1", "w2"}
    worker = Bench(role=Role.WORKER)
    worker.meet("a", "w1", "w2")
    assert set(worker.core._watching) <= {"a"}


def test_a_session_is_given_up_with_its_node() -> None:
    bench = Bench()
    bench.say(alive("a"), by="a")
    bench.ack("a", bench.pings("a")[-1])
    bench.run(1.5, answering=("a",))
    assert [w.node for w in bench.all(Watch)] == ["a"]
    bench.handle(Refused("a", 100, "a:1"))
    bench.run(1.5)
    assert [u.node for u in bench.all(Unwatch)] == ["a"]


def test_views_are_exchanged_now_and_then_and_again_after_a_failure() -> None:
    bench = Bench()
    bench.meet("a")
    bench.run(40.0, answering=("a",))
    (first,) = bench.all(Sync)[:1]
    assert first.node == "a"
    count = len(bench.all(Sync))
    bench.handle(SyncFailed("a"))
    bench.run(2.5, answering=("a",))
    assert len(bench.all(Sync)) == count + 1


def test_a_view_holds_the_dead_and_no_rumours() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.handle(Refused("b", 100, "b:1"))
    bench.say(alive("rumour"))
    bench.handle(SyncAsked("a", 100, View(Sender("a:1", Role.MANAGER)), "token"))
    records = {r.news.node: r.news.claim for r in bench.all(SyncAnswer)[-1].view.records}
    assert records == {"self": Claim.ALIVE, "a": Claim.ALIVE, "b": Claim.REFUSED}


def test_own_datagrams_are_ignored() -> None:
    bench = Bench()
    bench.meet("a")
    assert bench.receive("self", Ping(Sender("self:1"), 1, "self"), incarnation=500) == []


def test_a_datagram_of_a_past_life_is_answered_with_the_life_that_is_known() -> None:
    bench = Bench()
    bench.meet("a")
    late = Ping(Sender("a:2"), 1, "self", news=(claim(Claim.LEFT, "a"),))
    (sent,) = bench.receive("a", late, incarnation=99)
    assert isinstance(sent, Send)
    assert (sent.address, type(sent.datagram)) == ("a:2", Gossip)
    assert [(news.node, news.incarnation) for news in sent.datagram.news] == [("a", 100)]
    assert bench.receive("a", late, incarnation=99) == []  # not for each of them
    assert bench.core.state_of("a") is State.ALIVE
