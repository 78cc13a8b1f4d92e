"""Bundles on a manager: uploaded by clients in pieces, stored by more than one manager.

A bundle is on the disks of most voters of a job's group before the job is committed, so that every
later leader of the job can send it to workers. Pieces that were received stay when a client or a
call ends: the next upload continues after them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hyperscale.client.messages import BLOB_CHUNK_BYTES, KeepBlob, PutBlob, PutBlobReply
from hyperscale.errors import RunError
from hyperscale.execution.bundle_store import BUNDLES_KEPT, BundleStore, IncomingBundle
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
    """One bundle that clients upload. The disk thread calls `take` and `end`."""

    def __init__(self, store: BundleStore, sha256: str) -> None:
        self.offset = 0  # bytes accepted; the disk thread may not have written the last ones yet
        self.is_over = False  # complete or discarded
        self._store = store
        self._sha256 = sha256
        self._receiving: IncomingBundle | None = None

    def take(self, data: bytes, *, is_last: bool) -> None:
        """Write the next bytes. The last ones complete the bundle; an error discards it."""
        if self.is_over or not data:
            return
        try:
            if self._receiving is None:
                self._receiving = self._store.receive(self._sha256)
            self._receiving.write(data)
            if is_last:
                self._receiving.finish()
                self.end()
        except (OSError, RunError) as error:
            self.end()
            if isinstance(error, RunError):
                raise
            raise RunError(f"the bundle cannot be kept here: {error.strerror or error}") from error

    def end(self) -> None:
        """Accept no more bytes; remove an incomplete bundle."""
        self.is_over = True
        if self._receiving is not None:
            self._receiving.__exit__(None, None, None)


class Bundles:
    """The bundles of one manager."""

    def __init__(
        self,
        directory: Path,
        peers: TierPeers,
        in_use: Callable[[], Iterable[str]],
        *,
        kept: int = BUNDLES_KEPT,
    ) -> None:
        self._store = BundleStore(directory, kept=kept)
        self._peers = peers
        self._in_use = in_use  # by jobs; others are removed when there are too many
        self._uploads: dict[str, _Upload] = {}  # the latest one is last
        self._pulls: dict[str, asyncio.Task[None]] = {}
        # One thread: pieces are written in the order of their arrival.
        self._disk = ThreadPoolExecutor(1, "bundles")
        self._store.open()

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
        return self._store.find(sha256) is not None

    # -- from clients ---------------------------------------------------------------------

    async def put(self, _call: InboundCall, piece: PutBlob) -> PutBlobReply:
        """Take the next piece; answer one that is out of order with the offset to continue at."""
        sha256 = piece.sha256
        check_digest(sha256)
        if piece.size > BUNDLE_BYTES_MAX:
            raise RemoteError(
                f"a bundle of {piece.size:,} bytes is over the limit of {BUNDLE_BYTES_MAX:,}",
                code=RemoteErrorCode.TOO_LARGE,
            )
        if not self.has(sha256):
            upload = self._uploads.pop(sha256, None) or self._begin(sha256)
            self._uploads[sha256] = upload
            data = piece.data if piece.offset == upload.offset else b""
            # Counted before it is written: a piece that is repeated meanwhile is not taken.
            upload.offset += len(data)
            is_last = upload.offset >= piece.size
            try:
                await self._in_turn(partial(upload.take, data, is_last=is_last))
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
        return _Upload(self._store, sha256)

    async def _in_turn(self, work: Callable[[], None]) -> None:
        """Call `work` in the disk thread after all earlier calls; no cancellation stops it."""
        await asyncio.shield(asyncio.wrap_future(self._disk.submit(work)))

    # -- between managers, and to workers -------------------------------------------------

    async def fetch(self, _call: InboundCall, request: FetchBlob) -> AsyncGenerator[Chunk, None]:
        """Send a bundle in pieces."""
        check_digest(request.sha256)
        path = self._store.find(request.sha256)
        if path is None:
            raise RemoteError(
                f"bundle {request.sha256[:12]} is not here", code=RemoteErrorCode.UNKNOWN_BUNDLE
            )
        data = await asyncio.to_thread(path.read_bytes)
        for start in range(0, len(data), BLOB_CHUNK_BYTES):
            yield Chunk(data[start : start + BLOB_CHUNK_BYTES])

    async def keep(self, call: InboundCall, request: KeepBlob) -> PutBlobReply:
        """Store a bundle that the calling manager has."""
        check_digest(request.sha256)
        if not self.has(request.sha256):
            await self._pull(request.sha256, call.peer.node_id)
        return PutBlobReply(offset=request.size, is_complete=True)

    async def _pull(self, sha256: str, node: str) -> None:
        """Fetch a bundle from a node: once for all callers, and even if they are cancelled."""
        pull = self._pulls.get(sha256)
        if pull is None:
            work = self._receive(sha256, node)
            pull = self._pulls[sha256] = asyncio.create_task(work, name=f"bundle:{sha256[:12]}")
            pull.add_done_callback(partial(self._pulled, sha256))
        await asyncio.shield(pull)

    def _pulled(self, sha256: str, pull: "asyncio.Task[None]") -> None:
        del self._pulls[sha256]
        if not pull.cancelled():
            pull.exception()  # raised to the callers; without callers the bundle is not needed

    async def _receive(self, sha256: str, node: str) -> None:
        link = self._peers.link(node)
        if link is None:
            raise RemoteError(
                f"{node} is not reachable from here", code=RemoteErrorCode.UNREACHABLE
            )
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _FETCH_S
        with await asyncio.to_thread(self._store.receive, sha256) as receiving:
            try:
                # A silent node is given up before the client's call times out.
                async with asyncio.timeout(_ANSWER_S) as timeout:
                    stream = await link.stream(FetchBlob(sha256), Chunk, deadline_s=deadline_s)
                    async with stream as chunks:
                        async for chunk in chunks:
                            timeout.reschedule(loop.time() + _STALL_S)
                            await asyncio.to_thread(receiving.write, chunk.data)
            except TimeoutError:
                raise UnreachableError(
                    f"{node} sent no data of bundle {sha256[:12]} in time"
                ) from None
            await asyncio.to_thread(receiving.finish)
        await self._trim(sha256)

    async def _trim(self, newest: str) -> None:
        await self._in_turn(partial(self._store.trim, {newest, *self._in_use()}))

    async def find(self, sha256: str, own: str) -> bool:
        """Return True if the bundle is here, or could be fetched from another manager."""
        check_digest(sha256)
        if self.has(sha256):
            return True
        for node in self._peers.living():
            if node == own:
                continue
            with suppress(CallError, RunError):  # another manager may have it
                await self._pull(sha256, node)
                return True
        return False

    async def read(self, sha256: str) -> bytes:
        """Return a bundle; raise `RemoteError` if it is neither here nor at another node."""
        path = self._store.find(sha256)
        if path is None:
            raise RemoteError(
                f"bundle {sha256[:12]} is not here", code=RemoteErrorCode.UNKNOWN_BUNDLE
            )
        return await asyncio.to_thread(path.read_bytes)

    async def spread(self, sha256: str, nodes: list[str], own: str) -> bool:
        """Return True once most of `nodes` have stored the bundle; False if too few can."""
        path = self._store.find(sha256)
        assert path is not None
        size = path.stat().st_size
        asks = [self._has_kept(node, sha256, size) for node in nodes if node != own]
        return await stored_by_most(asks, kept=int(own in nodes), most=len(nodes) // 2 + 1)

    async def _has_kept(self, node: str, sha256: str, size: int) -> bool:
        link = self._peers.link(node)
        if link is None or self._peers.dead_for_s(node) is not None:
            return False
        deadline_s = asyncio.get_running_loop().time() + _FETCH_S
        try:
            taken = await link.call(
                KeepBlob(sha256=sha256, size=size), PutBlobReply, deadline_s=deadline_s
            )
        except CallError:  # the other voters may be enough
            return False
        return taken.is_complete


async def stored_by_most(
    asks: Iterable[Coroutine[Any, Any, bool]], *, kept: int, most: int
) -> bool:
    """Return True once `most` nodes have stored something: `kept` have, `asks` are the others."""
    waiting = {asyncio.create_task(ask, name="keep") for ask in asks}
    try:
        while waiting and kept < most:  # a silent node delays none of the others
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            kept += sum(task.result() for task in done)
    finally:
        for task in waiting:
            task.cancel()
    return kept >= most


def check_digest(sha256: str) -> None:
    """Raise `RemoteError` unless the name is a digest: it becomes the name of a file."""
    if len(sha256) != _SHA256_CHARACTERS or not set(sha256) <= set("0123456789abcdef"):
        raise RemoteError("a bundle is named by its SHA-256 in hex", code=RemoteErrorCode.INVALID)
