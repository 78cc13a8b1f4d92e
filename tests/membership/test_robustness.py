"""Whatever members say, in whatever order: the core does not break, and its table agrees."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale.membership.events import (
    LIVING,
    AddressChanged,
    DatagramReceived,
    DialAnswered,
    DialRefused,
    LeaveRequested,
    MemberChanged,
    MemberDied,
    MemberDiscovered,
    MembershipEvent,
    MemberState,
    PushPullCompleted,
    PushPullFailed,
    PushPullRequested,
    SendDatagram,
)
from hyperscale.membership.messages import (
    Ack,
    ClaimedState,
    Gossip,
    IndirectAck,
    MemberSnapshot,
    MemberUpdate,
    Nack,
    Ping,
    PingRequest,
    PushPull,
    PushPullReply,
    Sender,
)
from hyperscale.sansio.core import Tick
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.roles import NODES
from tests.membership.bench import Bench

names = st.sampled_from(["self", "a", "b", "c", "d", "", "n" * 64])
addresses = st.sampled_from(["a:1", "b:1", "self:1", "", "no port", "[::1]:9", "x" * 50])
numbers = st.sampled_from([0, 1, 2, 100, 101, 500, 501, 2**63])
sequences = st.integers(0, 40)
roles = st.sampled_from(sorted(NODES))
senders = st.builds(Sender, address=addresses, role=roles, refutation=numbers)
news = st.builds(
    MemberUpdate,
    node=names,
    incarnation=numbers,
    claim=st.sampled_from(ClaimedState),
    refutation=numbers,
    by=names,
    role=roles,
    address=addresses,
)
updates = st.lists(news, max_size=4).map(tuple)
datagrams = st.one_of(
    st.builds(Ping, sender=senders, sequence=sequences, target=names, updates=updates),
    st.builds(
        Ack,
        sender=senders,
        sequence=sequences,
        metadata_version=numbers,
        metadata=st.binary(max_size=20),
        updates=updates,
    ),
    st.builds(
        PingRequest,
        sender=senders,
        sequence=sequences,
        target=names,
        target_address=addresses,
        updates=updates,
    ),
    st.builds(
        IndirectAck,
        sender=senders,
        sequence=sequences,
        target=names,
        incarnation=numbers,
        refutation=numbers,
        updates=updates,
    ),
    st.builds(Nack, sender=senders, sequence=sequences, updates=updates),
    st.builds(Gossip, sender=senders, updates=updates),
)
snapshots = st.lists(
    st.builds(MemberSnapshot, update=news, metadata_version=numbers), max_size=4
).map(tuple)
requests = st.builds(PushPull, sender=senders, members=snapshots)
replies = st.builds(PushPullReply, sender=senders, members=snapshots)
events = st.one_of(
    st.builds(
        DatagramReceived, source=addresses, node=names, incarnation=numbers, datagram=datagrams
    ),
    st.just(Tick()),
    st.builds(MemberDiscovered, address=addresses),
    st.builds(PushPullCompleted, node=names, incarnation=numbers, reply=replies),
    st.builds(
        PushPullRequested, node=names, incarnation=numbers, request=requests, token=st.none()
    ),
    st.builds(PushPullFailed, node=names),
    st.builds(DialRefused, node=names, incarnation=numbers, address=addresses),
    st.builds(
        DialAnswered, node=names, incarnation=numbers, address=addresses, by=names, life=numbers
    ),
    st.builds(AddressChanged, address=addresses),
    st.just(LeaveRequested()),
)
scripts = st.lists(st.tuples(st.sampled_from([0.0, 0.05, 0.3, 1.0, 9.0]), events), max_size=40)


@settings(max_examples=200)
@given(scripts)
def test_no_sequence_of_events_breaks_the_core(script: list[tuple[float, MembershipEvent]]) -> None:
    bench = Bench()
    bench.meet("a", "b")
    living = {"a", "b"}
    for wait_s, event in script:
        bench.run(wait_s, answering=("a",))
        _follow(bench, living)
        bench.handle(event)
        _follow(bench, living)
        _check_table(bench, living)


def _follow(bench: Bench, living: set[str]) -> None:
    """Who lives, from the effects alone: a death is only ever of someone who did."""
    for effect in bench.effects:
        if isinstance(effect, MemberDied):
            assert effect.member.node in living
            living.discard(effect.member.node)
        elif isinstance(effect, MemberChanged):
            is_living = effect.member.state in LIVING
            (living.add if is_living else living.discard)(effect.member.node)
        elif isinstance(effect, SendDatagram):
            REGISTRY.encode(effect.datagram)  # raises if it outgrew a datagram
    bench.effects.clear()


def _check_table(bench: Bench, living: set[str]) -> None:
    table, lifecycle = bench.core.table, bench.core.lifecycle
    assert {peer.node for peer in table.living} == living
    assert {peer.node for peer in table.successors(len(table), len(table))} == living
    assert "self" not in table.peers
    for peer in table.peers.values():
        assert (peer.suspicion is not None) == (peer.state is MemberState.SUSPECT)
        assert (peer.node in lifecycle.suspects) == (peer.state is MemberState.SUSPECT)
        assert (peer.node in table.silent or peer.node in table.refused) == (
            peer.state is MemberState.DEAD
        )
    assert bench.core.wake_at_s() > 0
