"""Making the data directory of a new ledger: of a backup, or of the directory of one survivor."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from hyperscale._native import LedgerStore
from hyperscale.errors import InputError
from hyperscale.gates.committed.events import GlobalJobFinished, encode_global
from hyperscale.gates.committed.machine import GlobalJobMachine
from hyperscale.jobs.committed.events import JobFinished, JobStatus
from hyperscale.jobs.committed.events import encode as encode_job
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.backup import BackupManifest, read_backup
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.rebuild import (
    NewNode,
    RebuiltLedger,
    lost_groups,
    rebuild,
    replica_of_backup,
    replica_of_image,
)
from hyperscale.ledger.replica import HistoryRow, Replica
from hyperscale.ledger.store import history_pages
from hyperscale.ledger.topology import Topology
from hyperscale.nodes.data_directory import new_data_directory
from hyperscale.nodes.ledger_service import LAYOUT_VERSION, open_store
from hyperscale.wire.roles import Role

RESTORED = "restored from backup"
RECOVERED = "recovered from one disk"
_DURABLE_POLL_S = 0.005
_PAGE_ROWS = 1_000


class Survivor(Struct, frozen=True, kw_only=True):
    """What the data directory of one node holds of its ledger."""

    ledger: str
    role: str
    topology: Topology
    replicas: dict[int, Replica]
    """The groups of jobs."""

    @property
    def lost_groups(self) -> list[int]:
        """The groups that this node had no replica of: their jobs are lost."""
        return lost_groups(self.topology, self.replicas)


def restore_ledger(
    archive: Path, directory: Path, node_id: str
) -> tuple[BackupManifest, RebuiltLedger]:
    """Make the data directory of the first node of a new ledger, of a backup."""
    manifest, groups = read_backup(archive, layout=LAYOUT_VERSION)
    topology = Topology()
    replicas: dict[int, Replica] = {}
    for backup in groups:
        machine = _machine(manifest.role, topology, manifest.scope, backup.group)
        try:
            replicas[backup.group] = replica_of_backup(backup, machine)
        except msgspec.MsgspecError as error:
            raise InputError(
                f"the backup {archive} is damaged: the state of group {backup.group}: {error}",
                hint="use another backup",
            ) from error
    management = replicas.pop(MANAGEMENT, None)
    if management is None:
        raise InputError(f"the backup {archive} is damaged: it has no topology")
    if replicas:
        replicas[min(replicas)].history += management.history
    return manifest, _write(directory, node_id, topology, replicas, RESTORED)


def read_survivor(directory: Path, role: str) -> Survivor:
    """Read what is left of a ledger in the data directory of one of its nodes; change nothing."""
    if not (directory / "ledger").is_dir():
        raise InputError(
            f"{directory} is not the data directory of a manager or gate: it has no ledger",
            hint="give the --data-dir of the node that survived",
        )
    store = open_store(directory / "ledger")
    try:
        meta = {key: value.decode() for key, value in store.meta()}
        topology = Topology()
        replicas: dict[int, Replica] = {}
        for image in store.load():
            machine = _machine(role, topology, meta.get("scope", ""), image.group)
            replicas[image.group] = replica_of_image(image, machine)
        if replicas.pop(MANAGEMENT, None) is None:
            raise InputError(f"{directory} holds no topology: its node had not joined a ledger")
        for group, replica in replicas.items():
            replica.history = _history(store, topology, group, replicas)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{directory} does not hold the ledger of a {role}: {error}",
            hint="give --role gate for the directory of a gate",
        ) from error
    finally:
        store.close()
    return Survivor(ledger=meta.get("ledger", ""), role=role, topology=topology, replicas=replicas)


def recover_ledger(survivor: Survivor, directory: Path, node_id: str) -> RebuiltLedger:
    """Make the data directory of the first node of a new ledger, of what a survivor has."""
    return _write(directory, node_id, survivor.topology, survivor.replicas, RECOVERED)


def _write(
    directory: Path, node_id: str, topology: Topology, replicas: dict[int, Replica], reason: str
) -> RebuiltLedger:
    with new_data_directory(directory, node_id) as (partial, key):
        node = NewNode(name=node_id, key=key, domain=node_id)
        rebuilt = rebuild(topology, replicas, node, lambda machine: _end_open(machine, reason))
        store = open_store(partial / "ledger")
        try:
            for group in rebuilt.groups:
                store.create(group.image)
                store.add_history(group.history)
            identity = {
                "scope": topology.scope,
                "number": "1",
                "pledged": node_id,
                "ledger": secrets.token_hex(8),
            }
            for name, value in identity.items():
                ticket = store.put_meta(name, value.encode())
            while store.durable() < ticket:
                time.sleep(_DURABLE_POLL_S)
        finally:
            store.close()
    return rebuilt


def _machine(role: str, topology: Topology, scope: str, group: int) -> Machine:
    if group == MANAGEMENT:
        return topology
    return GlobalJobMachine(scope, group) if role == Role.GATE else JobMachine(scope, group)


def _end_open(machine: Machine, reason: str) -> Iterator[bytes]:
    """Return the commands that end every job of a group that has not ended, as failed."""
    match machine:
        case JobMachine():
            for job in list(machine.jobs()):
                yield encode_job(JobFinished(job=job.id, status=JobStatus.FAILED, reason=reason))
        case GlobalJobMachine():
            for each in list(machine.jobs()):
                yield encode_global(
                    GlobalJobFinished(job=each.id, status=JobStatus.FAILED, reason=reason)
                )


def _history(
    store: LedgerStore, topology: Topology, group: int, replicas: dict[int, Replica]
) -> list[HistoryRow]:
    """Return the history rows of a group and of those that it is the heir of; the first group also
    has those of the management group."""
    rows: list[HistoryRow] = []
    heirs = {each: topology.heir_of(each) for each in (MANAGEMENT, *topology.groups)}
    first = min(replicas)
    for each, heir in heirs.items():
        if heir != group and not (heir not in replicas and group == first):
            continue
        for page in history_pages(store, each, _PAGE_ROWS):
            rows += page
    return rows
