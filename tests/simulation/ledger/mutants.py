"""Rules broken on purpose, each in one place. The simulator must catch every one.

They are injected around the product: in the loop that drives the core, in the disk, in the machine
that is replicated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from hyperscale._native import GroupImage, WriteBatch
from hyperscale.jobs.committed.events import PartEnded, decode, encode
from hyperscale.jobs.committed.machine import Applied, JobMachine
from hyperscale.ledger.core import PassOutput
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.records import MachineCommand, Record
from hyperscale.ledger.replica import AppliedEntry, Replica
from tests.simulation.ledger.observed import ObservedCore
from tests.simulation.ledger.store import CrashableStore


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    profile: str = "strikes"
    caught_by: tuple[str, ...] = ()
    """Words of the violations that may catch it."""
    core: Callable[..., ObservedCore] = ObservedCore
    machine: Callable[[str, int], Machine] = JobMachine
    newer: Callable[[str, int], Machine] | None = None
    """The machine of every second node, which knows more than the others."""
    store: Callable[[], CrashableStore] | None = None
    stale_snapshots: bool = False
    acks_early: bool = False


REAL = Mutant(name="none")


class Hasty(ObservedCore):
    """Messages are sent before the writes they depend on are durable."""

    def _take(self, turn: Any, out: PassOutput) -> None:
        super()._take(turn, out)
        while self.disk.unconfirmed:
            self.raft.persisted(self.disk.unconfirmed.popleft()[1])


class Forgetful(CrashableStore):
    """Votes are never written."""

    def write(self, batch: WriteBatch) -> int:
        groups = [
            (group, (hard[0], 0, hard[2]), entries, snapshot)
            for group, hard, entries, snapshot in batch.groups
        ]
        return self._put("write", groups)


class Twice(JobMachine):
    """Every entry is applied twice."""

    def apply(self, index: int, time_ms: int, body: bytes, **entry: Any) -> Applied:
        super().apply(index, time_ms, body, **entry)
        return super().apply(index, time_ms, body, **entry)


class Unfenced(JobMachine):
    """A result counts for any attempt."""

    def apply(self, index: int, time_ms: int, body: bytes, **entry: Any) -> Applied:
        event = decode(body)
        if isinstance(event, PartEnded) and (job := self.job(event.job)) is not None:
            parts = job.workflows[event.workflow].parts
            if event.part < len(parts):
                attempt = parts[event.part].attempt
                body = encode(msgspec.structs.replace(event, attempt=attempt))
        return super().apply(index, time_ms, body, **entry)


class GreedyReplica(Replica):
    """A command is applied whatever group owns its key slot."""

    def _apply_record(self, index: int, record: Record) -> AppliedEntry | None:
        if isinstance(record, MachineCommand):
            record = MachineCommand(record.stamp, "", record.body, record.time_ms)
        return super()._apply_record(index, record)


class Greedy(ObservedCore):
    def _open(self, image: GroupImage) -> None:
        super()._open(image)
        self.replicas[image.group].__class__ = GreedyReplica


MUTANTS = (
    Mutant(
        name="send before persist",
        core=Hasty,
        caught_by=("have it on disk", "another entry", "two entries", "two leaders", "commit"),
    ),
    Mutant(
        name="vote not persisted",
        profile="ballots",
        store=Forgetful,
        caught_by=("voted twice", "two leaders", "two entries", "another entry"),
    ),
    Mutant(name="apply twice", machine=Twice, caught_by=("not linearizable",)),
    Mutant(
        name="stale snapshot installed",
        profile="seats",
        stale_snapshots=True,
        caught_by=("differs from", "differ from"),
    ),
    Mutant(name="ack before quorum", acks_early=True, caught_by=("acknowledged",)),
    Mutant(name="fence ignored", machine=Unfenced, caught_by=("counted, but",)),
    Mutant(
        name="foreign slot accepted",
        profile="slots",
        core=Greedy,
        caught_by=("two jobs", "not linearizable"),
    ),
)
