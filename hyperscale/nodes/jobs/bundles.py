"""Bundles on a manager: taken from clients piece by piece, kept by more than one manager.

A bundle is on the disks of most voters of a job's group before the job is committed: whoever
leads the job later can give it to workers. What has been received stays when a client or a
call goes away: the next one goes on from there.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from hyperscale.client.messages import (
    BLOB_CHUNK_BYTES,
    KeepBlob,
    PutBlob,
    PutBlobReply,
)
from hyperscale.errors import RunError
from hyperscale.execution.bundle_store import BundleStore, IncomingBundle
from hyperscale.jobs.messages import FetchBlob
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.plan.limits import BUNDLE_BYTES_MAX
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode, UnreachableError
from hyperscale.wire.messages import Chunk

UPLOADS_MAX = 32
_FETCH_S = 60.0
_ANSWER_S = 2.0
_STALL_S = 15.0
_SHA256_CHARACTERS = 64


class _Upload:
    """One bundle on its way from clients. Its bytes belong to the thread of the disk."""

    def __init__(self, shelf: BundleStore, sha256: str) -> None:
        self.offset = 0  # how far it has come, once the disk has done what it was given
        self.is_over = False  # whole, or thrown away
        self._shelf = shelf
        self._sha256 = sha256
        self._receiving: IncomingBundle | None = None

    def take(self, data: bytes, *, is_last: bool) -> None:
        """The next bytes; with the last ones it is whole, or thrown away."""
        if self.is_over:
            return
        try:
            if self._receiving is None:
                self._receiving = self._shelf.receive(self._sha256)
            self._receiving.write(data)
            if is_last:
                self._receiving.finish()
                self.end()
        except OSError as error:
            self.end()
            raise RunError(f"the bundle cannot be kept here: {error.strerror or error}") from error
        except RunError:
            self.end()
            raise

    def end(self) -> None:
        """No more bytes; what was not finished is gone."""
        self.is_over = True
        if self._receiving is not None:
            self._receiving.__exit__(None, None, None)


class Bundles:
    """The bundles of one manager."""

    def __init__(
        self, directory: Path, peers: TierPeers, in_use: Callable[[], Iterable[str]]
    ) -> None:
        self._shelf = BundleStore(directory)
        self._peers = peers
        self._in_use = in_use  # by jobs; others are forgotten when there are too many
        self._uploads: dict[str, _Upload] = {}  # the one touched last is last
        self._pulls: dict[str, asyncio.Task[None]] = {}
        # One thread: pieces are written in the order they were taken.
        self._disk = ThreadPoolExecutor(1, "bundles")
        self._shelf.open()

    async def close(self) -> None:
        pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancel()
        if pulls:
            await asyncio.wait(pulls)
        for upload in self._uploads.values():
            self._disk.submit(upload.end)
        await asyncio.to_thread(self._disk.shutdown)

    def has(self, sha256: str) -> bool:
        return self._shelf.find(sha256) is not None

    # -- from clients ---------------------------------------------------------------------

    async def put(self, _call: InboundCall, piece: PutBlob) -> PutBlobReply:
        """Takes the next piece; whatever comes out of order is answered with where to go on."""
        sha256 = piece.sha256
        _check(sha256)
        if piece.size > BUNDLE_BYTES_MAX:
            raise RemoteError(
                f"a bundle of {piece.size:,} bytes is over the limit of {BUNDLE_BYTES_MAX:,}",
                code=RemoteErrorCode.TOO_LARGE,
            )
        if not self.has(sha256):
            upload = self._uploads.pop(sha256, None) or self._begin(sha256)
            self._uploads[sha256] = upload
            work: Callable[[], None] = _nothing
            if piece.data and piece.offset == upload.offset:
                # Counted before it is written: a piece that is repeated meanwhile is not taken.
                upload.offset += len(piece.data)
                is_last = upload.offset >= piece.size
                work = partial(upload.take, piece.data, is_last=is_last)
            try:
                await self._in_turn(work)
            finally:
                if upload.is_over and self._uploads.get(sha256) is upload:
                    del self._uploads[sha256]
            if not self.has(sha256):
                offset = 0 if upload.is_over else upload.offset
                return PutBlobReply(offset=offset, is_complete=False)
            await self._trim(sha256)
        return PutBlobReply(offset=piece.size, is_complete=True)

    def _begin(self, sha256: str) -> _Upload:
        while len(self._uploads) >= UPLOADS_MAX:
            oldest = self._uploads.pop(next(iter(self._uploads)))
            self._disk.submit(oldest.end)
        return _Upload(self._shelf, sha256)

    async def _in_turn(self, work: Callable[[], None]) -> None:
        """After all that was to be written before it; done also if nobody waits any more."""
        await asyncio.shield(asyncio.wrap_future(self._disk.submit(work)))

    # -- between managers, and to workers -------------------------------------------------

    async def fetch(self, _call: InboundCall, asked: FetchBlob) -> AsyncGenerator[Chunk, None]:
        """Gives a bundle away, in pieces."""
        _check(asked.sha256)
        path = self._shelf.find(asked.sha256)
        if path is None:
            raise RemoteError(
                f"bundle {asked.sha256[:12]} is not here", code=RemoteErrorCode.UNKNOWN_BUNDLE
            )
        data = await asyncio.to_thread(path.read_bytes)
        for start in range(0, len(data), BLOB_CHUNK_BYTES):
            yield Chunk(data[start : start + BLOB_CHUNK_BYTES])

    async def keep(self, call: InboundCall, asked: KeepBlob) -> PutBlobReply:
        """Another manager wants this one to have a bundle too."""
        _check(asked.sha256)
        if not self.has(asked.sha256):
            await self._pull(asked.sha256, call.peer.node_id)
        return PutBlobReply(offset=asked.size, is_complete=True)

    async def _pull(self, sha256: str, node: str) -> None:
        """Brings it here, once, however many ask for it; also if those that do give up."""
        pull = self._pulls.get(sha256)
        if pull is None:
            work = self._bring(sha256, node)
            pull = self._pulls[sha256] = asyncio.create_task(work, name=f"bundle:{sha256[:12]}")
            pull.add_done_callback(partial(self._pulled, sha256))
        await asyncio.shield(pull)

    def _pulled(self, sha256: str, pull: "asyncio.Task[None]") -> None:
        del self._pulls[sha256]
        if not pull.cancelled():
            pull.exception()  # whoever waited has it; if nobody did, nobody needs it

    async def _bring(self, sha256: str, node: str) -> None:
        link = self._peers.link(node)
        if link is None:
            raise RemoteError(
                f"{node} is not reachable from here", code=RemoteErrorCode.UNREACHABLE
            )
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _FETCH_S
        with await asyncio.to_thread(self._shelf.receive, sha256) as receiving:
            try:
                # One that is silent is found out before the client has lost its patience.
                async with asyncio.timeout(_ANSWER_S) as patience:
                    stream = await link.stream(FetchBlob(sha256), Chunk, deadline_s=deadline_s)
                    async with stream as chunks:
                        async for chunk in chunks:
                            patience.reschedule(loop.time() + _STALL_S)
                            await asyncio.to_thread(receiving.write, chunk.data)
            except TimeoutError:
                raise UnreachableError(f"{node} does not give bundle {sha256[:12]}") from None
            await asyncio.to_thread(receiving.finish)
        await self._trim(sha256)

    async def _trim(self, newest: str) -> None:
        await self._in_turn(partial(self._shelf.trim, {newest, *self._in_use()}))

    async def find(self, sha256: str, own: str) -> bool:
        """Whether it is here, brought from another manager if need be."""
        _check(sha256)
        if self.has(sha256):
            return True
        for node in self._peers.living():
            if node == own:
                continue
            with suppress(CallError, RunError):
                await self._pull(sha256, node)
                return True
        return False

    async def spread(self, sha256: str, nodes: list[str], own: str) -> bool:
        """Has most of `nodes` keep it; false if too few of them could."""
        path = self._shelf.find(sha256)
        assert path is not None
        size = path.stat().st_size
        kept, most = int(own in nodes), len(nodes) // 2 + 1
        asks = {
            asyncio.create_task(self._has_kept(node, sha256, size), name=f"keep:{node}")
            for node in nodes
            if node != own
        }
        try:
            while asks and kept < most:  # one that is silent holds nobody up
                done, asks = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
                kept += sum(task.result() for task in done)
        finally:
            for task in asks:
                task.cancel()
        return kept >= most

    async def _has_kept(self, node: str, sha256: str, size: int) -> bool:
        link = self._peers.link(node)
        if link is None or self._peers.dead_for_s(node) is not None:
            return False
        deadline_s = asyncio.get_running_loop().time() + _FETCH_S
        try:
            taken = await link.call(
                KeepBlob(sha256=sha256, size=size), PutBlobReply, deadline_s=deadline_s
            )
        except CallError:
            return False
        return taken.is_complete


def _nothing() -> None:
    """A turn of the disk that only waits for those before it."""


def _check(sha256: str) -> None:
    """The name becomes a file's: nothing but a digest may."""
    if len(sha256) != _SHA256_CHARACTERS or not set(sha256) <= set("0123456789abcdef"):
        raise RemoteError("a bundle is named by its SHA-256 in hex", code=RemoteErrorCode.INVALID)
