"""Snapshots between nodes: the leader offers one, the follower that lags behind fetches it."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress

from hyperscale.errors import RunError
from hyperscale.ledger.core_events import SendSnapshotOffer, SnapshotDelivered, SnapshotReceived
from hyperscale.ledger.messages import FetchSnapshot, OfferSnapshot
from hyperscale.ledger.server.ledger_driver import LedgerDriver
from hyperscale.wire.errors import CallError, QueueFullError
from hyperscale.wire.messages import Chunk

CHUNK_BYTES = 512 * 1024
FETCH_S = 60.0

_log = logging.getLogger("hyperscale.ledger")


class SnapshotTransfer:
    """Offers, serves and fetches snapshots of one node's groups."""

    def __init__(self, driver: LedgerDriver) -> None:
        self._driver = driver
        self._loop = asyncio.get_running_loop()
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
        self._loop.call_later(FETCH_S, driver.feed, lost)

    async def fetch(self, peer: str, offer: OfferSnapshot) -> None:
        """Fetch a snapshot that a peer offered, and give it to the core."""
        driver = self._driver
        link = driver.peers.link(peer)
        if offer.ledger != driver.id or link is None or offer.group in self._fetching:
            return
        driver.learn_name(offer.sender, peer)
        self._fetching.add(offer.group)
        try:
            data = bytearray()
            request = FetchSnapshot(offer.group, offer.index, driver.core.number)
            deadline_s = self._loop.time() + FETCH_S
            async with await link.stream(request, Chunk, deadline_s=deadline_s) as chunks:
                async for chunk in chunks:
                    data += chunk.data
            driver.feed(SnapshotReceived(offer.group, offer.raft_message, bytes(data)))
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
            for start in range(0, max(len(data), 1), CHUNK_BYTES):
                yield Chunk(data[start : start + CHUNK_BYTES])
            arrived = True
        finally:
            driver.feed(SnapshotDelivered(group, peer, arrived))
