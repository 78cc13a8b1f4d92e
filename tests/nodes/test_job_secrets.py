"""Secret parameters on a manager: when they are deleted, and how a new voter gets them."""

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from hyperscale.client.messages import KeepSecrets
from hyperscale.jobs.messages import FetchSecrets, FetchSecretsReply
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.nodes.jobs.job_secrets import UNUSED_S, JobSecrets, SecretStore
from hyperscale.plan.secrets import pack_secrets, secrets_id, unpack_secrets
from hyperscale.wire.errors import RemoteError, UnreachableError
from tests.lab.loops import on_loop
from tests.lab.waiting import WAIT_S

PACKED = pack_secrets({"token": "hunter2-hunter2"})
ID = secrets_id(PACKED)


class Link:
    """A link to another manager: `packed` is what it answers, None if it does not."""

    def __init__(self, packed: bytes | None) -> None:
        self.packed = packed

    async def call(self, request: Any, _reply: type, *, deadline_s: float) -> FetchSecretsReply:
        if self.packed is None:
            raise UnreachableError("down")
        assert request == FetchSecrets(ID)
        return FetchSecretsReply(self.packed)


class Peers(TierPeers):
    def __init__(self, **links: Link) -> None:
        self.links = links

    def living(self) -> list[str]:
        return list(self.links)

    def link(self, node: str) -> Any:
        return self.links[node]


class Node:
    """The secrets of one manager, with a clock that the test sets."""

    def __init__(self, directory: Path, **links: Link) -> None:
        self.now_s = 0.0
        self.directory = directory
        self.secrets = JobSecrets(directory, Peers(**links), clock=lambda: self.now_s)

    async def keep(self) -> None:
        call: Any = None
        assert (await self.secrets.keep(call, KeepSecrets(packed=PACKED))).is_kept

    async def has(self) -> bool:
        call: Any = None
        return (await self.secrets.fetch(call, FetchSecrets(ID))).packed == PACKED


def test_equal_secrets_have_different_ids() -> None:
    assert secrets_id(pack_secrets({"token": "hunter2-hunter2"})) != ID
    assert unpack_secrets(PACKED) == {"token": "hunter2-hunter2"}
    assert (pack_secrets({}), unpack_secrets(b""), secrets_id(b"")) == (b"", {}, "")


@on_loop
async def test_secrets_are_deleted_when_no_job_needs_them_any_more(tmp_path: Path) -> None:
    node = Node(tmp_path / "secrets")
    await node.keep()
    await node.secrets.follow([])  # the job is not committed yet
    await node.secrets.follow([ID])
    assert await node.has()
    await node.secrets.follow([])
    assert not await node.has()
    assert list(node.directory.iterdir()) == []


@on_loop
async def test_secrets_of_a_submission_that_made_no_job_are_deleted(tmp_path: Path) -> None:
    node = Node(tmp_path / "secrets")
    await node.keep()
    node.secrets.note_submission(ID)  # refused, or of a key that was used before
    await node.secrets.follow([])
    assert not await node.has()


@on_loop
async def test_secrets_that_arrive_after_their_submission_was_refused_are_deleted(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "secrets")
    node.secrets.note_submission(ID)
    await node.secrets.follow([])
    await node.keep()  # the other voters were enough, so nothing waited for this one
    await node.secrets.follow([])
    assert not await node.has()


@on_loop
async def test_secrets_whose_request_was_cancelled_while_they_were_written_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "secrets")
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    write = SecretStore.write

    def write_slowly(store: SecretStore, sha256: str, packed: bytes) -> None:
        begun.set()
        go_on.wait(WAIT_S)
        write(store, sha256, packed)
        done.set()

    monkeypatch.setattr(SecretStore, "write", write_slowly)
    keeping = asyncio.create_task(node.keep())
    await asyncio.to_thread(begun.wait, WAIT_S)
    keeping.cancel()
    go_on.set()
    await asyncio.to_thread(done.wait, WAIT_S)
    assert await node.has()
    node.secrets.note_submission(ID)
    await node.secrets.follow([])
    assert not await node.has()


@on_loop
async def test_secrets_that_were_never_submitted_expire_also_after_a_restart(
    tmp_path: Path,
) -> None:
    before = Node(tmp_path / "secrets")
    await before.keep()
    node = Node(before.directory)
    await node.secrets.follow([])
    node.now_s = UNUSED_S
    await node.secrets.follow([])
    assert await node.has()
    node.now_s = UNUSED_S + 1
    await node.secrets.follow([])
    assert not await node.has()


@on_loop
async def test_secrets_of_a_job_committed_while_others_are_deleted_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, call = Node(tmp_path / "secrets"), cast(Any, None)
    ended = pack_secrets({"token": "of a job that has ended"})
    await node.secrets.keep(call, KeepSecrets(packed=ended))
    node.secrets.note_submission(secrets_id(ended))
    await node.keep()
    erase = SecretStore.erase

    def commit_meanwhile(store: SecretStore, sha256: str) -> None:
        erase(store, sha256)
        node.secrets.note_submission(ID)

    monkeypatch.setattr(SecretStore, "erase", commit_meanwhile)
    await node.secrets.follow([])
    assert await node.has()
    assert [path.stem for path in node.directory.iterdir()] == [ID]


@on_loop
async def test_secrets_that_could_not_be_written_are_fetched_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "secrets", good=Link(PACKED))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="no space"):
            await node.keep()
    assert not await node.has()
    await node.secrets.follow([ID])
    assert await node.has()
    (node.directory / "0.part").write_bytes(b"of a process that was killed")
    await Node(node.directory).secrets.follow([ID])
    assert [path.stem for path in node.directory.iterdir()] == [ID]


@on_loop
async def test_a_new_voter_fetches_the_secrets_of_running_jobs(tmp_path: Path) -> None:
    links = {"dead": Link(None), "forged": Link(b"other"), "good": Link(PACKED)}
    node = Node(tmp_path / "secrets", **links)
    await node.secrets.follow([ID])
    assert await node.has()
    await node.secrets.follow([])
    assert not await node.has()


@on_loop
async def test_a_request_cannot_name_another_file(tmp_path: Path) -> None:
    call: Any = None
    with pytest.raises(RemoteError, match="SHA-256"):
        await Node(tmp_path).secrets.fetch(call, FetchSecrets("../secret"))
