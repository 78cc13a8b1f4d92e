"""The policy spreads groups, key slots and leaderships until nothing is left to decide."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.ledger.replica import KEY_SLOTS
from hyperscale.ledger.topology import (
    Decision,
    Founded,
    GroupCreated,
    GroupDestroyed,
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
)
from hyperscale.ledger.topology_policy import (
    DEAD_VOTER_S,
    VOTERS_OF_GATES,
    TierHealth,
    decide,
    management_voters,
)

CALM = TierHealth(dead_s={})


def nodes(*domains: str, awaited: int | None = None) -> Topology:
    made = Topology()
    made.decide(Founded(len(domains) if awaited is None else awaited))
    for number, domain in enumerate(domains):
        made.decide(NodeJoined(f"n{number}", domain))
    return made


def settle(topology: Topology, health: TierHealth = CALM, rounds: int = 200) -> list[Decision]:
    """Apply the decisions of the policy until it makes none, with leaders that act at once."""
    made: list[Decision] = []
    for _ in range(rounds):
        decisions = decide(topology, health)
        for decision in decisions:
            assert not topology.decide(decision).refused, decision
        made += decisions
        is_changed = bool(decisions)
        for record in topology.groups.values():
            if record.state is not GroupState.DESTROYED and record.voters != record.settled:
                topology.decide(VotersSettled(record.number, tuple(record.voters), record.change))
                is_changed = True
        for migration in tuple(topology.migrations):
            topology.decide(MigrationEnded(migration))
            is_changed = True
        for record in topology.groups.values():
            if record.state is GroupState.DRAINING:
                is_changed |= not topology.decide(GroupDestroyed(record.number)).refused
        if not is_changed:
            return made
    raise AssertionError(f"never at rest: {made[-10:]}")


def active(topology: Topology) -> list[int]:
    return [g.number for g in topology.groups.values() if g.state is GroupState.ACTIVE]


def check_placed(topology: Topology, health: TierHealth = CALM) -> None:
    able = [
        number
        for number, node in topology.nodes.items()
        if node.state is NodeState.ACTIVE and health.dead_s.get(number, 0.0) < DEAD_VOTER_S
    ]
    groups = active(topology)
    assert len(groups) == len(able)
    owned = Counter(topology.owners)
    assert sum(owned[group] for group in groups) == KEY_SLOTS
    assert max(owned[g] for g in groups) <= 1.3 * KEY_SLOTS / len(groups) + 1
    leads = Counter(topology.groups[group].leader for group in groups)
    for group in groups:
        record = topology.groups[group]
        assert set(record.voters) <= set(able)
        assert len(record.voters) == (min(3, len(able)))
    assert max(leads.values()) - min(leads[number] for number in able) <= 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_there_are_as_many_groups_as_nodes_with_equal_shares_of_key_slots_and_leaderships(
    count: int,
) -> None:
    made = nodes(*(f"rack-{n}" for n in range(count)))
    settle(made)
    check_placed(made)


def test_no_group_is_created_before_all_founders_have_joined() -> None:
    made = nodes("a", "b", awaited=3)
    assert decide(made, CALM) == []
    made.decide(NodeJoined("n2", "c"))
    assert all(isinstance(decision, GroupCreated) for decision in decide(made, CALM))


def test_voters_of_a_group_are_in_different_failure_domains() -> None:
    made = nodes("a", "a", "a", "b", "b", "c")
    settle(made)
    for record in made.groups.values():
        assert {made.nodes[voter].domain for voter in record.voters} == {"a", "b", "c"}


def test_all_failure_domains_are_used_when_there_are_fewer_than_voters() -> None:
    made = nodes("a", "a", "b", "b")
    settle(made)
    for record in made.groups.values():
        assert {made.nodes[voter].domain for voter in record.voters} == {"a", "b"}


def test_a_node_that_joins_gets_votes_key_slots_and_leaderships() -> None:
    made = nodes("a", "b", "c")
    settle(made)
    made.decide(NodeJoined("n3", "d"))
    settle(made)
    check_placed(made)
    assert any(4 in record.voters for record in made.groups.values())


def test_a_voter_is_replaced_only_after_it_was_dead_for_long() -> None:
    made = nodes("a", "b", "c", "d")
    settle(made)
    just_dead = TierHealth(dead_s={2: DEAD_VOTER_S - 1})
    assert not [d for d in decide(made, just_dead) if isinstance(d, VotersWanted)]
    long_dead = TierHealth(dead_s={2: DEAD_VOTER_S + 1})
    wanted = [d for d in decide(made, long_dead) if isinstance(d, VotersWanted)]
    assert wanted
    for decision in wanted:
        before, after = set(made.groups[decision.group].voters), set(decision.voters)
        assert before - after == {2}
        assert len(after) == 3


def test_a_group_changes_its_voters_once_at_a_time() -> None:
    made = nodes("a", "b", "c", "d", "e")
    settle(made)
    for decision in decide(made, TierHealth(dead_s={2: 400.0})):
        made.decide(decision)
    again = decide(made, TierHealth(dead_s={2: 400.0}))
    assert not [d for d in again if isinstance(d, VotersWanted)]


def test_a_change_of_voters_that_waits_for_a_dead_node_is_replaced() -> None:
    made = nodes("a", "b", "c", "d", "e")
    settle(made)
    group = next(g for g in made.groups.values() if 2 in g.voters)
    for decision in decide(made, TierHealth(dead_s={2: 400.0})):
        made.decide(decision)
    newcomer = next(iter(set(group.voters) - set(group.settled)))
    both = TierHealth(dead_s={2: 900.0, newcomer: 400.0})
    again = [d for d in decide(made, both) if isinstance(d, VotersWanted)]
    wanted = next(d for d in again if d.group == group.number)
    assert not {2, newcomer} & set(wanted.voters)


def test_a_draining_node_loses_its_votes_and_is_then_gone() -> None:
    made = nodes("a", "b", "c", "d")
    settle(made)
    made.decide(NodeStateChanged(3, NodeState.DRAINING))
    decided = settle(made)
    check_placed(made)
    assert made.nodes[3].state is NodeState.GONE
    assert isinstance(decided[-1], NodeStateChanged)
    assert all(3 not in g.voters for g in made.groups.values() if g.number in active(made))


def test_groups_beyond_the_number_of_nodes_are_drained_to_an_heir() -> None:
    made = nodes("a", "b", "c", "d")
    settle(made)
    made.decide(NodeStateChanged(4, NodeState.DRAINING))
    settle(made)
    ended = [g for g in made.groups.values() if g.state is GroupState.DESTROYED]
    assert len(ended) == 1
    assert made.heir_of(ended[0].number) in active(made)


def test_a_node_unfit_to_lead_leads_nothing() -> None:
    made = nodes("a", "b", "c")
    settle(made)
    health = TierHealth(dead_s={}, unfit=frozenset({1}))
    decided = settle(made, health)
    assert all(isinstance(decision, LeaderWanted) for decision in decided)
    assert 1 not in {record.leader for record in made.groups.values()}


@pytest.mark.parametrize("elected", [1, 2])
def test_a_voter_that_took_over_from_a_dead_leader_stays_leader(elected: int) -> None:
    made = nodes("a", "b", "c")
    settle(made)
    orphan = next(group for group in made.groups.values() if group.leader == 3)
    health = TierHealth(dead_s={3: 9.0}, leaders={orphan.number: elected})
    assert decide(made, health) == [LeaderWanted(orphan.number, elected)]


def test_key_slots_move_to_the_group_with_less_load() -> None:
    made = nodes("a", "b", "c")
    settle(made)
    busy = TierHealth(dead_s={}, load={1: 5_000.0, 2: 10.0, 3: 10.0})
    migrations = [d for d in decide(made, busy) if isinstance(d, MigrationStarted)]
    assert [migration.source for migration in migrations] == [1]
    few = TierHealth(dead_s={}, load={1: 20.0, 2: 0.0, 3: 0.0})
    assert decide(made, few) == []


def test_a_group_whose_load_stays_keeps_half_of_its_share_of_key_slots() -> None:
    made = nodes("a", "b", "c")
    settle(made)
    busy = TierHealth(dead_s={}, load={1: 5_000.0, 2: 10.0, 3: 10.0})
    settle(made, busy)
    owned = Counter(made.owners)
    assert owned[1] == math.ceil(KEY_SLOTS / 3 / 2)
    assert abs(owned[2] - owned[3]) <= KEY_SLOTS / 3 / 4


def test_a_group_of_unknown_load_counts_as_an_average_one() -> None:
    made = nodes("a", "b", "c")
    settle(made)
    assert decide(made, TierHealth(dead_s={}, load={1: 500.0, 2: 500.0})) == []
    migrations = decide(made, TierHealth(dead_s={}, load={1: 900.0, 2: 100.0}))
    assert [(m.source, m.target) for m in migrations if isinstance(m, MigrationStarted)] == [(1, 2)]


def test_group_0_has_an_odd_number_of_voters_and_keeps_present_ones() -> None:
    sizes = {}
    for count in range(1, 8):
        made = nodes(*(f"rack-{n}" for n in range(count)))
        sizes[count] = len(management_voters(made, CALM, [1]))
    assert sizes == {1: 1, 2: 2, 3: 3, 4: 3, 5: 5, 6: 5, 7: 5}
    made = nodes(*"abcdefg")
    assert management_voters(made, CALM, [3, 4, 5, 6, 7]) == [3, 4, 5, 6, 7]
    assert management_voters(made, TierHealth(dead_s={4: 400.0}), [3, 4, 5, 6, 7]) == [
        1,
        3,
        5,
        6,
        7,
    ]


events = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from("abcd")),
        st.tuples(st.just("drain"), st.integers(0, 9)),
        st.tuples(st.just("lost"), st.integers(0, 9)),
        st.tuples(st.just("dead"), st.integers(0, 9)),
    ),
    max_size=12,
)


@given(events)
def test_the_policy_comes_to_rest_in_a_balanced_topology(script: list[tuple[str, object]]) -> None:
    made = nodes("a", "b", "c")
    settle(made)
    dead: dict[int, float] = {}
    for at, (what, value) in enumerate(script):
        living = [
            n for n, node in made.nodes.items() if node.state is NodeState.ACTIVE and n not in dead
        ]
        if what == "join":
            made.decide(NodeJoined(f"new-{at}", str(value)))
        elif len(living) > 3 and isinstance(value, int):
            number = living[value % len(living)]
            if what == "drain":
                made.decide(NodeStateChanged(number, NodeState.DRAINING))
            elif what == "lost":
                made.decide(NodeJoined(made.nodes[number].name, "a", f"again-{at}"))
            else:
                dead[number] = 1_000.0
        health = TierHealth(dead_s=dead)
        settle(made, health)
        check_placed(made, health)


def test_groups_of_gates_have_five_voters_once_there_are_five_gates() -> None:
    health = TierHealth(dead_s={}, voters=VOTERS_OF_GATES)
    topology = nodes("eu", "us", "asia", awaited=3)
    settle(topology, health)
    assert {len(group.voters) for group in topology.groups.values()} == {3}
    for number in (3, 4):
        topology.decide(NodeJoined(f"n{number}", f"domain-{number}"))
    settle(topology, health)
    assert {len(group.voters) for group in topology.live_groups()} == {5}
