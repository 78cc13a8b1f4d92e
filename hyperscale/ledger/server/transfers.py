"""Snapshots and history rows between nodes.

The leader offers a snapshot, and the follower that lags behind fetches it. Entries that a snapshot
skipped leave no history rows on the follower: it fetches them from the other voters. The voters of
an heir fetch the rows of a group before it is destroyed.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from hyperscale.errors import HyperscaleError, RunError
from hyperscale.ledger.core_events import SendSnapshotOffer, SnapshotDelivered, SnapshotReceived
from hyperscale.ledger.messages import (
    FetchHistory,
    FetchSnapshot,
    HistoryPage,
    OfferSnapshot,
    TakeHistoryReply,
)
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.ledger_driver import LedgerDriver
from hyperscale.ledger.store import BEFORE_FIRST, position_of, whole_page
from hyperscale.wire.errors import CallError, QueueFullError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.messages import Chunk

Chunks = AsyncGenerator[Chunk, None]
_CHUNK_BYTES = 512 * 1024
_FETCH_S = 60.0
_PAGE_ROWS = 100  # some rows are large
_GAP = "gap:"  # keys in the store's meta: groups of which this node may lack history rows
_RETRY_S = 1.0

_log = logging.getLogger("hyperscale.ledger")
_page_decoder = msgspec.msgpack.Decoder(HistoryPage)


async def _fetch_bytes(link: PeerLink, request: Struct) -> bytes:
    """Return the data that a peer streams as the answer to a request."""
    data = bytearray()
    deadline_s = asyncio.get_running_loop().time() + _FETCH_S
    async with await link.stream(request, Chunk, deadline_s=deadline_s) as chunks:
        async for chunk in chunks:
            data += chunk.data
    return bytes(data)


def chunks_of(data: bytes) -> Iterator[Chunk]:
    """Cut data into the items of a stream."""
    for start in range(0, max(len(data), 1), _CHUNK_BYTES):
        yield Chunk(data[start : start + _CHUNK_BYTES])


class SnapshotTransfer:
    """Offers, serves and fetches snapshots of one node's groups."""

    def __init__(self, driver: LedgerDriver) -> None:
        self._driver = driver
        self._fetching: set[int] = set()
        driver.hooks.snapshot_offered.append(self._offer)

    def _offer(self, offer: SendSnapshotOffer) -> None:
        driver = self._driver
        name = driver.name_of(offer.peer)
        link = driver.peers.link(name) if name else None
        lost = SnapshotDelivered(offer.group, offer.peer, arrived=False)
        if link is None or link.connection is None:
            driver.feed(lost)
            return
        own = driver.core.number
        with suppress(QueueFullError):  # the same as a message that got lost
            link.connection.send(
                OfferSnapshot(driver.id, own, offer.group, offer.index, offer.message)
            )
        # If the peer never fetches the snapshot, it counts as lost and is offered again.
        asyncio.get_running_loop().call_later(_FETCH_S, driver.feed, lost)

    async def fetch(self, peer: str, offer: OfferSnapshot) -> None:
        """Fetch a snapshot that a peer offered, and give it to the core."""
        driver = self._driver
        link = driver.peers.link(peer)
        if offer.ledger != driver.id or link is None or offer.group in self._fetching:
            return
        driver.names[offer.sender] = peer
        self._fetching.add(offer.group)
        try:
            request = FetchSnapshot(offer.group, offer.index, driver.core.number)
            data = await _fetch_bytes(link, request)
            driver.feed(SnapshotReceived(offer.group, offer.raft_message, data))
        except CallError as error:
            _log.warning("snapshot.not_fetched: %s", error, extra={"group": offer.group})
        finally:
            self._fetching.discard(offer.group)

    async def serve(self, request: FetchSnapshot) -> Chunks:
        """Stream a snapshot to the peer that was offered it."""
        driver = self._driver
        group, peer = request.group, request.receiver
        data = None
        if group in driver.core.replicas:
            data = driver.core.raft.snapshot_data(group, request.index)
        if data is None:
            driver.feed(SnapshotDelivered(group, peer, arrived=False))
            raise RunError(f"group {group} has no snapshot of entry {request.index} any more")
        arrived = False
        try:
            for chunk in chunks_of(data):
                yield chunk
            arrived = True
        finally:
            driver.feed(SnapshotDelivered(group, peer, arrived))


class HistoryTransfer:
    """Serves history rows of one node's groups and fetches those it lacks."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._driver = ledger.driver
        self._filling: set[int] = set()
        self._gaps = {
            int(key.removeprefix(_GAP))
            for key, value in ledger.store.meta()
            if key.startswith(_GAP) and value
        }
        """Groups of which this node may lack rows."""
        self._skipped: set[int] = set()
        """Those of them where another snapshot was installed since their rows were requested."""
        ledger.hooks.restored.append(self._restored)

    def is_complete(self, group: int) -> bool:
        """Return True if this node has all rows of a group, and of the groups it is heir of."""
        replica = self._ledger.core.replicas.get(group)
        return replica is not None and replica.applied > 0 and group not in self._gaps

    def start(self) -> None:
        """Go on fetching what an earlier process of this node did not get."""
        for group in self._gaps:
            self._fill(group)

    def _restored(self, group: int) -> None:
        self._gaps.add(group)
        self._skipped.add(group)
        self._ledger.store.put_meta(f"{_GAP}{group}", b"1")
        self._fill(group)

    def _fill(self, group: int) -> None:
        if group not in self._filling:
            self._filling.add(group)
            self._driver.tasks.spawn(self._fill_gap(group), f"ledger-history-{group}")

    async def _fill_gap(self, group: int) -> None:
        try:
            while group in self._gaps and group in self._ledger.core.replicas:
                self._skipped.discard(group)
                if not await self._fetch_from_voters(group):
                    await asyncio.sleep(_RETRY_S)
                elif group not in self._skipped:
                    self._gaps.discard(group)
                    self._ledger.store.put_meta(f"{_GAP}{group}", b"")
        finally:
            self._filling.discard(group)

    async def _fetch_from_voters(self, group: int) -> bool:
        """Ask the other voters until one is complete or all have given what they have."""
        ledger = self._ledger
        voters = ledger.voters_of(group)
        if not voters:
            return False  # this node has not applied the topology yet
        others = [name for name in voters if name != self._driver.own_name]
        answered = 0
        for name in others:
            try:
                if await self._fetch_from(name, ledger.answers_for(group)):
                    return True
                answered += 1
            except HyperscaleError as error:
                _log.info("history.not_fetched: %s", error, extra={"peer": name})
        return answered == len(others)

    async def _fetch_from(self, name: str, groups: list[int]) -> bool:
        """Write all rows that one node has; return True if that node has all there are."""
        peers = self._ledger.peers
        link = peers.link(name) if name else None
        if link is None or peers.connection(name) is None:
            raise RunError(f"{name} is not connected")
        is_complete = True
        ticket = count = 0
        for group in groups:
            after = BEFORE_FIRST
            while True:
                data = await _fetch_bytes(link, FetchHistory(group, after))
                try:
                    page = _page_decoder.decode(data)
                except msgspec.MsgspecError as error:
                    raise RunError(f"a page of history cannot be decoded: {error}") from error
                is_complete = is_complete and page.is_complete
                if page.rows:
                    ticket = self._ledger.store.add_history(page.rows)
                    count += len(page.rows)
                if not page.has_more:
                    # Rows added since come from entries of this node's own log. Waiting for an
                    # empty page would never end while jobs end.
                    break
                after = position_of(page.rows[-1])
        await self._driver.until_durable(ticket)
        extra = {"peer": name, "groups": groups, "rows": count, "is_complete": is_complete}
        _log.info("history.fetched", extra=extra)
        return is_complete

    async def serve(self, request: FetchHistory) -> Chunks:
        """Stream one page of the rows this node has."""
        ledger = self._ledger
        heir = ledger.topology.heir_of(request.group)
        if heir in ledger.core.replicas:
            # The requester's snapshot may be ahead of what this node has applied.
            await ledger.fresh(heir)
        is_complete = self.is_complete(heir)
        # Rows under way to the disk cannot be read yet.
        await self._driver.until_durable(ledger.core.disk.history_ticket)
        rows = await asyncio.to_thread(
            ledger.store.history, group=request.group, after=request.after, limit=_PAGE_ROWS
        )
        page, has_more = whole_page(rows, _PAGE_ROWS)
        data = msgspec.msgpack.encode(HistoryPage(page, is_complete, has_more))
        for chunk in chunks_of(data):
            yield chunk

    async def take(self, name: str, group: int) -> TakeHistoryReply:
        """Fetch the rows of a group that is about to be destroyed from its leader."""
        if not await self._fetch_from(name, [group]):
            raise RunError(f"{name} lacks rows of the history of group {group} itself")
        return TakeHistoryReply()
