"""What group 0 should decide next: pure, one look at the topology at a time.

The management leader asks after every change and every few seconds, proposes what comes back,
and asks again when that is committed. Every answer is a small step that is right by itself, so
a leader lost between two of them leaves nothing half done.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from hyperscale.ledger.replica import SLOTS
from hyperscale.ledger.topology import (
    NO_GROUP,
    Decision,
    GroupCreated,
    GroupDraining,
    GroupRecord,
    GroupState,
    LeaderWanted,
    MoveBegun,
    NodeMarked,
    NodeState,
    SeatsWanted,
    Topology,
)

VOTERS = 3
MANAGEMENT_VOTERS_MAX = 5
DEAD_VOTER_S = 300.0
_IMBALANCE = 1.25  # slots move when a group has this much more than its share, by weight


class TierHealth(Struct, frozen=True, kw_only=True):
    """What the management leader sees beside the topology."""

    dead_s: Mapping[int, float]
    """For how long each dead node has been dead."""
    unfit: frozenset[int] = frozenset()
    """Nodes that should not lead: overloaded, or leaving."""
    load: Mapping[int, float] = {}
    """Entries per second of the groups this node has a replica of."""
    leaders: Mapping[int, int] = {}
    """The node that leads each group now, where that is known."""


def decide(topology: Topology, health: TierHealth) -> list[Decision]:
    """The next steps, none of which depends on another."""
    members = sorted(
        number for number, node in topology.nodes.items() if node.state is not NodeState.GONE
    )
    if len(members) < topology.awaited and not topology.groups:
        return []  # made once, well spread, instead of moved about while nodes arrive
    for step in (_seats, _drain_groups, _create_groups, _balance, _leaders):
        if decisions := step(topology, health):
            return decisions
    return _leave(topology)


def management_voters(topology: Topology, health: TierHealth, present: Sequence[int]) -> list[int]:
    """Who should vote in group 0: an odd number of nodes, those that do already first."""
    able = [n for n in usable(topology, health) if topology.nodes[n].state is NodeState.ACTIVE]
    count = _seat_count(len(able), MANAGEMENT_VOTERS_MAX)
    ranked = sorted(able, key=lambda number: (number not in present, number))
    return sorted(_spread(topology, ranked, count)) or sorted(present)


def usable(topology: Topology, health: TierHealth) -> list[int]:
    """Nodes that are neither gone nor dead for long."""
    return [
        number
        for number, node in sorted(topology.nodes.items())
        if node.state is not NodeState.GONE and health.dead_s.get(number, 0.0) < DEAD_VOTER_S
    ]


def _active_nodes(topology: Topology, health: TierHealth) -> list[int]:
    return [
        number
        for number in usable(topology, health)
        if topology.nodes[number].state is NodeState.ACTIVE
    ]


def _active_groups(topology: Topology) -> list[GroupRecord]:
    return [g for g in topology.groups.values() if g.state is GroupState.ACTIVE]


def _seat_count(nodes: int, most: int) -> int:
    """All nodes while they are few; from three on an odd number, for a fourth adds no safety."""
    count = min(nodes, most)
    return count if count < VOTERS or count % 2 else count - 1


def _spread(topology: Topology, ranked: Sequence[int], count: int) -> list[int]:
    """The first `count` of these, no two of one failure domain while another is left."""
    chosen: list[int] = []
    used: Counter[str] = Counter()
    candidates = list(ranked)
    while candidates and len(chosen) < count:
        pick = min(
            candidates,
            key=lambda number: (used[topology.nodes[number].domain], candidates.index(number)),
        )
        candidates.remove(pick)
        chosen.append(pick)
        used[topology.nodes[pick].domain] += 1
    return chosen


def _seats(topology: Topology, health: TierHealth) -> list[Decision]:
    """Replaces voters that are gone, draining or dead for long; fills groups up as nodes come."""
    active = _active_nodes(topology, health)
    if not active:
        return []
    seats = Counter(voter for group in topology.groups.values() for voter in group.voters)
    decisions: list[Decision] = []
    for group in topology.groups.values():
        if group.state is GroupState.DESTROYED:
            continue
        if group.voters != group.settled and not set(group.voters) - set(active):
            continue  # one change at a time, unless it waits for a node that will not come
        kept = [voter for voter in group.voters if voter in active]
        count = _seat_count(len(active), VOTERS)
        ranked = kept + sorted(set(active) - set(kept), key=lambda n: (seats[n], n))
        wanted = sorted(_keep_first(topology, ranked, kept, count))
        if wanted and wanted != group.voters:
            decisions.append(SeatsWanted(group.number, tuple(wanted)))
            seats.update(set(wanted) - set(group.voters))
    return decisions


def _keep_first(
    topology: Topology, ranked: Sequence[int], kept: Sequence[int], count: int
) -> list[int]:
    """Those who vote already stay; the rest is spread over what they leave of the domains."""
    if len(kept) >= count:
        return list(kept[:count]) if len(kept) > VOTERS else list(kept)
    used = {topology.nodes[number].domain for number in kept}
    others = [number for number in ranked if number not in kept]
    others.sort(key=lambda number: topology.nodes[number].domain in used)
    return [*kept, *_spread(topology, others, count - len(kept))]


def _create_groups(topology: Topology, health: TierHealth) -> list[Decision]:
    """As many groups as nodes, each born with its share of the slots nobody owns."""
    active = _active_nodes(topology, health)
    missing = len(active) - len(_active_groups(topology))
    if missing <= 0 or topology.moves:
        return []
    free = [slot for slot, owner in enumerate(topology.owners) if owner == NO_GROUP]
    seats = Counter(voter for group in topology.groups.values() for voter in group.voters)
    first = max(topology.groups, default=0) + 1
    decisions: list[Decision] = []
    for position in range(missing):
        count = _seat_count(len(active), VOTERS)
        ranked = sorted(active, key=lambda number: (seats[number], number))
        voters = _spread(topology, ranked, count)
        seats.update(voters)
        share = tuple(free[position::missing])
        decisions.append(GroupCreated(first + position, tuple(sorted(voters)), share))
    return decisions


def _drain_groups(topology: Topology, health: TierHealth) -> list[Decision]:
    """Groups beyond the number of nodes end: slots to an heir. When there is nothing left to keep
    only a group's own leader can tell."""
    decisions: list[Decision] = []
    groups = _active_groups(topology)
    surplus = len(groups) - max(1, len(_active_nodes(topology, health)))
    if surplus > 0 and not topology.moves:
        owned = Counter(topology.owners)
        order = sorted(groups, key=lambda group: (owned[group.number], -group.number))
        heirs = order[surplus:]
        for position, group in enumerate(order[:surplus]):
            heir = heirs[position % len(heirs)].number
            decisions.append(GroupDraining(group.number, heir))
    for group in topology.groups.values():
        if group.state is not GroupState.DRAINING:
            continue
        slots = tuple(s for s, owner in enumerate(topology.owners) if owner == group.number)
        moving = any(group.number in (m.source, m.target) for m in topology.moves.values())
        if slots and not moving:
            decisions.append(MoveBegun(slots, group.number, topology.heir_of(group.heir)))
    return decisions


def _balance(topology: Topology, health: TierHealth) -> list[Decision]:
    """Moves slots from the group with most to the one with least, by number or by load."""
    groups = _active_groups(topology)
    if len(groups) < 2 or topology.moves:
        return []
    owned = Counter(topology.owners)
    weight = {g.number: _weight(g.number, owned, health, len(groups)) for g in groups}
    least, most = (
        min(weight, key=lambda g: (weight[g], g)),
        max(weight, key=lambda g: (weight[g], -g)),
    )
    mean = sum(weight.values()) / len(weight)
    if weight[most] < mean * _IMBALANCE:
        return []
    share = min((weight[most] - weight[least]) / 2 / weight[most], 0.5)
    # Load follows the slots only as jobs end: whatever it bears now, half of its share stays.
    spare = owned[most] - math.ceil(SLOTS / len(groups) / 2)
    count = min(max(1, int(owned[most] * share)), spare)
    if count < 1:
        return []
    slots = [slot for slot, owner in enumerate(topology.owners) if owner == most]
    return [MoveBegun(tuple(slots[-count:]), most, least)]


def _weight(group: int, owned: Mapping[int, int], health: TierHealth, groups: int) -> float:
    """A group's part of all slots and of all entries; both matter, entries only when many.
    A group of which nothing is known counts as one like the others."""
    by_slots = owned.get(group, 0) / SLOTS * groups
    total = sum(health.load.values())
    if total < _LOAD_WORTH_MOVING:
        return by_slots
    mean = total / len(health.load)
    return (by_slots + health.load.get(group, mean) / mean) / 2


_LOAD_WORTH_MOVING = 100.0


def _leaders(topology: Topology, health: TierHealth) -> list[Decision]:
    """Spreads leaderships over the nodes fit to lead."""
    groups = _active_groups(topology)
    fit = set(_active_nodes(topology, health)) - health.unfit - set(health.dead_s)
    leads = Counter(group.leader for group in groups)
    for group in sorted(groups, key=lambda g: (g.leader in fit, -leads[g.leader], g.number)):
        able = [voter for voter in group.voters if voter in fit]
        if not able:
            continue
        # Whoever leads already is as good as another: its successor would have to learn again
        # which workers are silent.
        now = health.leaders.get(group.number)
        best = min(able, key=lambda number: (leads[number], number != now, number))
        if group.leader not in fit or leads[group.leader] > leads[best] + 1:
            return [LeaderWanted(group.number, best)]
    return []


def _leave(topology: Topology) -> list[Decision]:
    """A draining node without a seat is gone."""
    seated = {voter for group in topology.groups.values() for voter in _all_seats(group)}
    return [
        NodeMarked(number, NodeState.GONE)
        for number, node in topology.nodes.items()
        if node.state is NodeState.DRAINING and number not in seated
    ]


def _all_seats(group: GroupRecord) -> Iterable[int]:
    return () if group.state is GroupState.DESTROYED else {*group.voters, *group.settled}
