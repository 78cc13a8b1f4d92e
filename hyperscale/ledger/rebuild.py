"""A new ledger made of an old one: of a backup, or of what one surviving node has on its disk.

The new ledger has a new id and one node, which is the only voter of every group; other nodes join
it with empty disks. Groups keep their numbers, because job ids name them. A group that is not there
has lost its jobs: another group gets its key slots and answers for its history. Jobs that had not
ended are ended by the commands of `end_open`, so nothing is dispatched a second time.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from hyperscale._native import GroupImage
from hyperscale.errors import InputError
from hyperscale.ledger.backup import GroupBackup
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.records import COUNTER_BITS, MachineCommand, encode_record
from hyperscale.ledger.replica import KEY_SLOTS, HistoryRow, Replica
from hyperscale.ledger.topology import (
    NO_GROUP,
    GroupRecord,
    GroupState,
    NodeRecord,
    Topology,
)

_VOTER = 1
"""The number of the only node."""

_COMMAND = 0
"""The kind of an entry that is not a change of voters."""

EndOpen = Callable[[Machine], Iterable[bytes]]
"""Returns the commands that end every job of a machine that has not ended."""


class NewNode(Struct, frozen=True, kw_only=True):
    """The first node of the new ledger."""

    name: str
    key: str
    """Fingerprint of the key in its data directory."""
    domain: str


class RebuiltGroup(Struct, frozen=True):
    """What the node stores of a group."""

    image: GroupImage
    history: list[HistoryRow]


class RebuiltLedger(Struct, frozen=True, kw_only=True):
    """The new ledger, and what became of the old one's jobs."""

    groups: list[RebuiltGroup]
    ended_jobs: int
    """Jobs that had not ended and are ended now."""


def replica_of_image(image: GroupImage, machine: Machine) -> Replica:
    """Return a group as the disk of a node has it, with entries that the node does not know to be
    committed: they may have been acknowledged."""
    replica = Replica(image.group, machine)
    index, term, _, data = image.snapshot
    if data:
        replica.restore(index, data)
        replica.term = term
    for index, term, kind, data in image.entries:
        if index > replica.applied:
            replica.apply(index, term, data if kind == _COMMAND else b"")
    return replica


def replica_of_backup(backup: GroupBackup, machine: Machine) -> Replica:
    """Return a group as a backup has it."""
    replica = Replica(backup.group, machine)
    replica.restore(backup.index, backup.state)
    replica.term = backup.term
    replica.history = list(backup.history)
    return replica


def lost_groups(topology: Topology, replicas: Mapping[int, Replica]) -> list[int]:
    """Return the groups of which nothing is there."""
    return [record.number for record in topology.live_groups() if record.number not in replicas]


def rebuild(
    topology: Topology, replicas: Mapping[int, Replica], node: NewNode, end_open: EndOpen
) -> RebuiltLedger:
    """Make a new ledger with one node. `replicas`: the groups of jobs that are there."""
    if not replicas:
        raise InputError("there is no group of jobs to make a new ledger of")
    _settle_migrations(topology, replicas)
    owners = _owners(topology, replicas)
    ended = 0
    for group, replica in replicas.items():
        replica.key_slots = {slot for slot in range(KEY_SLOTS) if owners[slot] == group}
        ended += _end_jobs(replica, end_open)
    new = replace(
        topology,
        awaited=1,
        nodes={_VOTER: NodeRecord(number=_VOTER, name=node.name, domain=node.domain, key=node.key)},
        groups={
            number: _record(number, owners, topology, replicas)
            for number in sorted(topology.groups)
        },
        migrations={},
        owners=owners,
        nonces={},
        next_node=_VOTER + 1,
    )
    first = GroupImage.first(MANAGEMENT, [_VOTER], Replica(MANAGEMENT, new).snapshot())
    groups = [RebuiltGroup(first, []), *(_rebuilt(each) for each in replicas.values())]
    return RebuiltLedger(groups=groups, ended_jobs=ended)


def _settle_migrations(topology: Topology, replicas: Mapping[int, Replica]) -> None:
    """Have released key slots adopted, or given back if their new group is lost."""
    for source in replicas.values():
        for migration, outgoing in sorted(source.outgoing.items()):
            target = replicas.get(topology.heir_of(outgoing.target), source)
            target.adopt(migration, outgoing.key_slots, outgoing.keys)
        source.outgoing.clear()


def _owners(topology: Topology, replicas: Mapping[int, Replica]) -> list[int]:
    """Return the group that owns each key slot in the new ledger."""
    first = min(replicas)
    owners = []
    for slot, named in enumerate(topology.owners):
        claims = [group for group, replica in replicas.items() if slot in replica.key_slots]
        if named in claims or (not claims and named in replicas):
            owners.append(named)
        else:
            # Where two groups claim a key slot, the one that has adopted it is newer.
            owners.append(max(claims, default=first))
    return owners


def _end_jobs(replica: Replica, end_open: EndOpen) -> int:
    """Apply the commands that end what had not ended; return their number."""
    ended = 0
    for body in list(end_open(replica.machine)):
        stamp = (replica.last_ms << COUNTER_BITS) + 1
        record = MachineCommand(stamp, "", body, replica.time_ms)
        replica.apply(replica.applied + 1, replica.term, encode_record(record))
        ended += 1
    return ended


def _record(
    number: int, owners: list[int], topology: Topology, replicas: Mapping[int, Replica]
) -> GroupRecord:
    """Return the record of a group in the new topology: it is there, or has an heir."""
    is_here = number in replicas
    heir = topology.heir_of(number)
    return GroupRecord(
        number=number,
        voters=[_VOTER] if is_here else [],
        settled=[_VOTER] if is_here else [],
        founders=[_VOTER] if is_here else [],
        key_slots=[slot for slot in range(KEY_SLOTS) if is_here and owners[slot] == number],
        leader=_VOTER,
        state=GroupState.ACTIVE if is_here else GroupState.DESTROYED,
        heir=NO_GROUP if is_here else heir if heir in replicas else min(replicas),
    )


def _rebuilt(replica: Replica) -> RebuiltGroup:
    _, _, voters, data = GroupImage.first(replica.group, [_VOTER], replica.snapshot()).snapshot
    snapshot = (replica.applied, replica.term, voters, data)
    hard = (replica.term, 0, replica.applied)
    return RebuiltGroup(GroupImage(replica.group, hard, snapshot, []), replica.history)
