"""The invariants of a tier, checked after every event.

1. At most one leader of a group in a term, and at most one vote of a node, however often it
   restarts.
2. An entry that was applied anywhere is the same entry everywhere: index, term and bytes; and
   entries of one index and term are the same on every disk, with the same one before them.
3. Replicas that applied the same entries are equal (digests).
4. An entry is acknowledged only when a majority of its voters has it on disk, and stays.
5. A slot belongs to at most one group; a key makes one job, wherever and however often it is
   submitted.
6. Of a part's attempts only the open one can be finished, and only one is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Code,
    JobSubmitted,
    PartEnded,
    PartRedispatched,
    Reply,
    WorkflowDispatched,
    decode,
)
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.records import (
    KeySlotsAdopted,
    KeySlotsReleased,
    MachineCommand,
    decode_record,
)
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.ledger.topology import GroupState
from tests.simulation.kernel import Host, Monitor, World
from tests.simulation.ledger.observed import ObservedCore, Observer
from tests.simulation.ledger.program import LedgerProgram
from tests.simulation.ledger.tier import Tier

_DIGEST_EVERY = 4
_VOTED = 6  # the kind of message that answers a request for a vote


@dataclass
class Findings:
    """Counts of what happened in a run."""

    entries: int = 0
    acknowledged: int = 0
    leaders: int = 0
    snapshots: int = 0
    migrations: int = 0
    seats: int = 0
    destroyed: int = 0


@dataclass(slots=True)
class _Part:
    attempt: int = 0
    is_open: bool = False
    has_ended: bool = False


@dataclass(slots=True)
class _Fact:
    """One applied entry, and the digest of the state after it."""

    term: int
    data: bytes
    digest: bytes | None


@dataclass
class _Group:
    facts: dict[int, _Fact] = field(default_factory=dict)
    leaders: dict[int, int] = field(default_factory=dict)
    slots: frozenset[int] = frozenset()
    acknowledged: int = 0
    logs: dict[tuple[int, int], bytes] = field(default_factory=dict)


class LedgerMonitor(Monitor, Observer):
    """Checks the invariants of a tier."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.world: World
        self.tier: Tier
        self.groups: dict[int, _Group] = {}
        self.jobs: dict[str, str] = {}
        self._parts: dict[tuple[str, str, int], _Part] = {}
        self._votes: dict[tuple[int, int, int], int] = {}

    # -- kernel side ----------------------------------------------------------------------

    def started(self, host: Host) -> None:
        self.after(host)

    def stopping(self, host: Host, how: str) -> None:
        del how
        if host.address in self.tier.stores:
            self.tier.down_since_s[host.address] = self.world.now_s
            keeps = self.world.rng.random() < 0.5
            self.tier.stores[host.address].crash(keeps_sync=keeps)

    def after(self, host: Host) -> None:
        program = host.program
        if not isinstance(program, LedgerProgram) or not program.roles:
            return
        roles, program.roles = program.roles, []
        for role in roles:
            if role.is_leader:
                self._leads(program.core_number, role.group, role.term)

    def _leads(self, number: int, group: int, term: int) -> None:
        leaders = self._group(group).leaders
        other = leaders.setdefault(term, number)
        if other != number:
            self.world.fail(f"group {group} has two leaders in term {term}: {other} and {number}")
        self.findings.leaders += 1

    def voted(self, core: ObservedCore, packed: bytes) -> None:
        for group, message in unpacked(packed):
            kind, to, term, reject = (message.get(field, 0) for field in (1, 2, 4, 10))
            if kind == _VOTED and not reject:
                given = self._votes.setdefault((core.number, group, term), to)
                if given != to:
                    self.world.fail(
                        f"node {core.number} voted twice in term {term} of group {group}: "
                        f"for {given} and for {to}"
                    )

    def _group(self, group: int) -> _Group:
        found = self.groups.get(group)
        if found is None:
            found = self.groups[group] = _Group()
        return found

    # -- applying -------------------------------------------------------------------------

    def applied(self, core: ObservedCore, group: int, index: int, term: int, data: bytes) -> None:
        known = self._group(group)
        fact = known.facts.get(index)
        replica = core.replicas[group]
        if fact is None:
            digest = replica.digest()
            known.facts[index] = _Fact(term, data, digest)
            self.findings.entries += 1
            if data and group != MANAGEMENT:
                self._first(core, group, data)
            return
        if (fact.term, fact.data) != (term, data):
            self.world.fail(
                f"node {core.number} applied another entry {index} of group {group}: "
                f"term {term} {_say(data)}, elsewhere term {fact.term} {_say(fact.data)}"
            )
        if index % _DIGEST_EVERY == 0:
            self.check_digest(core, group)

    def check_digest(self, core: ObservedCore, group: int) -> None:
        """Check that a replica equals the others after the same entries."""
        replica = core.replicas[group]
        fact = self._group(group).facts.get(replica.applied)
        if fact is not None and fact.digest != replica.digest():
            self.world.fail(
                f"node {core.number}: its replica of group {group} at {replica.applied} "
                "differs from others'"
            )

    def restored(self, core: ObservedCore, group: int) -> None:
        self.findings.snapshots += 1
        self.check_digest(core, group)

    def _first(self, core: ObservedCore, group: int, data: bytes) -> None:
        """Note an entry that is applied for the first time on any node."""
        record = decode_record(data)
        replica = core.replicas[group]
        if isinstance(record, KeySlotsReleased | KeySlotsAdopted):
            self.findings.migrations += isinstance(record, KeySlotsAdopted)
            self._group(group).slots = frozenset(replica.key_slots)
            self._check_slots(group)
        elif isinstance(record, MachineCommand) and isinstance(replica.machine, JobMachine):
            self._judge(group, record, core.last_reply)

    def born(self, core: ObservedCore, group: int) -> None:
        """Note a group that was created with its key slots."""
        known = self._group(group)
        if not known.slots and not known.facts:
            known.slots = frozenset(core.replicas[group].key_slots)
            self._check_slots(group)

    def _check_slots(self, group: int) -> None:
        own = self._group(group).slots
        for other, known in self.groups.items():
            if other != group and own & known.slots:
                shared = len(own & known.slots)
                self.world.fail(f"groups {group} and {other} both own {shared} key slots")

    def _judge(self, group: int, record: MachineCommand, reply: object) -> None:
        if not isinstance(reply, Reply):
            return  # not this group's slot
        if not reply.ok or reply.code is not Code.OK:
            return
        event = decode(record.body)
        if isinstance(event, JobSubmitted):
            first = self.jobs.setdefault(event.key, reply.job)
            if first != reply.job:
                self.world.fail(f"the key {event.key} made two jobs: {first} and {reply.job}")
        elif isinstance(event, WorkflowDispatched):
            for index in range(len(event.parts)):
                self._open(event.job, event.workflow, index, 1)
        elif isinstance(event, PartRedispatched):
            self._open(event.job, event.workflow, event.part, event.attempt)
        elif isinstance(event, AttemptRevoked):
            part = self._part(event.job, event.workflow, event.part)
            if not part.is_open or part.attempt != event.attempt:
                self.world.fail(f"{event.job}: attempt {event.attempt} revoked, but {part}")
            part.is_open = False
        elif isinstance(event, PartEnded):
            part = self._part(event.job, event.workflow, event.part)
            if not part.is_open or part.attempt != event.attempt:
                self.world.fail(f"{event.job}: attempt {event.attempt} counted, but {part}")
            part.is_open, part.has_ended = False, True

    def _open(self, job: str, workflow: str, index: int, attempt: int) -> None:
        part = self._part(job, workflow, index)
        if part.is_open or part.has_ended or attempt != part.attempt + 1:
            self.world.fail(f"{job}: attempt {attempt} after {part}")
        part.attempt, part.is_open = attempt, True

    def _part(self, job: str, workflow: str, part: int) -> _Part:
        return self._parts.setdefault((job, workflow, part), _Part())

    # -- acknowledging --------------------------------------------------------------------

    def acknowledged(
        self, core: ObservedCore, group: int, outcome: AppliedEntry, data: bytes
    ) -> None:
        known = self._group(group)
        fact = known.facts.get(outcome.index)
        if fact is None or fact.data != data:
            found = "nothing" if fact is None else _say(fact.data)
            self.world.fail(
                f"node {core.number} acknowledged {_say(data)} as entry {outcome.index} of group "
                f"{group}, where {found} was applied"
            )
            return
        known.acknowledged = max(known.acknowledged, outcome.index)
        self.findings.acknowledged += 1
        holders = self._holders(group, outcome.index, fact.term)
        # A change of voters is in force once it is applied, which may be after this entry was
        # committed: then those before it had to have it.
        in_force = [each for each in core.seats[group] if each[0] <= outcome.index][-2:]
        if not any(
            all(_is_majority(holders, seats) for seats in (voters, outgoing) if seats)
            for _, voters, outgoing in in_force
        ):
            self.world.fail(
                f"entry {outcome.index} of group {group} is acknowledged, but of its voters "
                f"{in_force} only {sorted(holders)} have it on disk"
            )

    def _holders(self, group: int, index: int, term: int) -> set[int]:
        found: set[int] = set()
        for store in self.tier.stores.values():
            found |= store.lost  # whatever it had when it was asked
            kept = store.groups.get(group)
            number = store.meta.get("number")
            if kept is not None and number and kept.holds(index, term):
                found.add(int(number))
        return found

    # -- logs -----------------------------------------------------------------------------

    def wrote(self, group: int, entries: Iterable[tuple[int, int, int, bytes]]) -> None:
        """Check that entries given to a disk are unique by index and term."""
        logs = self._group(group).logs
        for index, term, _, data in entries:
            if logs.setdefault((index, term), data) != data:
                self.world.fail(f"two entries {index} of term {term} in group {group}")

    # -- after healing --------------------------------------------------------------------

    def unsettled(self, *, is_final: bool = False) -> str:
        """Return why the tier has not converged; empty if all running nodes agree."""
        cores = [
            host.program.core
            for host in self.world.hosts.values()
            if isinstance(host.program, LedgerProgram) and host.program.core is not None
        ]
        latest = max(cores, key=lambda core: core.replicas[MANAGEMENT].applied)
        topology = latest.topology
        members = [n for n, node in topology.nodes.items() if node.state.value != "gone"]
        for core in cores:
            if core.number in members:
                behind = self._behind(core, MANAGEMENT, latest)
                if behind:
                    return behind
        if topology.migrations:
            return f"migrations {sorted(topology.migrations)} have not ended"
        by_number = {core.number: core for core in cores}
        for record in topology.groups.values():
            if record.state is GroupState.DESTROYED:
                continue
            if record.voters != record.settled:
                return f"group {record.number}: seats {record.voters} but {record.settled} settled"
            voters = [by_number[n] for n in record.voters if n in by_number]
            if not any(record.number in core.leading for core in voters):
                return f"group {record.number} has no leader"
            if any(record.number not in core.replicas for core in voters):
                return f"group {record.number} is not open everywhere"
            first = max(voters, key=lambda core: core.replicas[record.number].applied)
            for core in voters:
                behind = self._behind(core, record.number, first)
                if behind:
                    return behind
            if is_final and first.replicas[record.number].applied < (
                self._group(record.number).acknowledged
            ):
                self.world.fail(f"group {record.number} has lost acknowledged entries")
        return ""

    def _behind(self, core: ObservedCore, group: int, other: ObservedCore) -> str:
        mine = core.replicas[group].applied
        theirs = other.replicas[group].applied
        return "" if mine == theirs else f"node {core.number} is at {mine} of {theirs} in {group}"

    def check_all(self) -> None:
        """Check at the end every replica again, and that every key slot has an owner."""
        for host in self.world.hosts.values():
            program = host.program
            if isinstance(program, LedgerProgram) and program.core is not None:
                for group in program.core.replicas:
                    self.check_digest(program.core, group)


def unpacked(packed: bytes) -> Iterator[tuple[int, dict[int, int]]]:
    """Return the groups and integer fields of packed consensus messages (protobuf)."""
    at = 0
    while at < len(packed):
        group = int.from_bytes(packed[at : at + 8], "little")
        end = at + 12 + int.from_bytes(packed[at + 8 : at + 12], "little")
        yield group, _integers(packed[at + 12 : end])
        at = end


def _integers(message: bytes) -> dict[int, int]:
    found: dict[int, int] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 0:
            found[tag >> 3] = value
        else:
            at += value  # bytes of that length
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _is_majority(holders: set[int], seats: list[int]) -> bool:
    return 2 * len(holders.intersection(seats)) > len(seats)


def _say(data: Any) -> str:
    if not data:
        return "nothing"
    record = decode_record(data)
    return f"{type(record).__name__} {str(record)[:80]}"
