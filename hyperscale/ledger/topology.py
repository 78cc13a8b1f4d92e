"""The state of group 0: which nodes, groups and slots there are. No job is ever in here.

A `Machine` like any other, so it is replicated, snapshotted and checked like any other. Who
decides what it should be is `placement`; this only applies what was decided, and refuses what
contradicts itself. Its size is nodes x groups, plus the slots.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct, field

from hyperscale.ledger.replica import SLOTS

NO_GROUP = 0
"""Owner of a slot nobody has yet: group 0 owns none."""


class NodeState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"  # takes part until its seats are given to others
    GONE = "gone"  # its id is never used again


class GroupState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"  # its slots go to others; it is destroyed when it has no live job
    DESTROYED = "destroyed"  # `heir` answers for its history


class NodeRecord(Struct, kw_only=True):
    number: int
    name: str
    domain: str
    state: NodeState = NodeState.ACTIVE


class GroupRecord(Struct, kw_only=True):
    number: int
    voters: list[int]
    """Who should vote; `settled` is who did before that, and may still."""
    settled: list[int]
    founders: list[int]
    """Voters since the group's birth: these may begin from its first image."""
    slots: list[int]
    """With which it was born."""
    leader: int
    """Who should lead, if it can."""
    state: GroupState = GroupState.ACTIVE
    heir: int = NO_GROUP
    change: int = 0
    """How often other voters were wanted: a late report about an earlier change is none."""


class MoveRecord(Struct, kw_only=True):
    number: int
    slots: tuple[int, ...]
    source: int
    target: int


# -- decisions ----------------------------------------------------------------------------


class Founded(Struct, frozen=True, tag="founded"):
    """The first entry of all: how many nodes are awaited before groups are made."""

    awaited: int


class NodeJoined(Struct, frozen=True, tag="node_joined"):
    """A node with an empty disk gets a number. A name that is known has lost its disk: its old
    number is gone for good, for with the disk went the promises it had made."""

    name: str
    domain: str
    nonce: str = ""


class NodeMarked(Struct, frozen=True, tag="node_marked"):
    number: int
    state: NodeState


class GroupCreated(Struct, frozen=True, tag="group_created"):
    number: int
    voters: tuple[int, ...]
    slots: tuple[int, ...] = ()


class SeatsWanted(Struct, frozen=True, tag="seats_wanted"):
    group: int
    voters: tuple[int, ...]


class SeatsSettled(Struct, frozen=True, tag="seats_settled"):
    """A group's leader reports that those vote in it who should after this change."""

    group: int
    voters: tuple[int, ...]
    change: int = 0


class LeaderWanted(Struct, frozen=True, tag="leader_wanted"):
    group: int
    leader: int


class MoveBegun(Struct, frozen=True, tag="move_begun"):
    slots: tuple[int, ...]
    source: int
    target: int


class MoveEnded(Struct, frozen=True, tag="move_ended"):
    number: int


class GroupDraining(Struct, frozen=True, tag="group_draining"):
    group: int
    heir: int


class GroupDestroyed(Struct, frozen=True, tag="group_destroyed"):
    group: int


Decision = (
    Founded
    | NodeJoined
    | NodeMarked
    | GroupCreated
    | SeatsWanted
    | SeatsSettled
    | LeaderWanted
    | MoveBegun
    | MoveEnded
    | GroupDraining
    | GroupDestroyed
)


class DecisionReply(Struct, frozen=True):
    """What became of a decision: a number (of a node, group or move), or why not."""

    number: int = 0
    refused: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Decision).decode
_decode_decision_reply = msgspec.msgpack.Decoder(DecisionReply).decode


def encode_decision(decision: Decision) -> bytes:
    return _encode(decision)


def decode_decision_reply(reply: bytes) -> DecisionReply:
    return _decode_decision_reply(reply)


class _State(Struct):
    awaited: int = 1
    nodes: dict[int, NodeRecord] = {}
    groups: dict[int, GroupRecord] = {}
    moves: dict[int, MoveRecord] = {}
    owners: list[int] = field(default_factory=lambda: [NO_GROUP] * SLOTS)
    nonces: dict[str, int] = {}
    next_node: int = 1
    next_move: int = 1


class _DecisionApplied(Struct, frozen=True):
    event: Decision
    reply: DecisionReply
    history: Sequence[tuple[str, str, bytes]] = ()


class Topology:
    """Nodes, groups and slots of one tier."""

    def __init__(self) -> None:
        self._state = _State()

    # -- reading --------------------------------------------------------------------------

    @property
    def awaited(self) -> int:
        return self._state.awaited

    @property
    def nodes(self) -> dict[int, NodeRecord]:
        return self._state.nodes

    @property
    def groups(self) -> dict[int, GroupRecord]:
        """All there ever were; destroyed ones point to their heirs."""
        return self._state.groups

    @property
    def moves(self) -> dict[int, MoveRecord]:
        return self._state.moves

    @property
    def owners(self) -> Sequence[int]:
        """The group of each slot."""
        return self._state.owners

    def number_of(self, name: str) -> int | None:
        """The number under which a node takes part now."""
        for node in self._state.nodes.values():
            if node.name == name and node.state is not NodeState.GONE:
                return node.number
        return None

    def name_of(self, number: int) -> str | None:
        node = self._state.nodes.get(number)
        return None if node is None else node.name

    def heir_of(self, group: int) -> int:
        """The group that answers for this one: itself, or the last of its heirs."""
        seen = {group}
        while (record := self._state.groups.get(group)) is not None:
            if record.state is not GroupState.DESTROYED or record.heir in seen:
                break
            group = record.heir
            seen.add(group)
        return group

    # -- Machine --------------------------------------------------------------------------

    def apply(self, _index: int, _stamp_ms: int, body: bytes) -> _DecisionApplied:
        decision = _decode(body)
        return _DecisionApplied(decision, self.decide(decision))

    def encode_reply(self, reply: object) -> bytes:
        return _encode(reply)

    def snapshot(self) -> bytes:
        return _encode(self._state)

    def restore(self, data: bytes) -> None:
        self._state = msgspec.msgpack.decode(data, type=_State)

    def digest(self) -> bytes:
        return hashlib.blake2b(self.snapshot(), digest_size=16).digest()

    def export_keys(self, _slots: frozenset[int]) -> bytes:
        return b""

    def import_keys(self, _data: bytes) -> None:
        """Group 0 has no keys."""

    # -- rules ----------------------------------------------------------------------------

    def decide(self, decision: Decision) -> DecisionReply:
        """Applies a decision, or says why it cannot be."""
        match decision:
            case Founded(awaited=awaited):
                self._state.awaited = awaited
                reply = DecisionReply()
            case NodeJoined():
                reply = self._joined(decision)
            case NodeMarked(number=number, state=state):
                reply = self._marked(number, state)
            case GroupCreated():
                reply = self._created(decision)
            case MoveBegun():
                reply = self._move_begun(decision)
            case MoveEnded(number=number):
                reply = self._move_ended(number)
            case _:
                reply = self._about_group(decision)
        return reply

    def _joined(self, joined: NodeJoined) -> DecisionReply:
        state = self._state
        if joined.nonce and joined.nonce in state.nonces:
            return DecisionReply(state.nonces[joined.nonce])  # the same request again
        if (former := self.number_of(joined.name)) is not None:
            state.nodes[former].state = NodeState.GONE
        number = state.next_node
        state.next_node += 1
        state.nodes[number] = NodeRecord(number=number, name=joined.name, domain=joined.domain)
        if joined.nonce:
            state.nonces[joined.nonce] = number
        return DecisionReply(number)

    def _marked(self, number: int, mark: NodeState) -> DecisionReply:
        node = self._state.nodes.get(number)
        if node is None:
            return DecisionReply(refused=f"there is no node {number}")
        if node.state is NodeState.GONE and mark is not NodeState.GONE:
            return DecisionReply(refused=f"node {node.name} is gone; it can only join as a new one")
        node.state = mark
        return DecisionReply(number)

    def _created(self, created: GroupCreated) -> DecisionReply:
        state = self._state
        if created.number in state.groups:
            return DecisionReply(refused=f"group {created.number} exists, or did")
        if not created.voters or any(voter not in state.nodes for voter in created.voters):
            return DecisionReply(refused=f"group {created.number} needs voters that are nodes")
        if taken := [slot for slot in created.slots if state.owners[slot] != NO_GROUP]:
            return DecisionReply(refused=f"{len(taken)} of these slots have an owner")
        voters = sorted(created.voters)
        state.groups[created.number] = GroupRecord(
            number=created.number,
            voters=voters,
            settled=voters,
            founders=list(voters),
            slots=sorted(set(created.slots)),
            leader=voters[created.number % len(voters)],
        )
        for slot in created.slots:
            state.owners[slot] = created.number
        return DecisionReply(created.number)

    def _move_begun(self, move: MoveBegun) -> DecisionReply:
        state = self._state
        target = state.groups.get(move.target)
        if target is None or target.state is not GroupState.ACTIVE:
            return DecisionReply(refused=f"group {move.target} takes no slots")
        if not move.slots or move.source == move.target:
            return DecisionReply(refused="there is nothing to move")
        moving = {slot for other in state.moves.values() for slot in other.slots}
        is_theirs = all(
            state.owners[slot] == move.source and slot not in moving for slot in move.slots
        )
        if not is_theirs or len(set(move.slots)) < len(move.slots):
            return DecisionReply(refused=f"these slots are not group {move.source}'s to give")
        number = state.next_move
        state.next_move += 1
        state.moves[number] = MoveRecord(
            number=number, slots=tuple(move.slots), source=move.source, target=move.target
        )
        return DecisionReply(number)

    def _move_ended(self, number: int) -> DecisionReply:
        move = self._state.moves.pop(number, None)
        if move is not None:
            for slot in move.slots:
                self._state.owners[slot] = move.target
        return DecisionReply(number)

    def _about_group(
        self,
        decision: SeatsWanted | SeatsSettled | LeaderWanted | GroupDraining | GroupDestroyed,
    ) -> DecisionReply:
        record = self._state.groups.get(decision.group)
        if record is None or record.state is GroupState.DESTROYED:
            return DecisionReply(refused=f"there is no group {decision.group}")
        match decision:
            case SeatsWanted(voters=voters):
                return self._seats_wanted(record, voters)
            case SeatsSettled():
                return _seats_settled(record, decision)
            case LeaderWanted(leader=leader):
                if leader not in record.voters:
                    return DecisionReply(
                        refused=f"node {leader} does not vote in group {record.number}"
                    )
                record.leader = leader
            case GroupDraining(heir=heir):
                record.state = GroupState.DRAINING
                record.heir = heir
            case GroupDestroyed():
                is_owner = record.number in self._state.owners or self._moves_of(record.number)
                if is_owner or record.state is not GroupState.DRAINING:
                    return DecisionReply(refused=f"group {record.number} is in use")
                record.state = GroupState.DESTROYED
        return DecisionReply(record.number)

    def _seats_wanted(self, record: GroupRecord, voters: Sequence[int]) -> DecisionReply:
        if not voters or any(voter not in self._state.nodes for voter in voters):
            return DecisionReply(refused=f"group {record.number} needs voters that are nodes")
        if record.voters != record.settled:
            # A change that did not end may have seated some of them.
            record.settled = sorted({*record.settled, *record.voters})
        record.voters = sorted(voters)
        record.change += 1
        if record.leader not in record.voters:
            record.leader = record.voters[record.number % len(record.voters)]
        return DecisionReply(record.number)

    def _moves_of(self, group: int) -> list[MoveRecord]:
        moves = self._state.moves.values()
        return [move for move in moves if group in (move.source, move.target)]


def _seats_settled(record: GroupRecord, settled: SeatsSettled) -> DecisionReply:
    voters = sorted(settled.voters)
    if settled.change != record.change or voters != record.voters:
        # Others may vote by now, and whoever is in neither list destroys its replica.
        return DecisionReply(refused=f"group {record.number} has moved on")
    record.settled = voters
    record.founders = [node for node in record.founders if node in voters]
    return DecisionReply(record.number)
