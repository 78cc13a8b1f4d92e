"""Bundles on a manager: taken from clients piece by piece, kept by more than one manager.

A bundle is on the disks of most voters of a job's group before the job is committed: whoever
leads the job later can give it to workers.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

from hyperscale.nodes.agent.files import BundleShelf, Receiving
from hyperscale.nodes.client_messages import (
    BLOB_BYTES_MAX,
    BLOB_CHUNK_BYTES,
    BlobTaken,
    KeepBlob,
    PutBlob,
)
from hyperscale.nodes.job_messages import FetchBlob
from hyperscale.nodes.ledger.peers import Peers
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, RemoteError
from hyperscale.wire.messages import Chunk

_FETCH_S = 60.0
_SHA256_CHARACTERS = 64


class Bundles:
    """The bundles of one manager."""

    def __init__(self, directory: Path, peers: Peers) -> None:
        self._shelf = BundleShelf(directory)
        self._peers = peers
        self._uploads: dict[str, tuple[Receiving, int]] = {}
        self._shelf.open()

    def close(self) -> None:
        for receiving, _ in self._uploads.values():
            receiving.__exit__(None, None, None)
        self._uploads.clear()

    def has(self, sha256: str) -> bool:
        return self._shelf.find(sha256) is not None

    # -- from clients ---------------------------------------------------------------------

    async def put(self, _call: InboundCall, piece: PutBlob) -> BlobTaken:
        """Takes the next piece; whatever comes out of order is answered with where to go on."""
        _check(piece.sha256)
        if piece.size > BLOB_BYTES_MAX:
            raise RemoteError(
                f"a bundle of {piece.size:,} bytes is over the limit of {BLOB_BYTES_MAX:,}",
                code="too_large",
            )
        if self.has(piece.sha256):
            return BlobTaken(offset=piece.size, is_complete=True)
        if piece.offset == 0 and piece.data:
            self._drop(piece.sha256)
            receiving = await asyncio.to_thread(self._shelf.receive, piece.sha256)
            self._uploads[piece.sha256] = (receiving, 0)
        found = self._uploads.get(piece.sha256)
        if found is None or not piece.data or found[1] != piece.offset:
            return BlobTaken(offset=0 if found is None else found[1], is_complete=False)
        receiving, offset = found
        offset += len(piece.data)
        self._uploads[piece.sha256] = (receiving, offset)
        await asyncio.to_thread(receiving.write, piece.data)
        if offset < piece.size:
            return BlobTaken(offset=offset, is_complete=False)
        try:
            await asyncio.to_thread(receiving.finish)
        finally:
            self._drop(piece.sha256)
        return BlobTaken(offset=offset, is_complete=True)

    def _drop(self, sha256: str) -> None:
        found = self._uploads.pop(sha256, None)
        if found is not None:
            found[0].__exit__(None, None, None)

    # -- between managers, and to workers -------------------------------------------------

    async def fetch(self, _call: InboundCall, asked: FetchBlob) -> AsyncGenerator[Chunk, None]:
        """Gives a bundle away, in pieces."""
        path = self._shelf.find(asked.sha256)
        if path is None:
            raise RemoteError(f"bundle {asked.sha256[:12]} is not here", code="unknown_bundle")
        data = await asyncio.to_thread(path.read_bytes)
        for start in range(0, len(data), BLOB_CHUNK_BYTES):
            yield Chunk(data[start : start + BLOB_CHUNK_BYTES])

    async def keep(self, call: InboundCall, asked: KeepBlob) -> BlobTaken:
        """Another manager wants this one to have a bundle too."""
        _check(asked.sha256)
        if not self.has(asked.sha256):
            await self._pull(asked.sha256, call.peer.node_id)
        return BlobTaken(offset=asked.size, is_complete=True)

    async def _pull(self, sha256: str, node: str) -> None:
        link = self._peers.link(node)
        if link is None:
            raise RemoteError(f"{node} is not reachable from here", code="unreachable")
        deadline_s = asyncio.get_running_loop().time() + _FETCH_S
        with await asyncio.to_thread(self._shelf.receive, sha256) as receiving:
            stream = await link.stream(FetchBlob(sha256), Chunk, deadline_s=deadline_s)
            async with stream as chunks:
                async for chunk in chunks:
                    await asyncio.to_thread(receiving.write, chunk.data)
            await asyncio.to_thread(receiving.finish)

    async def find(self, sha256: str, own: str) -> bool:
        """Whether it is here, brought from another manager if need be."""
        if self.has(sha256):
            return True
        for node in self._peers.living():
            if node == own:
                continue
            with suppress(CallError):
                await self._pull(sha256, node)
                return True
        return False

    async def spread(self, sha256: str, nodes: list[str], own: str) -> bool:
        """Has most of `nodes` keep it; false if too few of them could."""
        path = self._shelf.find(sha256)
        assert path is not None
        size = path.stat().st_size
        others = [node for node in nodes if node != own]
        kept = await asyncio.gather(*(self._has_kept(node, sha256, size) for node in others))
        return sum(kept) + (own in nodes) > len(nodes) // 2

    async def _has_kept(self, node: str, sha256: str, size: int) -> bool:
        link = self._peers.link(node)
        if link is None or self._peers.dead_for_s(node) is not None:
            return False
        deadline_s = asyncio.get_running_loop().time() + _FETCH_S
        try:
            taken = await link.call(
                KeepBlob(sha256=sha256, size=size), BlobTaken, deadline_s=deadline_s
            )
        except CallError:
            return False
        return taken.is_complete


def _check(sha256: str) -> None:
    """The name becomes a file's: nothing but a digest may."""
    if len(sha256) != _SHA256_CHARACTERS or not set(sha256) <= set("0123456789abcdef"):
        raise RemoteError("a bundle is named by its SHA-256 in hex", code="invalid")
