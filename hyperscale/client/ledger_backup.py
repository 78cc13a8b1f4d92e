"""Fetching a backup of a ledger from its running nodes."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hyperscale.client.cluster_connection import operator_connection
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import RunError
from hyperscale.ledger.backup import BackupManifest, BackupWriter, GroupBackup
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.replica import HistoryRow, Replica
from hyperscale.ledger.server.backup_requests import (
    BackupItems,
    FetchGroupBackup,
    GroupStateItem,
    HistoryItem,
)
from hyperscale.ledger.server.operator_messages import GetLedgerStatus, GetLedgerStatusReply
from hyperscale.ledger.topology import Topology
from hyperscale.wire.connection import Connection
from hyperscale.wire.messages import Chunk
from hyperscale.wire.versions import VERSION

_TRIES = 10
_AGAIN_S = 1.0


class _TopologyChangedError(RunError):
    """Groups or key slots moved while the backup was taken."""


async def back_up(
    config: NodeConfig,
    address: tuple[str, int],
    path: Path,
    *,
    layout: int,
    timeout_s: float,
    on_progress: Callable[[str], None],
) -> BackupManifest:
    """Write a backup of the ledger that the node at this address belongs to.

    Each group is read after this call began, so everything acknowledged before it is in the
    backup. If groups or key slots move meanwhile, the backup is taken again.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    async with operator_connection(config, *address, timeout_s=timeout_s) as connection:
        for _ in range(_TRIES):
            with BackupWriter(path) as writer:
                try:
                    return await _write(connection, writer, layout, deadline_s, on_progress)
                except _TopologyChangedError as error:
                    on_progress(f"{error}; once more")
            await asyncio.sleep(_AGAIN_S)
    raise RunError("groups or key slots kept moving: no backup was taken", hint="try again later")


async def _write(
    connection: Connection,
    writer: BackupWriter,
    layout: int,
    deadline_s: float,
    on_progress: Callable[[str], None],
) -> BackupManifest:
    status = await connection.call(GetLedgerStatus(), GetLedgerStatusReply, deadline_s=deadline_s)
    before = _topology(await _fetch(connection, MANAGEMENT, deadline_s))
    if before.migrations:
        raise _TopologyChangedError("key slots are on the move")
    groups = [record.number for record in before.live_groups()]
    for done, group in enumerate(groups, 1):
        writer.add(await _fetch(connection, group, deadline_s))
        on_progress(f"group {group}: {done} of {len(groups)}")
    management = await _fetch(connection, MANAGEMENT, deadline_s)
    after = _topology(management)
    if (before.owners, before.groups.keys()) != (after.owners, after.groups.keys()) or (
        after.migrations
    ):
        raise _TopologyChangedError("groups or key slots moved")
    writer.add(management)
    return writer.finish(
        BackupManifest(
            role=connection.peer.role,
            version=VERSION,
            layout=layout,
            ledger=status.ledger,
            scope=after.scope,
            taken_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
    )


async def _fetch(connection: Connection, group: int, deadline_s: float) -> GroupBackup:
    items, state = BackupItems(), None
    history: list[HistoryRow] = []
    request = FetchGroupBackup(group)
    async with connection.stream(request, Chunk, deadline_s=deadline_s) as chunks:
        async for chunk in chunks:
            for item in items.feed(chunk.data):
                match item:
                    case GroupStateItem():
                        state = item
                    case HistoryItem():
                        history += item.rows
    if state is None or not items.is_whole:
        raise RunError(f"the backup of group {group} is incomplete", hint="try again")
    return GroupBackup(
        group=group, index=state.index, term=state.term, state=state.state, history=history
    )


def _topology(backup: GroupBackup) -> Topology:
    topology = Topology()
    Replica(MANAGEMENT, topology).restore(backup.index, backup.state)
    return topology
