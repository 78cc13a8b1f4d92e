"""The topology of a tier: its nodes, groups and key slots. It is the state of group 0.

The topology is a `Machine`, replicated and checked like that of any group. It applies decisions
and refuses those that contradict its state; `topology_policy` makes them. It contains no jobs:
its size is nodes x groups, plus the key slots.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct, field

from hyperscale.ledger.replica import KEY_SLOTS
from hyperscale.wire.registry import nested
from hyperscale.wire.versions import CURRENT, OLDEST, AboveVersionError, Version, admitted

REGISTRY_MAX = 1_000
REGISTRY_BYTES_MAX = 16 * 1024
NO_GROUP = 0
"""Owner of a key slot that no group owns yet: group 0 owns none."""


class NodeState(StrEnum):
    PENDING = "pending"  # follows group 0 and votes nowhere until an operator approves it
    ACTIVE = "active"
    DRAINING = "draining"  # votes until other nodes have taken over its votes
    GONE = "gone"  # its number is never used again


NODE_MOVES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.PENDING: frozenset({NodeState.ACTIVE, NodeState.GONE}),
    NodeState.ACTIVE: frozenset({NodeState.DRAINING, NodeState.GONE}),
    NodeState.DRAINING: frozenset({NodeState.ACTIVE, NodeState.GONE}),
    NodeState.GONE: frozenset(),
}


class GroupState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"  # its key slots move to its heir; destroyed once its jobs have ended
    DESTROYED = "destroyed"  # `heir` answers for its history


@nested
class NodeRecord(Struct, kw_only=True, omit_defaults=True):
    number: int
    name: str
    domain: str
    state: NodeState = NodeState.ACTIVE
    key: str = ""
    """Fingerprint of the key in the node's data directory."""
    version: Version = OLDEST
    """The version that the node announced last; 0.0 before it did."""


class GroupRecord(Struct, kw_only=True, omit_defaults=True):
    number: int
    voters: list[int]
    """The nodes that should vote."""
    settled: list[int]
    """The nodes that voted before the last change of `voters`, and may vote still."""
    founders: list[int]
    """The voters that were there when the group was created: they start from its first image."""
    key_slots: list[int]
    """The key slots the group was created with."""
    leader: int
    """The preferred leader."""
    state: GroupState = GroupState.ACTIVE
    heir: int = NO_GROUP
    change: int = 0
    """How often `voters` was changed: a late report about an earlier change is refused."""

    @property
    def all_voters(self) -> set[int]:
        """The nodes that vote or may vote still."""
        return set() if self.state is GroupState.DESTROYED else {*self.voters, *self.settled}


# -- decisions ----------------------------------------------------------------------------


class Founded(Struct, frozen=True, tag="founded"):
    """The first decision: how many nodes have to join before groups are created, and the scope of
    the tier's job ids (the name of its datacenter)."""

    awaited: int
    scope: str = ""
    version: Version = OLDEST
    """Of the founder: the first cluster version."""


class NodeJoined(Struct, frozen=True, tag="node_joined"):
    """A node with an empty disk gets a number. A node id that is known has lost its disk, and
    with it the votes it gave: its old number is never used again."""

    name: str
    domain: str
    nonce: str = ""
    key: str = ""
    is_approved: bool = True
    """False: the node is pending until an operator approves it, unless it is a founder."""


class NodeStateChanged(Struct, frozen=True, tag="node_state_changed"):
    number: int
    state: NodeState


class GroupCreated(Struct, frozen=True, tag="group_created"):
    number: int
    voters: tuple[int, ...]
    key_slots: tuple[int, ...] = ()


class VotersWanted(Struct, frozen=True, tag="voters_wanted"):
    group: int
    voters: tuple[int, ...]


class VotersSettled(Struct, frozen=True, tag="voters_settled"):
    """A group's leader reports that the change of its voters is complete."""

    group: int
    voters: tuple[int, ...]
    change: int = 0


class LeaderWanted(Struct, frozen=True, tag="leader_wanted"):
    group: int
    leader: int


class MigrationStarted(Struct, frozen=True, tag="migration_started", omit_defaults=True):
    key_slots: tuple[int, ...]
    source: int
    target: int


class MigrationEnded(Struct, frozen=True, tag="migration_ended"):
    number: int


class GroupDraining(Struct, frozen=True, tag="group_draining"):
    group: int
    heir: int


class GroupDestroyed(Struct, frozen=True, tag="group_destroyed"):
    group: int


class RegistryChanged(Struct, frozen=True, tag="registry_changed"):
    """An entry of the tier's registry gets a value, if it still has the one before."""

    name: str
    before: bytes | None
    after: bytes


class VersionAnnounced(Struct, frozen=True, tag="version_announced"):
    """A node runs a version."""

    number: int
    version: Version


class VersionAgreed(Struct, frozen=True, tag="version_agreed"):
    """All members of the tier announce this version: the cluster version rises to it after the
    hold. The present cluster version: they do so no more."""

    version: Version


class VersionRaised(Struct, frozen=True, tag="version_raised"):
    """The cluster version rises. Older nodes are refused from now on."""

    version: Version
    leaves_behind: tuple[int, ...] = ()
    """Nodes that are older and away, which an operator gave up."""


Decision = (
    Founded
    | NodeJoined
    | NodeStateChanged
    | GroupCreated
    | VotersWanted
    | VotersSettled
    | LeaderWanted
    | MigrationStarted
    | MigrationEnded
    | GroupDraining
    | GroupDestroyed
    | RegistryChanged
    | VersionAnnounced
    | VersionAgreed
    | VersionRaised
)


class DecisionReply(Struct, frozen=True):
    """The answer to a decision: a number (of a node, group or migration), or why it was refused."""

    number: int = 0
    refused: str = ""


_encode = encode_decision = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Decision).decode
decode_decision_reply = msgspec.msgpack.Decoder(DecisionReply).decode


def _refuse(reason: str) -> DecisionReply:
    return DecisionReply(refused=reason)


class _DecisionApplied(Struct, frozen=True):
    event: Decision | None
    """None: this version does not know the decision, or not every node of the tier does."""
    reply: DecisionReply
    history: Sequence[tuple[str, str, bytes]] = ()

    @property
    def did_change(self) -> bool:
        return not self.reply.refused


class Topology(Struct, omit_defaults=True):
    """Nodes, groups and key slots of one tier. Encoded, it is its own snapshot."""

    awaited: int = 1
    """How many nodes have to join before groups are created."""
    scope: str = ""
    """The first part of every job id of this tier."""
    nodes: dict[int, NodeRecord] = {}
    groups: dict[int, GroupRecord] = {}
    """All groups, with the destroyed ones, which name their heirs."""
    migrations: dict[int, MigrationStarted] = {}
    """Key slots under way from one group to another."""
    owners: list[int] = field(default_factory=lambda: [NO_GROUP] * KEY_SLOTS)
    """The group that owns each key slot."""
    nonces: dict[str, int] = {}
    next_node: int = 1
    next_migration: int = 1
    registry: dict[str, bytes] = {}
    """Few small facts that every node of the tier must know, by name. Gates keep datacenters here;
    the ledger does not read them."""
    version: Version = OLDEST
    """The cluster version: every member of the tier has it or a newer one."""
    agreed: Version = OLDEST
    """The higher version that every member of the tier announces; else not above `version`."""
    agreed_ms: int = 0
    """Since when, in the time of group 0."""

    # -- reading --------------------------------------------------------------------------

    def number_of(self, name: str) -> int | None:
        """Return the number of a node that is not gone."""
        nodes = (node for node in self.nodes.values() if node.state is not NodeState.GONE)
        return next((node.number for node in nodes if node.name == name), None)

    def active(self) -> list[int]:
        """Return the numbers of the active nodes."""
        return [n.number for n in self.nodes.values() if n.state is NodeState.ACTIVE]

    def name_of(self, number: int) -> str | None:
        node = self.nodes.get(number)
        return None if node is None else node.name

    def live_groups(self) -> list[GroupRecord]:
        """Return the groups that are not destroyed."""
        return [g for g in self.groups.values() if g.state is not GroupState.DESTROYED]

    def older_node(self, version: Version, *, besides: Sequence[int] = ()) -> NodeRecord | None:
        """Return a node that is not gone and has not announced this version or a newer one."""
        nodes = (n for n in self.nodes.values() if n.state is not NodeState.GONE)
        return next((n for n in nodes if n.version < version and n.number not in besides), None)

    def heir_of(self, group: int) -> int:
        """Return the group that answers for this one: itself, or the last of its heirs."""
        seen: set[int] = set()
        while (record := self.groups.get(group)) is not None:
            if record.state is not GroupState.DESTROYED or record.heir in seen:
                break
            seen.add(group)
            group = record.heir
        return group

    # -- Machine --------------------------------------------------------------------------

    def apply(
        self,
        _index: int,
        time_ms: int,
        body: bytes,
        *,
        unix_ms: int = 0,  # noqa: ARG002  the ledger's protocol
        version: Version = CURRENT,
    ) -> _DecisionApplied:
        try:
            decision = admitted(_decode(body), version)
        except (msgspec.ValidationError, AboveVersionError) as error:
            return _DecisionApplied(None, _refuse(f"not a decision: {error}"))
        return _DecisionApplied(decision, self.decide(decision, time_ms=time_ms))

    def encode_reply(self, reply: object) -> bytes:
        return _encode(reply)

    @property
    def state(self) -> object:
        return self

    def snapshot(self) -> bytes:
        return _encode(self)

    def restore(self, data: bytes) -> None:
        restored = msgspec.msgpack.decode(data, type=Topology)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(restored, name))

    def export_keys(self, _is_moved: Callable[[str], bool]) -> bytes:
        return b""

    def import_keys(self, _data: bytes) -> None:
        """Group 0 has no keys."""

    # -- rules ----------------------------------------------------------------------------

    def decide(self, decision: Decision, *, time_ms: int = 0) -> DecisionReply:
        """Apply a decision, or refuse it with the reason. `time_ms`: the time of group 0."""
        reply = DecisionReply()
        match decision:
            case Founded():
                self.awaited, self.scope = decision.awaited, decision.scope
                self.version = self.agreed = decision.version
            case NodeJoined():
                reply = self._joined(decision)
            case NodeStateChanged():
                reply = self._state_changed(decision.number, decision.state)
            case GroupCreated():
                reply = self._created(decision)
            case MigrationStarted():
                reply = self._migration_started(decision)
            case MigrationEnded():
                if (ended := self.migrations.pop(decision.number, None)) is not None:
                    for key_slot in ended.key_slots:
                        self.owners[key_slot] = ended.target
                reply = DecisionReply(decision.number)
            case RegistryChanged():
                reply = self._registry_changed(decision)
            case VersionAnnounced() | VersionAgreed() | VersionRaised():
                reply = self._about_version(decision, time_ms)
            case _:
                reply = self._about_group(decision)
        return reply

    def _joined(self, joined: NodeJoined) -> DecisionReply:
        if joined.nonce and joined.nonce in self.nonces:
            return DecisionReply(self.nonces[joined.nonce])  # a repeated request
        if (former := self.number_of(joined.name)) is not None:
            self.nodes[former].state = NodeState.GONE
        members = sum(node.state is not NodeState.GONE for node in self.nodes.values())
        is_founder = members < self.awaited and not self.groups
        number = self.next_node
        self.next_node += 1
        self.nodes[number] = NodeRecord(
            number=number,
            name=joined.name,
            domain=joined.domain,
            state=NodeState.ACTIVE if joined.is_approved or is_founder else NodeState.PENDING,
            key=joined.key,
        )
        if joined.nonce:
            self.nonces[joined.nonce] = number
        return DecisionReply(number)

    def _state_changed(self, number: int, mark: NodeState) -> DecisionReply:
        node = self.nodes.get(number)
        if node is None:
            return _refuse(f"the ledger has no node {number}")
        if mark is not node.state and mark not in NODE_MOVES[node.state]:
            if node.state is NodeState.GONE:
                return _refuse(f"node {node.name} was removed; it can join as a new node")
            return _refuse(f"node {node.name} is {node.state} and cannot become {mark}")
        node.state = mark
        return DecisionReply(number)

    def _created(self, created: GroupCreated) -> DecisionReply:
        if created.number in self.groups:
            return _refuse(f"group {created.number} exists or existed")
        if not created.voters or any(voter not in self.nodes for voter in created.voters):
            return _refuse(f"group {created.number} needs voters of this ledger")
        if taken := [slot for slot in created.key_slots if self.owners[slot] != NO_GROUP]:
            return _refuse(f"{len(taken)} of these key slots have an owner")
        voters = sorted(created.voters)
        self.groups[created.number] = GroupRecord(
            number=created.number,
            voters=voters,
            settled=voters,
            founders=list(voters),
            key_slots=sorted(set(created.key_slots)),
            leader=voters[created.number % len(voters)],
        )
        for key_slot in created.key_slots:
            self.owners[key_slot] = created.number
        return DecisionReply(created.number)

    def _migration_started(self, migration: MigrationStarted) -> DecisionReply:
        target = self.groups.get(migration.target)
        if target is None or target.state is not GroupState.ACTIVE:
            return _refuse(f"group {migration.target} accepts no key slots")
        if not migration.key_slots or migration.source == migration.target:
            return _refuse("a migration needs key slots and two different groups")
        moving = {key_slot for other in self.migrations.values() for key_slot in other.key_slots}
        is_theirs = all(
            self.owners[key_slot] == migration.source and key_slot not in moving
            for key_slot in migration.key_slots
        )
        if not is_theirs or len(set(migration.key_slots)) < len(migration.key_slots):
            return _refuse(f"group {migration.source} does not own these key slots")
        number = self.next_migration
        self.next_migration += 1
        self.migrations[number] = migration
        return DecisionReply(number)

    def _registry_changed(self, change: RegistryChanged) -> DecisionReply:
        if self.registry.get(change.name) != change.before:
            return _refuse(f"{change.name} was changed meanwhile")
        if len(change.after) > REGISTRY_BYTES_MAX:
            return _refuse(f"{change.name} has {len(change.after):,} bytes")
        if change.before is None and len(self.registry) >= REGISTRY_MAX:
            return _refuse(f"the registry is full: it has {REGISTRY_MAX:,} entries")
        self.registry[change.name] = change.after
        return DecisionReply()

    def _about_version(
        self, decision: VersionAnnounced | VersionAgreed | VersionRaised, time_ms: int
    ) -> DecisionReply:
        match decision:
            case VersionAnnounced(number=number, version=version):
                if (node := self.nodes.get(number)) is None:
                    return _refuse(f"the ledger has no node {number}")
                node.version = version
            case VersionAgreed(version=version):
                self.agreed, self.agreed_ms = max(version, self.version), time_ms
            case VersionRaised(version=version, leaves_behind=left):
                if (older := self.older_node(version, besides=left)) is not None:
                    return _refuse(
                        f"{older.name} runs version {older.version}: the cluster version cannot "
                        f"rise to {version}"
                    )
                if version <= self.version:
                    return _refuse(f"the cluster version is {self.version} already")
                self.version, self.agreed, self.agreed_ms = version, version, 0
        return DecisionReply()

    def _about_group(
        self,
        decision: VotersWanted | VotersSettled | LeaderWanted | GroupDraining | GroupDestroyed,
    ) -> DecisionReply:
        record = self.groups.get(decision.group)
        if record is None or record.state is GroupState.DESTROYED:
            return _refuse(f"the ledger has no group {decision.group}")
        match decision:
            case VotersWanted(voters=voters):
                return self._voters_wanted(record, voters)
            case VotersSettled():
                return _voters_settled(record, decision)
            case LeaderWanted(leader=leader):
                if leader not in record.voters:
                    return _refuse(f"node {leader} does not vote in group {record.number}")
                record.leader = leader
            case GroupDraining(heir=heir):
                record.state = GroupState.DRAINING
                record.heir = heir
            case GroupDestroyed():
                moving = {g for m in self.migrations.values() for g in (m.source, m.target)}
                is_owner = record.number in moving.union(self.owners)
                if is_owner or record.state is not GroupState.DRAINING:
                    return _refuse(f"group {record.number} still owns key slots or is not drained")
                record.state = GroupState.DESTROYED
        return DecisionReply(record.number)

    def _voters_wanted(self, record: GroupRecord, voters: Sequence[int]) -> DecisionReply:
        if not voters or any(voter not in self.nodes for voter in voters):
            return _refuse(f"group {record.number} needs voters of this ledger")
        if record.voters != record.settled:
            # A change that was not completed may have made some of them voters.
            record.settled = sorted({*record.settled, *record.voters})
        record.voters = sorted(voters)
        record.change += 1
        if record.leader not in record.voters:
            record.leader = record.voters[record.number % len(record.voters)]
        return DecisionReply(record.number)


def _voters_settled(record: GroupRecord, settled: VotersSettled) -> DecisionReply:
    voters = sorted(settled.voters)
    if settled.change != record.change or voters != record.voters:
        # Other nodes may vote by now, and a node in neither list destroys its replica.
        return _refuse(f"the voters of group {record.number} were changed again")
    record.settled = voters
    record.founders = [node for node in record.founders if node in voters]
    return DecisionReply(record.number)
