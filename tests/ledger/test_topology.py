"""The rules of the topology: what it refuses, and that snapshots change nothing."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyperscale.ledger.replica import KEY_SLOTS
from hyperscale.ledger.topology import (
    DecisionReply,
    Founded,
    GroupCreated,
    GroupDestroyed,
    GroupDraining,
    GroupState,
    LeaderWanted,
    MigrationEnded,
    MigrationStarted,
    NodeJoined,
    NodeState,
    NodeStateChanged,
    Topology,
    VotersSettled,
    VotersWanted,
    decode_decision_reply,
    encode_decision,
)


def topology(nodes: int = 4, groups: int = 2) -> Topology:
    made = Topology()
    made.decide(Founded(nodes))
    for number in range(nodes):
        made.decide(NodeJoined(f"n{number}", f"rack-{number}"))
    for group in range(1, groups + 1):
        made.decide(GroupCreated(group, (1, 2, 3), tuple(range(group - 1, KEY_SLOTS, groups))))
    return made


def test_a_repeated_join_request_gets_the_same_number() -> None:
    made = Topology()
    first = made.decide(NodeJoined("a", "r", "nonce"))
    assert made.decide(NodeJoined("a", "r", "nonce")) == first
    assert made.decide(NodeJoined("b", "r", "other")).number == first.number + 1


def test_a_node_that_lost_its_disk_gets_a_new_number_and_the_old_one_is_gone() -> None:
    made = Topology()
    old = made.decide(NodeJoined("a", "r", "before")).number
    new = made.decide(NodeJoined("a", "r", "after")).number
    assert new != old
    assert made.nodes[old].state is NodeState.GONE
    assert made.number_of("a") == new
    assert made.decide(NodeStateChanged(old, NodeState.ACTIVE)).refused


def test_a_key_slot_has_one_owner() -> None:
    made = topology()
    assert made.decide(GroupCreated(9, (1,), (5,))).refused
    assert made.decide(MigrationStarted((0, 1), 1, 2)).refused, "slot 1 is group 2's"
    migration = made.decide(MigrationStarted((0, 2), 1, 2)).number
    assert made.decide(MigrationStarted((2, 4), 1, 2)).refused, "slot 2 is under way"
    assert made.owners[0] == 1
    made.decide(MigrationEnded(migration))
    assert made.owners[0] == made.owners[2] == 2
    assert made.decide(MigrationEnded(migration)) == DecisionReply(migration)


@pytest.mark.parametrize(
    "migration",
    [MigrationStarted((), 1, 2), MigrationStarted((0,), 1, 1), MigrationStarted((0,), 1, 9)],
)
def test_an_impossible_migration_is_refused(migration: MigrationStarted) -> None:
    made = topology()
    assert made.decide(migration).refused
    assert not made.migrations


def test_a_group_is_destroyed_only_when_it_is_drained_and_owns_no_key_slot() -> None:
    made = topology()
    assert made.decide(GroupDestroyed(1)).refused
    made.decide(GroupDraining(1, heir=2))
    assert made.decide(GroupDestroyed(1)).refused
    key_slots = tuple(key_slot for key_slot, owner in enumerate(made.owners) if owner == 1)
    migration = made.decide(MigrationStarted(key_slots, 1, 2)).number
    assert made.decide(GroupDestroyed(1)).refused
    made.decide(MigrationEnded(migration))
    assert not made.decide(GroupDestroyed(1)).refused
    assert made.groups[1].state is GroupState.DESTROYED
    assert made.heir_of(1) == 2
    assert made.decide(GroupCreated(1, (1,))).refused, "numbers are not used again"


def test_the_heir_of_an_heir_answers_for_a_group() -> None:
    made = topology(groups=3)
    for group, heir in ((1, 2), (2, 3)):
        made.decide(GroupDraining(group, heir))
        key_slots = tuple(key_slot for key_slot, owner in enumerate(made.owners) if owner == group)
        made.decide(MigrationEnded(made.decide(MigrationStarted(key_slots, group, 3)).number))
        made.decide(GroupDestroyed(group))
    assert made.heir_of(1) == 3


def test_a_report_about_an_earlier_change_of_voters_is_refused() -> None:
    made = topology()
    made.decide(VotersWanted(1, (1, 2, 4)))
    late = VotersSettled(1, (1, 2, 4), made.groups[1].change)
    made.decide(late)
    made.decide(VotersWanted(1, (1, 2, 3)))
    made.decide(VotersSettled(1, (1, 2, 3), made.groups[1].change))
    made.decide(VotersWanted(1, (1, 2, 4)))
    assert made.decide(late).refused
    assert made.groups[1].settled == [1, 2, 3]


def test_during_a_change_of_voters_old_and_new_voters_keep_their_replicas() -> None:
    made = topology(nodes=5)
    made.decide(VotersWanted(1, (1, 2, 4)))
    made.decide(VotersWanted(1, (1, 2, 5)))
    assert made.groups[1].settled == [1, 2, 3, 4]
    made.decide(VotersSettled(1, (1, 2, 5), made.groups[1].change))
    assert made.groups[1].settled == [1, 2, 5]


def test_the_preferred_leader_is_one_of_the_voters() -> None:
    made = topology()
    assert made.decide(LeaderWanted(1, 4)).refused
    made.decide(LeaderWanted(1, 3))
    made.decide(VotersWanted(1, (1, 2, 4)))
    assert made.groups[1].leader in (1, 2, 4)


decisions = st.one_of(
    st.builds(NodeJoined, st.sampled_from("abc"), st.just("r")),
    st.builds(NodeStateChanged, st.integers(0, 6), st.sampled_from(NodeState)),
    st.builds(GroupCreated, st.integers(1, 4), st.tuples(st.integers(1, 4)), st.just(())),
    st.builds(VotersWanted, st.integers(1, 4), st.tuples(st.integers(1, 5), st.integers(1, 5))),
    st.builds(VotersSettled, st.integers(1, 4), st.tuples(st.integers(1, 5)), st.integers(0, 3)),
    st.builds(LeaderWanted, st.integers(1, 4), st.integers(1, 5)),
    st.builds(
        MigrationStarted,
        st.lists(st.integers(0, 8), max_size=3).map(tuple),
        st.integers(1, 4),
        st.integers(1, 4),
    ),
    st.builds(MigrationEnded, st.integers(1, 4)),
    st.builds(GroupDraining, st.integers(1, 4), st.integers(1, 4)),
    st.builds(GroupDestroyed, st.integers(1, 4)),
)


@given(st.lists(decisions, max_size=30), st.integers(0, 30))
@example([MigrationStarted(key_slots=(0, 0), source=1, target=2)], 0)
def test_the_same_decisions_give_the_same_state_also_from_a_snapshot(
    script: list[object], at: int
) -> None:
    one, two = topology(), topology()
    for index, decision in enumerate(script):
        if index == at:
            fresh = Topology()
            fresh.restore(two.snapshot())
            two = fresh
        body = encode_decision(decision)  # type: ignore[arg-type]  # drawn from the union
        replies = [made.apply(index, 0, body).reply for made in (one, two)]
        assert replies[0] == replies[1]
        assert decode_decision_reply(one.encode_reply(replies[0])) == replies[0]
    assert one.snapshot() == two.snapshot()
    moving = [key_slot for migration in one.migrations.values() for key_slot in migration.key_slots]
    assert len(moving) == len(set(moving))
    for record in one.groups.values():
        assert record.state is not GroupState.DESTROYED or record.number not in one.owners
