"""The membership machine, rule by rule: leaving, moving, describing, watching, exchanging."""

import msgspec
import pytest

from hyperscale.errors import InvariantError
from hyperscale.membership.events import (
    AddressChanged,
    DialRefused,
    DropSession,
    KeepSession,
    LeaveCompleted,
    LeaveRequested,
    MemberChanged,
    MemberDied,
    MemberState,
    MetadataChanged,
    PushPullCompleted,
    PushPullFailed,
    PushPullRequested,
    ReplyToPushPull,
    SendDatagram,
    StartPushPull,
)
from hyperscale.membership.messages import (
    METADATA_BYTES_MAX,
    Ack,
    ClaimedState,
    Gossip,
    MemberSnapshot,
    Ping,
    PushPull,
    PushPullReply,
    Sender,
)
from hyperscale.wire.roles import Role
from tests.membership.bench import Bench, alive, claim

# Leaving, moving, describing.


def test_a_leave_is_gossiped_widely_and_never_refuted() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.handle(LeaveRequested())
    bench.handle(LeaveRequested())
    assert {n.claim for n in bench.told("self")} == {ClaimedState.LEFT}
    bench.say(claim(ClaimedState.SUSPECT, "self", 5, incarnation=500))
    assert bench.core.local.refutation == 0
    assert bench.all(LeaveCompleted) == []
    bench.run(1.1)
    assert bench.all(LeaveCompleted) == [LeaveCompleted()]
    bench.receive("a", Ping(Sender("a:1", Role.MANAGER), 9, "self"))
    assert bench.all(Ack)[-1].updates[0].claim is ClaimedState.LEFT


def test_a_member_that_leaves_is_not_reported_dead() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(claim(ClaimedState.LEFT, "b"), by="b")
    assert bench.core.state_of("b") is MemberState.LEFT
    assert bench.all(MemberDied) == []
    bench.handle(DialRefused("b", 100, "b:1"))
    assert bench.core.state_of("b") is MemberState.LEFT
    assert bench.core.counts["member.left"] == 1


def test_a_known_node_at_a_new_address_is_followed_there() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.say(msgspec.structs.replace(alive("b", refutation=1), address="new:2"))
    assert bench.core.table.peers["b"].address == "new:2"
    assert bench.core.state_of("b") is MemberState.ALIVE
    bench.run(3.0, answering=("a", "b"))
    sent = [
        e for e in bench.effects if isinstance(e, SendDatagram) and isinstance(e.datagram, Ping)
    ]
    assert {e.address for e in sent if e.datagram.target == "b"} == {"new:2"}
    assert bench.core.counts["member.moved"] == 1


def test_a_new_address_of_this_node_outranks_the_old_one() -> None:
    bench = Bench()
    bench.meet("a")
    bench.handle(AddressChanged("elsewhere:7", 8))
    bench.run(1.0, answering=("a",))
    news = bench.told("self")[-1]
    assert (news.address, news.stream_port, news.refutation) == ("elsewhere:7", 8, 1)
    assert bench.core.members()[0].stream_address == "elsewhere:8"


def test_metadata_is_sent_on_acks_until_the_receiver_has_it() -> None:
    bench = Bench()
    bench.meet("a")
    bench.handle(MetadataChanged(b"cores=8"))
    bench.handle(MetadataChanged(b"cores=8"))
    for seen, expected in ((0, (1, b"cores=8")), (1, (0, b""))):
        bench.receive("a", Ping(Sender("a:1", Role.MANAGER), 1, "self", seen))
        ack = bench.all(Ack)[-1]
        assert (ack.metadata_version, ack.metadata) == expected
    with pytest.raises(InvariantError, match="513 bytes, at most 512"):
        bench.handle(MetadataChanged(b"x" * (METADATA_BYTES_MAX + 1)))


def test_only_newer_metadata_is_taken() -> None:
    bench = Bench()
    bench.meet("a")
    for version, metadata in ((2, b"two"), (1, b"one"), (3, b"three")):
        bench.run(1.1)
        bench.ack("a", bench.pings("a")[-1], metadata_version=version, metadata=metadata)
    assert bench.core.table.peers["a"].metadata == b"three"
    seen = [c.member.metadata for c in bench.all(MemberChanged) if c.member.state is c.before]
    assert seen == [b"two", b"three"]


def test_metadata_starts_over_with_a_new_incarnation() -> None:
    bench = Bench()
    bench.meet("a")
    bench.run(1.1)
    bench.ack("a", bench.pings("a")[-1], metadata_version=9, metadata=b"old life")
    view = PushPullReply(
        Sender("a:1", Role.MANAGER), (MemberSnapshot(alive("a", incarnation=200), 1, b"new"),)
    )
    bench.handle(PushPullCompleted("a", 200, view))
    assert bench.core.table.peers["a"].metadata == b"new"


# Watching, exchanging.


def test_sessions_follow_the_ring_and_the_roles() -> None:
    manager = Bench()
    manager.meet("a", "w1", "w2")
    manager.run(1.5, answering=("a", "w1", "w2"))
    assert set(manager.core.sessions) == {"a", "w1", "w2"}
    worker = Bench(role=Role.WORKER)
    worker.meet("a", "w1", "w2")
    assert set(worker.core.sessions) <= {"a"}


def test_the_session_with_a_dead_member_is_dropped() -> None:
    bench = Bench()
    bench.say(alive("a"), by="a")
    bench.ack("a", bench.pings("a")[-1])
    bench.run(1.5, answering=("a",))
    assert [w.node for w in bench.all(KeepSession)] == ["a"]
    bench.handle(DialRefused("a", 100, "a:1"))
    bench.run(1.5)
    assert [u.node for u in bench.all(DropSession)] == ["a"]


def test_push_pulls_are_periodic_and_repeated_after_a_failure() -> None:
    bench = Bench()
    bench.meet("a")
    bench.run(40.0, answering=("a",))
    (first,) = bench.all(StartPushPull)[:1]
    assert first.node == "a"
    count = len(bench.all(StartPushPull))
    bench.handle(PushPullFailed("a"))
    bench.run(2.5, answering=("a",))
    assert len(bench.all(StartPushPull)) == count + 1


def test_a_push_pull_contains_dead_members_and_no_unconfirmed_ones() -> None:
    bench = Bench()
    bench.meet("a", "b")
    bench.handle(DialRefused("b", 100, "b:1"))
    bench.say(alive("rumour"))
    bench.handle(PushPullRequested("a", 100, PushPull(Sender("a:1", Role.MANAGER)), "token"))
    records = {m.update.node: m.update.claim for m in bench.all(ReplyToPushPull)[-1].reply.members}
    assert records == {
        "self": ClaimedState.ALIVE,
        "a": ClaimedState.ALIVE,
        "b": ClaimedState.REFUSED,
    }


def test_a_suspicion_in_a_push_pull_names_the_accuser() -> None:
    bench = Bench()
    bench.meet("a", "b", "c")
    bench.until(lambda: bench.core.state_of("b") is MemberState.DEAD, answering=("a", "c"))
    bench.say(claim(ClaimedState.SUSPECT, "c", by="z"))
    bench.handle(PushPullRequested("a", 100, PushPull(Sender("a:1", Role.MANAGER)), "token"))
    records = {m.update.node: m.update for m in bench.all(ReplyToPushPull)[-1].reply.members}
    said = {node: (news.claim, news.by) for node, news in records.items()}
    assert said["b"] == (ClaimedState.SILENT, "self")
    assert said["c"] == (ClaimedState.SUSPECT, "z")
    assert said["a"] == (ClaimedState.ALIVE, "")


def test_own_datagrams_are_ignored() -> None:
    bench = Bench()
    bench.meet("a")
    assert bench.receive("self", Ping(Sender("self:1"), 1, "self"), incarnation=500) == []


def test_a_datagram_of_an_earlier_incarnation_is_answered_with_the_later_one() -> None:
    bench = Bench()
    bench.meet("a")
    late = Ping(Sender("a:2"), 1, "self", updates=(claim(ClaimedState.LEFT, "a"),))
    (sent,) = bench.receive("a", late, incarnation=99)
    assert isinstance(sent, SendDatagram)
    assert (sent.address, type(sent.datagram)) == ("a:2", Gossip)
    assert [(news.node, news.incarnation) for news in sent.datagram.updates] == [("a", 100)]
    assert bench.receive("a", late, incarnation=99) == []  # not for each of them
    assert bench.core.state_of("a") is MemberState.ALIVE
