"""What travels beside the log: snapshots, pulled by whoever was offered one, and history."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from hyperscale._native import LedgerError
from hyperscale.errors import HyperscaleError, RunError
from hyperscale.ledger.core import SnapshotOffer
from hyperscale.ledger.messages import (
    HistoryAsked,
    HistoryGiven,
    HistoryKept,
    HistoryRows,
    SnapshotAsked,
    SnapshotOffered,
)
from hyperscale.wire.errors import CallError
from hyperscale.wire.messages import Chunk

if TYPE_CHECKING:
    from hyperscale.nodes.ledger.service import LocalLedger

_CHUNK = 512 * 1024
_SNAPSHOT_S = 60.0
_PAGE = 500

_log = logging.getLogger("hyperscale.ledger")


class Transfer:
    """Large things between this node's ledger and others'."""

    def __init__(self, ledger: "LocalLedger") -> None:
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._pulling: set[int] = set()

    def offer(self, offer: SnapshotOffer) -> None:
        name = self._ledger.name_of(offer.peer)
        link = self._ledger.peers.link(name) if name else None
        connection = None if link is None else link.connection
        if connection is None:
            self._ledger.core.raft.report_snapshot(offer.group, offer.peer, arrived=False)
            return
        message = SnapshotOffered(
            self._ledger.id, self._ledger.core.number, offer.group, offer.index, offer.message
        )
        connection.send(message)
        # Nobody may ever come for it: then it counts as lost and is offered again.
        self._loop.call_later(
            _SNAPSHOT_S, self._ledger.core.raft.report_snapshot, offer.group, offer.peer, False
        )

    async def pull_snapshot(self, peer: str, offer: SnapshotOffered) -> None:
        link = self._ledger.peers.link(peer)
        if offer.ledger != self._ledger.id or link is None or offer.group in self._pulling:
            return
        self._ledger.learn(offer.sender, peer)
        self._pulling.add(offer.group)
        try:
            data = bytearray()
            asked = SnapshotAsked(offer.group, offer.index, self._ledger.core.number)
            deadline_s = self._loop.time() + _SNAPSHOT_S
            async with await link.stream(asked, Chunk, deadline_s=deadline_s) as chunks:
                async for chunk in chunks:
                    data += chunk.data
            self._ledger.core.received_snapshot(offer.group, offer.raft_message, bytes(data))
            self._ledger.wake()
        except (CallError, LedgerError) as error:
            _log.warning("snapshot.not_pulled: %s", error, extra={"group": offer.group})
        finally:
            self._pulling.discard(offer.group)

    async def snapshot(self, asked: SnapshotAsked) -> AsyncGenerator[Chunk, None]:
        data = self._ledger.core.raft.snapshot_data(asked.group, asked.index)
        if data is None:
            self._ledger.core.raft.report_snapshot(asked.group, asked.receiver, arrived=False)
            raise RunError(f"the snapshot {asked.index} of group {asked.group} is gone")
        arrived = False
        try:
            for start in range(0, max(len(data), 1), _CHUNK):
                yield Chunk(data[start : start + _CHUNK])
            arrived = True
        finally:
            self._ledger.core.raft.report_snapshot(asked.group, asked.receiver, arrived=arrived)
            self._ledger.wake()

    async def pull_history(self, group: int) -> None:
        """A snapshot skipped entries: the rows they left are another's to give."""
        record = self._ledger.core.topology.groups.get(group)
        names = [self._ledger.name_of(voter) for voter in (record.settled if record else [])]
        for name in names:
            link = self._ledger.peers.link(name) if name != "" else None
            if link is None:
                continue
            after = (-(2**63), 0, 0)
            try:
                while True:
                    asked = HistoryAsked(group, after)
                    told = await link.call(
                        asked, HistoryRows, deadline_s=self._loop.time() + _SNAPSHOT_S
                    )
                    if not told.rows:
                        return
                    self._ledger.store.add_history(told.rows)
                    last = told.rows[-1]
                    after = (last[3], last[1], last[2])
            except HyperscaleError as error:
                _log.info("history.not_pulled: %s", error, extra={"peer": name})

    async def history(self, asked: HistoryAsked) -> HistoryRows:
        """A page of the rows this node has."""
        rows = await asyncio.to_thread(
            self._ledger.store.history, group=asked.group, after=asked.after, limit=_PAGE
        )
        return HistoryRows(rows)

    async def keep_history(self, given: HistoryGiven) -> HistoryKept:
        """Takes over the rows of a group that is about to be destroyed."""
        store = self._ledger.store
        await self._ledger.until_durable(store.add_history(given.rows))
        return HistoryKept(len(given.rows))
