"""Upload a bundle to managers that lose connections, die, stay silent or receive damaged bytes."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import pytest

from hyperscale.client.manager_connections import ManagerConnections
from hyperscale.client.messages import KeepBlob, PutBlob, PutBlobReply
from hyperscale.client.submission import PIECE_BYTES, Package, upload
from hyperscale.errors import RunError
from hyperscale.execution.bundle_store import BUNDLES_KEPT
from hyperscale.jobs.messages import FetchBlob
from hyperscale.nodes.jobs.bundles import UPLOADS_MAX, Bundles
from hyperscale.plan import Plan
from hyperscale.plan.limits import BUNDLE_BYTES_MAX
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import RemoteError
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.link import PeerLink
from hyperscale.wire.messages import Chunk
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security
from hyperscale.wire.server import PeerServer
from tests.lab.loops import on_loop
from tests.lab.managers import client, introduction

PAYLOAD = Random(1).randbytes(2 * 1024 * 1024 + 17)
SHA256 = hashlib.sha256(PAYLOAD).hexdigest()
PACKAGE = Package(plan=Plan(file="x.py", workflows=()), payload=PAYLOAD, sha256=SHA256)
PIECES = -(-len(PAYLOAD) // PIECE_BYTES)

Address = tuple[str, int]


class Tier:
    """An address book of managers, none of which is known to be dead."""

    def __init__(self, own: PeerServer, book: dict[str, Address]) -> None:
        self._own = own
        self._book = book
        self._links: dict[str, PeerLink] = {}

    def link(self, node: str) -> PeerLink | None:
        if node not in self._links:
            self._links[node] = self._own.link(*self._book[node], node_id=node)
        return self._links[node]

    def connection(self, node: str) -> Connection | None:
        return self._own.connection_to(node)

    def living(self) -> list[str]:
        return sorted(self._book)

    def dead_for_s(self, _node: str) -> float | None:
        return None

    def is_fit(self, _node: str) -> bool:
        return True


class Manager:
    """The bundles of a manager behind a real socket; `before` is awaited for each piece."""

    def __init__(self, directory: Path, name: str, book: dict[str, Address]) -> None:
        self.pieces: list[PutBlob] = []
        self.used: set[str] = set()
        self.before: Callable[[PutBlob], Awaitable[None]] | None = None
        handlers = Handlers()
        self.server = PeerServer(introduction(Role.MANAGER, name), Security(), handlers)
        self.bundles = Bundles(directory / name, Tier(self.server, book), self.used.copy)
        handlers.add(PutBlob, self._put)
        handlers.add(KeepBlob, self.bundles.keep)
        handlers.add(FetchBlob, self.bundles.fetch)
        self._name, self.book = name, book

    async def _put(self, call: InboundCall, piece: PutBlob) -> PutBlobReply:
        self.pieces.append(piece)
        if self.before is not None:
            await self.before(piece)
        return await self.bundles.put(call, piece)

    def has_it(self, directory: Path) -> bool:
        found = directory / self._name / f"{SHA256}.zip"
        return found.exists() and found.read_bytes() == PAYLOAD

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Manager"]:
        async with self.server:
            self.book[self._name] = await self.server.listen("127.0.0.1", 0)
            try:
                yield self
            finally:
                await self.bundles.close()

    def drop_connections(self) -> None:
        for connection in self.server.connections:
            connection.abort("the test closes the connection")


@asynccontextmanager
async def lab(
    directory: Path, managers: int
) -> AsyncIterator[tuple[list[Manager], ManagerConnections]]:
    """Run managers, and a client that asks them in this order."""
    book: dict[str, Address] = {}
    made = [Manager(directory, f"m{number}", book) for number in range(managers)]
    async with AsyncExitStack() as stack:
        for manager in made:
            await stack.enter_async_context(manager.running())
        server = await stack.enter_async_context(client())
        yield made, ManagerConnections(server, list(book.values()), Random(1))


@on_loop
async def test_pieces_that_arrived_survive_a_lost_connection(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as ([manager], managers):

        async def lose(_piece: PutBlob) -> None:
            if len(manager.pieces) in (3, 9):
                manager.drop_connections()

        manager.before = lose
        await upload(managers, PACKAGE, within_s=20.0)
        assert manager.has_it(tmp_path)
        assert (
            len(manager.pieces) <= PIECES + 4
        )  # each loss repeats one piece and sends one out of order


@on_loop
async def test_another_manager_gets_the_whole_bundle_when_one_is_lost(tmp_path: Path) -> None:
    async with lab(tmp_path, 2) as ([first, second], managers):

        async def fall_silent(_piece: PutBlob) -> None:
            if len(first.pieces) > 5:
                first.drop_connections()
                await asyncio.Event().wait()

        first.before = fall_silent
        await upload(managers, PACKAGE, within_s=20.0)
        assert second.has_it(tmp_path)
        assert not first.has_it(tmp_path)


@on_loop
async def test_two_clients_may_upload_the_same_bundle_at_once(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as ([manager], managers):
        async with asyncio.TaskGroup() as group:
            group.create_task(upload(managers, PACKAGE, within_s=20.0))
            group.create_task(upload(managers, PACKAGE, within_s=20.0))
        assert manager.has_it(tmp_path)


@on_loop
async def test_a_damaged_bundle_is_refused_and_uploaded_again(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as ([manager], managers):
        connection, _ = await managers.connected()
        deadline_s = asyncio.get_running_loop().time() + 20.0
        size = PIECE_BYTES + 10
        small = PAYLOAD[:size]
        sha256 = hashlib.sha256(small).hexdigest()
        damaged = bytes([small[0] ^ 1]) + small[1:PIECE_BYTES]
        first = PutBlob(sha256=sha256, size=size, offset=0, data=damaged)
        taken = await connection.call(first, PutBlobReply, deadline_s=deadline_s)
        assert taken == PutBlobReply(offset=PIECE_BYTES, is_complete=False)
        last = PutBlob(sha256=sha256, size=size, offset=PIECE_BYTES, data=small[PIECE_BYTES:])
        with pytest.raises(RemoteError, match="changed on the way"):
            await connection.call(last, PutBlobReply, deadline_s=deadline_s)
        assert not list((tmp_path / "m0").iterdir())
        await upload(managers, replace(PACKAGE, payload=small, sha256=sha256), within_s=20.0)
        assert manager.bundles.has(sha256)


@on_loop
async def test_a_bundle_that_is_too_large_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as (_, managers):
        piece = PutBlob(sha256=SHA256, size=BUNDLE_BYTES_MAX + 1, offset=0, data=b"x")
        with pytest.raises(RemoteError, match="over the limit of 67,108,864"):
            await managers.ask(piece, PutBlobReply, within_s=10.0)


@on_loop
async def test_only_a_digest_names_a_file_to_fetch(tmp_path: Path) -> None:
    (tmp_path / "m0").mkdir()
    (tmp_path / "outside.zip").write_bytes(b"not a bundle")
    async with lab(tmp_path, 2) as ([_, second], _):
        link = Tier(second.server, second.book).link("m0")
        assert link is not None
        deadline_s = asyncio.get_running_loop().time() + 10.0
        asked = FetchBlob("../outside")
        async with await link.stream(asked, Chunk, deadline_s=deadline_s) as chunks:
            with pytest.raises(RemoteError, match="named by its SHA-256"):
                await anext(aiter(chunks))
        with pytest.raises(RemoteError, match="named by its SHA-256"):
            await second.bundles.find("../m0/../outside", "m1")


@on_loop
async def test_more_bytes_than_announced_are_refused(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as (_, managers):
        connection, _ = await managers.connected()
        piece = PutBlob(sha256=SHA256, size=10, offset=0, data=PAYLOAD[:100])
        deadline_s = asyncio.get_running_loop().time() + 10.0
        with pytest.raises(RemoteError, match="the 100 bytes received"):
            await connection.call(piece, PutBlobReply, deadline_s=deadline_s)


@on_loop
async def test_an_upload_without_progress_fails_with_its_offset(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as ([manager], managers):
        others = [hashlib.sha256(bytes([number])).hexdigest() for number in range(UPLOADS_MAX)]

        async def displace(_piece: PutBlob) -> None:
            for other in others:
                begun = PutBlob(sha256=other, size=10, offset=0)
                await manager.bundles.put(cast("InboundCall", None), begun)

        manager.before = displace
        await managers.connected()
        with pytest.raises(RunError, match=r"2\.0 MiB got no further than 0\.1 MiB"):
            await upload(managers, PACKAGE, within_s=2.0)


@on_loop
async def test_unfinished_uploads_are_bounded(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as (_, managers):
        for number in range(UPLOADS_MAX + 5):
            sha256 = hashlib.sha256(str(number).encode()).hexdigest()
            piece = PutBlob(sha256=sha256, size=100, offset=0, data=b"half of it")
            await managers.ask(piece, PutBlobReply, within_s=10.0)
        assert len(list((tmp_path / "m0").glob("*.part"))) == UPLOADS_MAX


@on_loop
async def test_a_manager_removes_old_bundles_but_none_of_its_jobs(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as ([manager], managers):
        names = []
        for number in range(BUNDLES_KEPT + 3):
            small = f"bundle {number}".encode()
            names.append(hashlib.sha256(small).hexdigest())
            manager.used.update(names[:1])
            await upload(managers, replace(PACKAGE, payload=small, sha256=names[-1]), within_s=20.0)
        assert manager.bundles.has(names[0])
        assert manager.bundles.has(names[-1])
        assert len(list((tmp_path / "m0").iterdir())) == BUNDLES_KEPT + 1


@on_loop
async def test_a_silent_manager_does_not_block_an_upload(tmp_path: Path) -> None:
    """A majority of three gets the bundle although the third is silent; a fourth finds it."""
    async with lab(tmp_path, 3) as ([first, second, third], managers):
        silent = await asyncio.start_server(_say_nothing, "127.0.0.1", 0)
        async with silent:
            first.book["m2"] = silent.sockets[0].getsockname()
            await upload(managers, PACKAGE, within_s=20.0)
            assert await first.bundles.spread(SHA256, ["m0", "m1", "m2"], "m0")
            assert second.has_it(tmp_path)
            first.book["m0"] = first.book.pop("m2")  # asked before the manager that has the bundle
            assert await third.bundles.find(SHA256, "m2")
            assert third.has_it(tmp_path)


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.CancelledError, ConnectionError):
        await reader.read()
    writer.close()
