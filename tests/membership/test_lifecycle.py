"""Judging, rule by rule: who is confirmed, suspected, refuted, dead, and who waits for whom."""

from hyperscale.membership.events import (
    DialRefused,
    DrainSocket,
    IncarnationRaised,
    MemberChanged,
    MemberDied,
    MemberDiscovered,
    MemberState,
    PushPullCompleted,
    PushPullRequested,
    ReplyToPushPull,
    StartPushPull,
)
from hyperscale.membership.messages import (
    Ack,
    ClaimedState,
    Gossip,
    MemberSnapshot,
    Ping,
    PushPull,
    PushPullReply,
    Sender,
)
from hyperscale.sansio.core import Tick
from hyperscale.wire.roles import Role
from tests.membership.bench import Bench, alive, claim

# Confirming.


def test_gossip_does_not_confirm_a_member_and_the_first_ack_does() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(alive("x"))
    assert bench.core.state_of("x") is MemberState.UNCONFIRMED
    bench.run(1.0, answering=("a",))
    ping = bench.pings("x")[0]
    bench.ack("x", ping)
    bench.ack("x", ping)
    assert bench.core.state_of("x") is MemberState.ALIVE
    changes = [c for c in bench.all(MemberChanged) if c.member.node == "x"]
    assert [(c.before, c.member.state) for c in changes] == [
        (None, MemberState.UNCONFIRMED),
        (MemberState.UNCONFIRMED, MemberState.ALIVE),
    ]


def test_inbound_datagrams_do_not_confirm_a_member_but_are_answered_with_a_ping() -> None:
    bench = Bench()
    bench.receive("x", Gossip(Sender("x:1")))
    assert bench.core.state_of("x") is MemberState.UNCONFIRMED
    assert [p.target for p in bench.pings()] == ["x"]


def test_an_unconfirmed_member_is_never_suspected_and_is_removed_after_a_while() -> None:
    for role, lasts_s in ((Role.MANAGER, 105.0), (Role.GATE, 145.0), (Role.WORKER, 180.0)):
        bench = Bench()
        bench.meet("a")
        bench.say(alive("x", role=role))
        bench.say(claim(ClaimedState.SUSPECT, "x"), claim(ClaimedState.SILENT, "x"))
        bench.run(lasts_s - 1.0, answering=("a",))
        assert bench.core.state_of("x") is MemberState.UNCONFIRMED
        assert bench.core.awareness.score == 0
        bench.run(2.0, answering=("a",))
        assert bench.core.state_of("x") is None
        assert bench.all(MemberDied) == []
        assert bench.core.counts["unconfirmed.removed"] == 1


def test_pings_to_a_silent_unconfirmed_member_grow_rarer() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(alive("x", role=Role.WORKER))
    bench.run(170.0, answering=("a",))
    assert 10 < len(bench.pings("x")) < 30


def test_an_exchange_over_a_stream_confirms_both_sides() -> None:
    asked = Bench()
    view = PushPull(
        Sender("a:1", Role.MANAGER), (MemberSnapshot(alive("a")), MemberSnapshot(alive("b")))
    )
    asked.handle(PushPullRequested("a", 100, view, "token"))
    assert asked.core.state_of("a") is MemberState.ALIVE
    assert asked.core.state_of("b") is MemberState.UNCONFIRMED
    (answer,) = asked.all(ReplyToPushPull)
    assert answer.token == "token"
    assert [m.update.node for m in answer.reply.members] == ["self"]
    asking = Bench()
    asking.handle(MemberDiscovered("a:1"))
    (sync,) = asking.all(StartPushPull)
    assert (sync.address, sync.node) == ("a:1", "")
    asking.handle(PushPullCompleted("a", 100, PushPullReply(view.sender, view.members)))
    assert asking.core.state_of("a") is MemberState.ALIVE


def test_the_table_is_bounded() -> None:
    bench = Bench(members_max=2)
    bench.meet("a", "b")
    bench.say(alive("c"))
    assert bench.core.state_of("c") is None
    bench.receive("d", Gossip(Sender("d:1")))
    assert bench.core.state_of("d") is None


# Suspecting and refuting.


def test_a_suspect_is_pinged_with_the_suspicion_first() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(ClaimedState.SUSPECT, "b", by="z"))
    bench.run(1.5, answering=("a",))
    ping = bench.pings("b")[0]
    assert [(n.node, n.claim) for n in ping.updates[:1]] == [("b", ClaimedState.SUSPECT)]


def test_only_a_higher_refutation_clears_a_suspicion_by_gossip() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(ClaimedState.SUSPECT, "b", 3))
    assert bench.core.state_of("b") is MemberState.SUSPECT
    bench.say(alive("b", refutation=3))
    assert bench.core.state_of("b") is MemberState.SUSPECT
    bench.say(alive("b", refutation=4))
    assert bench.core.state_of("b") is MemberState.ALIVE
    bench.say(claim(ClaimedState.SUSPECT, "b", 3))
    assert bench.core.state_of("b") is MemberState.ALIVE


def test_this_node_refutes_a_suspicion_and_lowers_its_health() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(claim(ClaimedState.SUSPECT, "self", 0, incarnation=500))
    assert bench.core.local.refutation == 1
    assert bench.core.awareness.score == 1
    bench.say(claim(ClaimedState.SUSPECT, "self", 0, incarnation=500))
    assert bench.core.local.refutation == 1
    bench.say(claim(ClaimedState.SILENT, "self", 6, incarnation=500))
    assert bench.core.local.refutation == 7
    assert [n.refutation for n in bench.told("self")][:2] == [1, 7]
    assert bench.all(MemberDied) == []


def test_suspicions_of_an_earlier_incarnation_are_ignored() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(claim(ClaimedState.SUSPECT, "self", 9, incarnation=499))
    bench.say(claim(ClaimedState.REFUSED, "self", 9, incarnation=499))
    assert (bench.core.local.incarnation, bench.core.local.refutation) == (500, 0)


def test_a_node_claimed_to_be_dead_takes_a_new_incarnation() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(claim(ClaimedState.REFUSED, "self", incarnation=500))
    assert bench.all(IncarnationRaised) == [
        IncarnationRaised(501, "this node was claimed to be refused")
    ]
    assert bench.core.local.incarnation == 501


def test_a_node_whose_clock_went_back_takes_a_later_incarnation() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(alive("self", incarnation=9_000))
    assert bench.core.local.incarnation == 9_001
    # Two processes of one name must not chase each other without end.
    bench.say(alive("self", incarnation=10_000))
    assert bench.core.local.incarnation == 9_001


def test_a_suspicion_ends_with_final_probes_and_then_death() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(ClaimedState.SUSPECT, "b", by="z"))
    bench.effects.clear()
    while bench.core.state_of("b") is MemberState.SUSPECT:
        bench.run(0.1, answering=("a",))
    (died,) = bench.all(MemberDied)
    assert (died.member.node, died.evidence) == ("b", ClaimedState.SILENT)
    assert not died.is_from_gossip
    assert 6.0 <= bench.now_s - died.member.since_s + 7.5 < 12.5
    assert len(bench.pings("b")) >= bench.core.context.config.final_probe_pings


def test_gossip_of_a_silent_member_only_makes_it_suspect() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.say(claim(ClaimedState.SILENT, "b"))
    assert bench.core.state_of("b") is MemberState.SUSPECT
    bench.run(20.0, answering=("a", "b", "c"))
    assert bench.core.state_of("b") is MemberState.ALIVE
    assert bench.all(MemberDied) == []


def test_a_node_that_was_suspected_push_pulls_soon() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.until(lambda: bench.all(StartPushPull), answering=("a", "b"))
    bench.effects.clear()
    bench.say(claim(ClaimedState.SUSPECT, "self", incarnation=500))
    bench.run(0.6, answering=("a", "b"))
    assert len(bench.all(StartPushPull)) == 1


# Dying.


def test_a_refused_dial_marks_the_member_dead_once() -> None:
    bench = Bench()
    bench.meet("a", "b")
    for _ in range(3):
        bench.handle(DialRefused("b", 100, "b:1"))
    (died,) = bench.all(MemberDied)
    assert (died.member.node, died.evidence, died.is_from_gossip) == (
        "b",
        ClaimedState.REFUSED,
        False,
    )
    bench.run(1.0, answering=("a",))
    assert {n.claim for n in bench.told("b")} == {ClaimedState.REFUSED}


def test_a_refused_dial_of_another_incarnation_or_address_is_ignored() -> None:
    bench = Bench()
    bench.meet("a")
    bench.handle(DialRefused("a", 99, "a:1"))
    bench.handle(DialRefused("a", 100, "elsewhere:1"))
    bench.handle(DialRefused("nobody", 100, "nobody:1"))
    assert bench.core.state_of("a") is MemberState.ALIVE


def test_gossip_of_a_refused_member_marks_it_dead_and_is_passed_on() -> None:
    bench = Bench()
    bench.meet("a", "b")
    for _ in range(100):
        bench.say(claim(ClaimedState.REFUSED, "b"))
    (died,) = bench.all(MemberDied)
    assert died.is_from_gossip
    assert bench.core.counts["member.died"] == 1
    bench.run(1.0, answering=("a",))
    assert bench.told("b")


def test_updates_of_an_earlier_incarnation_are_ignored() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(ClaimedState.REFUSED, "b", incarnation=99), alive("b", incarnation=99))
    assert bench.core.state_of("b") is MemberState.ALIVE


def test_the_death_of_an_unknown_node_is_ignored() -> None:
    bench = Bench()
    bench.meet("a")
    bench.say(
        claim(ClaimedState.REFUSED, "x"),
        claim(ClaimedState.SILENT, "y"),
        claim(ClaimedState.LEFT, "z"),
    )
    assert bench.all(MemberDied) == []
    assert {m.node for m in bench.core.members()} == {"self", "a"}


def test_a_refused_incarnation_stays_dead_and_other_claims_are_corrected() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.handle(DialRefused("b", 100, "b:1"))
    bench.run(20.0, answering=("a",))
    bench.effects.clear()
    bench.say(alive("b", refutation=50))
    assert bench.core.state_of("b") is MemberState.DEAD
    bench.run(1.0, answering=("a",))
    assert {n.claim for n in bench.told("b")} == {ClaimedState.REFUSED}


def test_a_restarted_node_dies_once_and_is_confirmed_again() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(alive("b", incarnation=200))
    (died,) = bench.all(MemberDied)
    assert (died.member.incarnation, died.evidence) == (100, ClaimedState.REFUSED)
    assert bench.core.state_of("b") is MemberState.UNCONFIRMED
    bench.run(1.0, answering=("a",))
    bench.ack("b", bench.pings("b")[-1], incarnation=200)
    assert bench.core.state_of("b") is MemberState.ALIVE


def test_a_newer_process_at_the_address_of_a_member_marks_it_dead() -> None:
    bench = Bench()
    bench.meet("a")
    sender = Sender("a:1", Role.MANAGER)
    bench.receive("new", Gossip(sender), incarnation=300)
    bench.receive("new", Ack(sender, bench.pings("new")[-1].sequence), incarnation=300)
    assert bench.core.state_of("new") is MemberState.ALIVE
    assert bench.core.state_of("a") is MemberState.DEAD
    (died,) = bench.all(MemberDied)
    assert died.evidence is ClaimedState.REFUSED


def test_a_silent_member_that_returns_refutes_and_push_pulls() -> None:
    bench = Bench()
    bench.meet("a", "b")
    while bench.core.state_of("b") is not MemberState.DEAD:
        bench.run(1.0, answering=("a",))
    bench.effects.clear()
    bench.receive("b", Ping(Sender("b:1", Role.MANAGER), 5, "self"))
    (ack,) = bench.all(Ack)
    assert [(n.node, n.claim) for n in ack.updates[:1]] == [("b", ClaimedState.SILENT)]
    assert [s.node for s in bench.all(StartPushPull)] == ["b"]
    assert bench.core.state_of("b") is MemberState.DEAD
    bench.receive("b", Gossip(Sender("b:1", Role.MANAGER, 1)))
    assert bench.core.state_of("b") is MemberState.ALIVE
    assert bench.all(MemberDied) == []


def test_a_claim_that_a_silent_member_is_alive_is_answered_with_the_verdict() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.core.state_of("b") is MemberState.DEAD, answering=("a", "c"))
    bench.run(20.0, answering=("a", "c"))
    bench.effects.clear()
    bench.say(alive("b"))
    bench.run(1.0, answering=("a", "c"))
    assert {(n.claim, n.by) for n in bench.told("b")} == {(ClaimedState.SILENT, "self")}


def test_silent_members_are_pinged_again_and_removed_after_a_day() -> None:
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
    assert bench.core.counts["tombstone.removed"] == 2


# Stalls.


def test_after_a_stall_the_socket_is_read_before_any_verdict() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(ClaimedState.SUSPECT, "b", by="z"))
    bench.run(0.2, answering=("a",))
    due_s = bench.core.table.peers["b"].suspicion.deadline_s
    bench.now_s = due_s + 4.0  # stood still past every deadline
    assert any(isinstance(effect, DrainSocket) for effect in bench.handle(Tick()))
    assert bench.core.state_of("b") is MemberState.SUSPECT
    assert bench.core.table.peers["b"].suspicion.final_probes == 0
    bench.receive("a", Gossip(Sender("a:1", Role.MANAGER), (alive("b", refutation=1),)))
    assert bench.core.state_of("b") is MemberState.ALIVE
    assert bench.core.counts["node.stalled"] == 1
    assert bench.core.awareness.score > 0


def test_a_stall_counts_once_however_many_datagrams_waited() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.now_s += 10.0
    for _ in range(50):
        bench.say(alive("b"))
    assert bench.core.counts["node.stalled"] == 1


def test_small_delays_are_no_stall() -> None:
    bench = Bench()
    bench.meet("a")
    for _ in range(20):
        bench.now_s = bench.core.wake_at_s() + 0.3
        bench.run(0.0, answering=("a",))
    assert "node.stalled" not in bench.core.counts
