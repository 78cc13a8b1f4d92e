"""The policy of a tier: which nodes vote in which groups, lead them and own which key slots.

The leader of group 0 calls `decide` after every change and every second, proposes the decisions
it returns, and calls it again when they are committed. Every decision is a small step that is
right by itself, so that a leader lost between two of them leaves nothing half done.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hyperscale.ledger.cluster_version import VersionsSeen
from hyperscale.ledger.replica import KEY_SLOTS
from hyperscale.ledger.topology import (
    NO_GROUP,
    Decision,
    GroupCreated,
    GroupDraining,
    GroupRecord,
    GroupState,
    LeaderWanted,
    MigrationStarted,
    NodeState,
    NodeStateChanged,
    Topology,
    VotersWanted,
)

VOTERS = 3
VOTERS_OF_GATES = 5
"""Gates are few and in different regions, and a global job should survive the loss of two."""
MANAGEMENT_VOTERS_MAX = 5
DEAD_VOTER_S = 300.0
_LOAD_WORTH_MOVING = 100.0  # entries per second of all groups
_IMBALANCE = 1.25  # key slots move when a group has this much more than its share, by weight


class TierHealth(Struct, frozen=True, kw_only=True):
    """What the leader of group 0 observes about the nodes and groups of its tier."""

    dead_s: Mapping[int, float]
    """How long each dead node has been dead."""
    unfit: frozenset[int] = frozenset()
    """Nodes that should not lead: overloaded or leaving."""
    load: Mapping[int, float] = {}
    """Entries per second of the groups that have a replica on this node."""
    leaders: Mapping[int, int] = {}
    """The node that leads each group now, where it is known."""
    voters: int = VOTERS
    """How many voters a group has, if there are enough nodes."""
    versions: VersionsSeen = VersionsSeen()


def decide(topology: Topology, health: TierHealth) -> list[Decision]:
    """Return the next decisions, none of which depends on another."""
    members = sum(node.state is not NodeState.GONE for node in topology.nodes.values())
    if members < topology.awaited and not topology.groups:
        return []  # created once, well spread, instead of moved while nodes join
    for step in (_voters, _drain_groups, _create_groups, _balance, _leaders):
        if decisions := step(topology, health):
            return decisions
    return _leave(topology)


def management_voters(topology: Topology, health: TierHealth, present: Sequence[int]) -> list[int]:
    """Return the voters of group 0: an odd number of nodes, present voters first."""
    able = _active_nodes(topology, health)
    count = _voter_count(len(able), MANAGEMENT_VOTERS_MAX)
    ranked = sorted(able, key=lambda number: (number not in present, number))
    return sorted(_spread(topology, ranked, count)) or sorted(present)


def _active_nodes(topology: Topology, health: TierHealth) -> list[int]:
    """Return the nodes that are neither draining nor gone nor dead for long."""
    return [
        number
        for number, node in sorted(topology.nodes.items())
        if node.state is NodeState.ACTIVE and health.dead_s.get(number, 0.0) < DEAD_VOTER_S
    ]


def _active_groups(topology: Topology) -> list[GroupRecord]:
    return [g for g in topology.groups.values() if g.state is GroupState.ACTIVE]


def _voter_count(nodes: int, most: int) -> int:
    """Return how many nodes vote: from three on an odd number, because a fourth adds no safety."""
    count = min(nodes, most)
    return count if count < VOTERS or count % 2 else count - 1


def _spread(
    topology: Topology, ranked: Sequence[int], count: int, *, beside: Sequence[int] = ()
) -> list[int]:
    """Return `count` of these nodes: with the nodes `beside` them, in as many failure domains as
    possible."""
    chosen: list[int] = []
    used = Counter(topology.nodes[number].domain for number in beside)
    candidates = list(ranked)
    while candidates and len(chosen) < count:
        pick = min(candidates, key=lambda number: used[topology.nodes[number].domain])
        candidates.remove(pick)
        chosen.append(pick)
        used[topology.nodes[pick].domain] += 1
    return chosen


def _voters(topology: Topology, health: TierHealth) -> list[Decision]:
    """Replace voters that are gone, draining or dead for long; add voters as nodes join."""
    active = _active_nodes(topology, health)
    if not active:
        return []
    seats = Counter(voter for group in topology.groups.values() for voter in group.voters)
    decisions: list[Decision] = []
    for group in topology.live_groups():
        if group.voters != group.settled and not set(group.voters) - set(active):
            continue  # one change at a time, unless it waits for a node that is gone
        kept = [voter for voter in group.voters if voter in active][: health.voters]
        ranked = sorted(set(active) - set(kept), key=lambda n: (seats[n], n))
        missing = _voter_count(len(active), health.voters) - len(kept)
        wanted = sorted([*kept, *_spread(topology, ranked, missing, beside=kept)])
        if wanted != group.voters:
            decisions.append(VotersWanted(group.number, tuple(wanted)))
            seats.update(set(wanted) - set(group.voters))
    return decisions


def _create_groups(topology: Topology, health: TierHealth) -> list[Decision]:
    """Create as many groups as nodes, each with its share of the key slots without an owner."""
    active = _active_nodes(topology, health)
    missing = len(active) - len(_active_groups(topology))
    if missing <= 0 or topology.migrations:
        return []
    free = [key_slot for key_slot, owner in enumerate(topology.owners) if owner == NO_GROUP]
    seats = Counter(voter for group in topology.groups.values() for voter in group.voters)
    first = max(topology.groups, default=0) + 1
    decisions: list[Decision] = []
    for position in range(missing):
        count = _voter_count(len(active), health.voters)
        ranked = sorted(active, key=lambda number: (seats[number], number))
        voters = _spread(topology, ranked, count)
        seats.update(voters)
        share = tuple(free[position::missing])
        decisions.append(GroupCreated(first + position, tuple(sorted(voters)), share))
    return decisions


def _drain_groups(topology: Topology, health: TierHealth) -> list[Decision]:
    """Drain groups beyond the number of nodes: their key slots move to an heir. Their leaders
    destroy them when they are empty."""
    decisions: list[Decision] = []
    groups = _active_groups(topology)
    surplus = len(groups) - max(1, len(_active_nodes(topology, health)))
    if surplus > 0 and not topology.migrations:
        owned = Counter(topology.owners)
        order = sorted(groups, key=lambda group: (owned[group.number], -group.number))
        heirs = order[surplus:]
        for position, group in enumerate(order[:surplus]):
            decisions.append(GroupDraining(group.number, heirs[position % len(heirs)].number))
    for group in topology.groups.values():
        if group.state is not GroupState.DRAINING:
            continue
        key_slots = tuple(s for s, owner in enumerate(topology.owners) if owner == group.number)
        moving = any(group.number in (m.source, m.target) for m in topology.migrations.values())
        if key_slots and not moving:
            heir = topology.heir_of(group.heir)
            decisions.append(MigrationStarted(key_slots, group.number, heir))
    return decisions


def _balance(topology: Topology, health: TierHealth) -> list[Decision]:
    """Move key slots from the group with the greatest weight to the one with the least."""
    groups = _active_groups(topology)
    if len(groups) < 2 or topology.migrations:
        return []
    owned = Counter(topology.owners)
    weight = {g.number: _weight(g.number, owned, health, len(groups)) for g in groups}
    least = min(weight, key=lambda g: (weight[g], g))
    most = max(weight, key=lambda g: (weight[g], -g))
    mean = sum(weight.values()) / len(weight)
    if weight[most] < mean * _IMBALANCE:
        return []
    share = min((weight[most] - weight[least]) / 2 / weight[most], 0.5)
    # Load follows key slots only as jobs end: half of its fair share stays with the group.
    spare = owned[most] - math.ceil(KEY_SLOTS / len(groups) / 2)
    count = min(max(1, int(owned[most] * share)), spare)
    if count < 1:
        return []
    key_slots = [key_slot for key_slot, owner in enumerate(topology.owners) if owner == most]
    return [MigrationStarted(tuple(key_slots[-count:]), most, least)]


def _weight(group: int, owned: Mapping[int, int], health: TierHealth, groups: int) -> float:
    """Return a group's share of key slots and of entries; entries count only when they are many.
    A group of unknown load counts as an average one."""
    by_slots = owned.get(group, 0) / KEY_SLOTS * groups
    total = sum(health.load.values())
    if total < _LOAD_WORTH_MOVING:
        return by_slots
    mean = total / len(health.load)
    return (by_slots + health.load.get(group, mean) / mean) / 2


def _leaders(topology: Topology, health: TierHealth) -> list[Decision]:
    """Spread leaderships over the nodes that are fit to lead."""
    groups = _active_groups(topology)
    fit = set(_active_nodes(topology, health)) - health.unfit - set(health.dead_s)
    leads = Counter(group.leader for group in groups)
    for group in sorted(groups, key=lambda g: (g.leader in fit, -leads[g.leader], g.number)):
        able = [voter for voter in group.voters if voter in fit]
        if not able:
            continue
        # Prefer the present leader: another one would have to learn anew which workers are silent.
        now = health.leaders.get(group.number)
        best = min(able, key=lambda number: (leads[number], number != now, number))
        if group.leader not in fit or leads[group.leader] > leads[best] + 1:
            return [LeaderWanted(group.number, best)]
    return []


def _leave(topology: Topology) -> list[Decision]:
    """Mark draining nodes that vote nowhere as gone."""
    seated = {voter for group in topology.groups.values() for voter in group.all_voters}
    return [
        NodeStateChanged(number, NodeState.GONE)
        for number, node in topology.nodes.items()
        if node.state is NodeState.DRAINING and number not in seated
    ]
