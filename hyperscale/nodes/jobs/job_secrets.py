"""Secret parameters of jobs on a manager: one file per job, deleted when the job has ended.

They are on the disks of most voters of a job's group before the job is committed, so that every
later leader can send them to workers. The ledger has only their id: no log entry, snapshot or
backup of it ever holds a value.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from secrets import token_hex

from hyperscale.client.messages import KeepSecrets, KeepSecretsReply
from hyperscale.execution.bundle_store import sync_directory
from hyperscale.jobs.messages import FetchSecrets, FetchSecretsReply
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.nodes.jobs.bundles import check_digest, stored_by_most
from hyperscale.plan.secrets import secrets_id
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError

UNUSED_S = 600.0
"""How long secrets are kept that no job of this node has: the job may not be committed yet."""
_ANSWER_S = 5.0
_FOLLOW_S = 0.5
_SUFFIX = ".secrets"

_log = logging.getLogger("hyperscale.jobs")


class SecretStore:
    """The secrets of one node, as files named by their id that only its user can read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def delete_unfinished(self) -> None:
        """Delete files that an earlier process began to write; call it before the first write."""
        for partial in self._directory.glob("*.part"):
            partial.unlink(missing_ok=True)

    def ids(self) -> list[str]:
        """Return the ids of all secrets here."""
        return [path.name.removesuffix(_SUFFIX) for path in self._directory.glob(f"*{_SUFFIX}")]

    def write(self, sha256: str, packed: bytes) -> None:
        """Write and sync a file, whole or not at all."""
        path = self._path(sha256)
        if path.exists():
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Two requests may write the same secrets at once; each has its own file until the rename.
        partial = path.with_suffix(f".{token_hex(4)}.part")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(packed)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
        sync_directory(self._directory)

    def read(self, sha256: str) -> bytes:
        """Return the packed secrets; empty if they are not here."""
        try:
            return self._path(sha256).read_bytes()
        except FileNotFoundError:
            return b""

    def erase(self, sha256: str) -> None:
        self._path(sha256).unlink(missing_ok=True)

    def _path(self, sha256: str) -> Path:
        return self._directory / f"{sha256}{_SUFFIX}"


class JobSecrets:
    """The secret parameters of the jobs of one manager."""

    def __init__(
        self, directory: Path, peers: TierPeers, *, clock: Callable[[], float] | None = None
    ) -> None:
        self._store = SecretStore(directory)
        self._store.delete_unfinished()
        self._peers = peers
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._found_s: dict[str, float] = {}  # id -> when its file was first found here
        self._submitted_s: dict[str, float] = {}  # id -> when it was last submitted or needed

    # -- keeping --------------------------------------------------------------------------

    async def spread(self, packed: bytes, nodes: list[str], own: str) -> bool:
        """Return True once most of `nodes` have the secrets on disk; False if too few can."""
        if own in nodes:
            await asyncio.to_thread(self._store.write, secrets_id(packed), packed)
        asks = [self._has_kept(node, packed) for node in nodes if node != own]
        return await stored_by_most(asks, kept=int(own in nodes), most=len(nodes) // 2 + 1)

    async def _has_kept(self, node: str, packed: bytes) -> bool:
        link = self._peers.link(node)
        if link is None or self._peers.dead_for_s(node) is not None:
            return False
        deadline_s = asyncio.get_running_loop().time() + _ANSWER_S
        try:
            reply = await link.call(
                KeepSecrets(packed=packed), KeepSecretsReply, deadline_s=deadline_s
            )
        except CallError:  # the other voters may be enough
            return False
        return reply.is_kept

    async def keep(self, _call: InboundCall, request: KeepSecrets) -> KeepSecretsReply:
        """Store the secrets of a job for another manager."""
        await asyncio.to_thread(self._store.write, secrets_id(request.packed), request.packed)
        return KeepSecretsReply(is_kept=True)

    async def fetch(self, _call: InboundCall, request: FetchSecrets) -> FetchSecretsReply:
        """Send the secrets of a job to a worker or another manager."""
        check_digest(request.sha256)
        return FetchSecretsReply(await asyncio.to_thread(self._store.read, request.sha256))

    async def read(self, sha256: str) -> bytes:
        """Return the packed secrets of a job; empty if they are not here."""
        return await asyncio.to_thread(self._store.read, sha256)

    def note_submission(self, sha256: str) -> None:
        """Note that a submission with these secrets was applied: from now on they are deleted when
        no job needs them, as after a submission that was refused."""
        self._submitted_s[sha256] = self._clock()

    # -- deleting -------------------------------------------------------------------------

    async def follow_always(self, living: Callable[[], Iterable[str]]) -> None:
        """Follow the jobs of this node for as long as it runs; `living` as in `follow`."""
        while True:
            try:
                await self.follow(living())
            except OSError as error:  # a full or read-only disk: tried again
                _log.warning("secrets.not_stored: %s", error, extra={"detail": str(error)})
            await asyncio.sleep(_FOLLOW_S)

    async def follow(self, living: Iterable[str]) -> None:
        """Delete the secrets of jobs that have ended, and fetch those that are missing here.

        `living` are the ids that jobs of this node need, jobs that have not ended."""
        now_s, needed = self._clock(), set(living)
        self._submitted_s.update(dict.fromkeys(needed, now_s))
        # What is submitted from here on may belong to a job that `living` does not have yet.
        ended = self._submitted_s.keys() - needed
        # The disk is asked each time: a write whose request was cancelled ends all the same.
        held = await asyncio.to_thread(self._store.ids)
        self._found_s = {sha256: self._found_s.get(sha256, now_s) for sha256 in held}
        unneeded = [
            sha256
            for sha256, found_s in self._found_s.items()
            if sha256 in ended or (sha256 not in needed and now_s - found_s > UNUSED_S)
        ]
        for sha256 in unneeded:
            await asyncio.to_thread(self._store.erase, sha256)
            _log.info("secrets.deleted", extra={"secrets": sha256[:12]})
        # Secrets may arrive after their submission was applied, and even after their job has ended.
        self._submitted_s = {
            sha256: submitted_s
            for sha256, submitted_s in self._submitted_s.items()
            if now_s - submitted_s <= UNUSED_S
        }
        for sha256 in needed - set(held):
            await self._pull(sha256)

    async def _pull(self, sha256: str) -> None:
        """Fetch secrets from any manager: this node became a voter after they were spread."""
        deadline_s = asyncio.get_running_loop().time() + _ANSWER_S
        for node in self._peers.living():
            link = self._peers.link(node)
            if link is None:
                continue
            try:
                reply = await link.call(
                    FetchSecrets(sha256), FetchSecretsReply, deadline_s=deadline_s
                )
            except CallError:  # another manager may have them; the next round asks again
                continue
            if secrets_id(reply.packed) == sha256:
                await asyncio.to_thread(self._store.write, sha256, reply.packed)
                return
