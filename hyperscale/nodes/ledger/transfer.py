"""What travels beside the log: snapshots, pulled by whoever was offered one, and history."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from hyperscale._native import LedgerError
from hyperscale.errors import HyperscaleError, RunError
from hyperscale.ledger.core import SnapshotOffer
from hyperscale.ledger.messages import (
    FetchHistory,
    FetchSnapshot,
    HistoryPage,
    OfferSnapshot,
    TakeHistoryReply,
)
from hyperscale.wire.errors import CallError, QueueFullError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.messages import Chunk

if TYPE_CHECKING:
    from hyperscale.nodes.ledger.local_ledger import LocalLedger

_CHUNK = 512 * 1024
_SNAPSHOT_S = 60.0
_PAGE = 100  # rows; some are large
_GAP = "gap:"
_AGAIN_S = 1.0
BEGINNING: Final = (-(2**63), 0, 0)
"""Before the first row."""

_log = logging.getLogger("hyperscale.ledger")
_page_decoder = msgspec.msgpack.Decoder(HistoryPage)


class Transfer:
    """Large things between this node's ledger and others'."""

    def __init__(self, ledger: "LocalLedger") -> None:
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._pulling: set[int] = set()
        self._filling: set[int] = set()
        self._gaps = {
            int(key.removeprefix(_GAP))
            for key, value in ledger.store.meta()
            if key.startswith(_GAP) and value
        }
        """Groups of whose history this node may lack something."""
        self._skipped: set[int] = set()
        """Those of them where a snapshot has come since their rows were last asked for."""

    def offer(self, offer: SnapshotOffer) -> None:
        name = self._ledger.name_of(offer.peer)
        link = self._ledger.peers.link(name) if name else None
        connection = None if link is None else link.connection
        if connection is None:
            self._ledger.core.raft.report_snapshot(offer.group, offer.peer, arrived=False)
            return
        message = OfferSnapshot(
            self._ledger.id, self._ledger.core.number, offer.group, offer.index, offer.message
        )
        with suppress(QueueFullError):  # as if it had got lost
            connection.send(message)
        # Nobody may ever come for it: then it counts as lost and is offered again.
        self._loop.call_later(
            _SNAPSHOT_S, self._ledger.core.raft.report_snapshot, offer.group, offer.peer, False
        )

    async def pull_snapshot(self, peer: str, offer: OfferSnapshot) -> None:
        link = self._ledger.peers.link(peer)
        if offer.ledger != self._ledger.id or link is None or offer.group in self._pulling:
            return
        self._ledger.learn(offer.sender, peer)
        self._pulling.add(offer.group)
        try:
            data = bytearray()
            asked = FetchSnapshot(offer.group, offer.index, self._ledger.core.number)
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

    async def snapshot(self, asked: FetchSnapshot) -> AsyncGenerator[Chunk, None]:
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

    # -- history --------------------------------------------------------------------------

    def is_whole(self, group: int) -> bool:
        """Whether this node has all rows of a group, and of those the group answers for."""
        replica = self._ledger.core.replicas.get(group)
        return replica is not None and replica.applied > 0 and group not in self._gaps

    def has_skipped(self, group: int) -> None:
        """A snapshot skipped entries: the rows they left are another's to give."""
        self._gaps.add(group)
        self._skipped.add(group)
        self._ledger.store.put_meta(f"{_GAP}{group}", b"1")
        self._fill(group)

    def resume(self) -> None:
        """Goes on with what a former life of this node did not get."""
        for group in self._gaps:
            self._fill(group)

    def _fill(self, group: int) -> None:
        if group not in self._filling:
            self._filling.add(group)
            self._ledger.spawn(self._filled(group))

    async def _filled(self, group: int) -> None:
        store = self._ledger.store
        try:
            while group in self._gaps and group in self._ledger.core.replicas:
                self._skipped.discard(group)
                if not await self._pull_history(group):
                    await asyncio.sleep(_AGAIN_S)
                elif group not in self._skipped:
                    self._gaps.discard(group)
                    store.put_meta(f"{_GAP}{group}", b"")
        finally:
            self._filling.discard(group)

    async def _pull_history(self, group: int) -> bool:
        """Asks the other voters, until one has everything or all have given what they have."""
        ledger = self._ledger
        record = ledger.topology.groups.get(group)
        if record is None:
            return False  # the topology has not come here yet
        others = [number for number in record.settled if number != ledger.core.number]
        answered = 0
        for number in others:
            name = ledger.name_of(number)
            try:
                if await self._pull_from(name, ledger.lineage(group)):
                    return True
                answered += 1
            except HyperscaleError as error:
                _log.info("history.not_pulled: %s", error, extra={"peer": name})
        return answered == len(others)

    async def _pull_from(self, name: str, groups: list[int]) -> bool:
        """Takes over all rows one node has; whether it had all there are."""
        link = self._ledger.peers.link(name) if name else None
        if link is None or self._ledger.peers.connection(name) is None:
            raise RunError(f"{name} is not connected")
        is_whole = True
        ticket = count = 0
        for group in groups:
            after = BEGINNING
            while True:
                page = await self._page(link, FetchHistory(group, after))
                is_whole = is_whole and page.is_whole
                if page.rows:
                    ticket = self._ledger.store.add_history(page.rows)
                    count += len(page.rows)
                if not page.has_more:
                    # What has come since, entries of our own log have brought: who waited for
                    # an empty page would never be done while jobs end.
                    break
                last = page.rows[-1]
                after = (last[3], last[1], last[2])
        await self._ledger.until_durable(ticket)
        _log.info(
            "history.pulled",
            extra={"peer": name, "groups": groups, "rows": count, "is_whole": is_whole},
        )
        return is_whole

    async def _page(self, link: PeerLink, asked: FetchHistory) -> HistoryPage:
        data = bytearray()
        deadline_s = self._loop.time() + _SNAPSHOT_S
        async with await link.stream(asked, Chunk, deadline_s=deadline_s) as chunks:
            async for chunk in chunks:
                data += chunk.data
        try:
            return _page_decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise RunError(f"its history cannot be read: {error}") from error

    async def history(self, asked: FetchHistory) -> AsyncGenerator[Chunk, None]:
        """A page of the rows this node has."""
        ledger = self._ledger
        heir = ledger.topology.heir_of(asked.group)
        if heir in ledger.core.replicas:
            # The snapshot whose rows are wanted may be ahead of what has been applied here.
            await ledger.fresh(heir)
        is_whole = self.is_whole(heir)
        # Rows on their way to the disk cannot be read yet.
        await ledger.until_durable(ledger.core.history_ticket)
        rows = await asyncio.to_thread(
            ledger.store.history, group=asked.group, after=asked.after, limit=_PAGE
        )
        data = msgspec.msgpack.encode(HistoryPage(rows, is_whole, len(rows) == _PAGE))
        for start in range(0, len(data), _CHUNK):
            yield Chunk(data[start : start + _CHUNK])

    async def take_over(self, name: str, group: int) -> TakeHistoryReply:
        """The rows of a group that is about to be destroyed, from its leader."""
        if not await self._pull_from(name, [group]):
            raise RunError(f"{name} has not all of the history of group {group} itself")
        return TakeHistoryReply()
