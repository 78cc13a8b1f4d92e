"""Snapshots between nodes: the leader offers one, the follower that lags behind fetches it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress

from msgspec import Struct

from hyperscale.errors import RunError
from hyperscale.ledger.core_events import SendSnapshotOffer, SnapshotDelivered, SnapshotReceived
from hyperscale.ledger.messages import FetchSnapshot, OfferSnapshot
from hyperscale.ledger.server.ledger_driver import LedgerDriver
from hyperscale.wire.errors import CallError, QueueFullError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.messages import Chunk

_CHUNK_BYTES = 512 * 1024
_FETCH_S = 60.0

_log = logging.getLogger("hyperscale.ledger")


async def fetch_bytes(link: PeerLink, request: Struct) -> bytes:
    """Return the data that a peer streams as the answer to a request."""
    data = bytearray()
    deadline_s = asyncio.get_running_loop().time() + _FETCH_S
    async with await link.stream(request, Chunk, deadline_s=deadline_s) as chunks:
        async for chunk in chunks:
            data += chunk.data
    return bytes(data)


def chunks_of(data: bytes) -> Iterator[Chunk]:
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
        connection = None if link is None else link.connection
        lost = SnapshotDelivered(offer.group, offer.peer, arrived=False)
        if connection is None:
            driver.feed(lost)
            return
        message = OfferSnapshot(
            driver.id, driver.core.number, offer.group, offer.index, offer.message
        )
        with suppress(QueueFullError):  # the same as a message that got lost
            connection.send(message)
        # If the peer never fetches the snapshot, it counts as lost and is offered again.
        asyncio.get_running_loop().call_later(_FETCH_S, driver.feed, lost)

    async def fetch(self, peer: str, offer: OfferSnapshot) -> None:
        """Fetch a snapshot that a peer offered, and give it to the core."""
        driver = self._driver
        link = driver.peers.link(peer)
        if offer.ledger != driver.id or link is None or offer.group in self._fetching:
            return
        driver.learn_name(offer.sender, peer)
        self._fetching.add(offer.group)
        try:
            request = FetchSnapshot(offer.group, offer.index, driver.core.number)
            data = await fetch_bytes(link, request)
            driver.feed(SnapshotReceived(offer.group, offer.raft_message, data))
        except CallError as error:
            _log.warning("snapshot.not_fetched: %s", error, extra={"group": offer.group})
        finally:
            self._fetching.discard(offer.group)

    async def serve(self, request: FetchSnapshot) -> AsyncGenerator[Chunk, None]:
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
