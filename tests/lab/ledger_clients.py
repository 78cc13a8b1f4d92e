"""Clients of a real tier: a forwarder without a vote, and load that remembers its answers.

The forwarder speaks what managers speak to each other about commands they do not lead. It is
known to the tier as a peer only: no member, no seat, nothing to lose.
"""

import asyncio
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from hyperscale.config.addresses import split_address
from hyperscale.errors import HyperscaleError
from hyperscale.jobs.committed.events import (
    CancelRequested,
    Event,
    JobFinished,
    JobStatus,
    JobSubmitted,
    Reply,
    decode_reply,
    encode,
)
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.ledger.audit import AUDIT, AuditEntry, decode_audit
from hyperscale.ledger.messages import ForwardCommand, ForwardCommandReply
from hyperscale.ledger.server.operator_messages import (
    ListEvents,
    ListEventsReply,
)
from hyperscale.wire.errors import CallError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security, incarnation_now
from hyperscale.wire.server import PeerServer
from hyperscale.wire.versions import VERSION
from tests.lab.job_builders import submission

CALL_S = 4.0
_AGAIN_S = 0.02
_KINDS = {"submit": "submitted", "cancel": "cancel"}  # action in the audit -> event

_Answer = TypeVar("_Answer", bound=Struct)


class UnknownError(Exception):
    """The command may or may not have been committed."""


class Forwarder:
    """Sends commands to the nodes of a tier as a peer does."""

    def __init__(self, addresses: Sequence[str], role: Role = Role.MANAGER) -> None:
        self._addresses = addresses
        local = Introduction(
            cluster="hyperscale",
            environment="default",
            role=role,
            node_id=f"forwarder-{secrets.token_hex(4)}",
            incarnation=incarnation_now(),
            version=VERSION,
            datacenter="default",
        )
        self._server = PeerServer(local, Security())
        self._links: list[PeerLink] = []
        self.rng = random.Random(1)

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        self._links = [self._server.link(*split_address(each)) for each in self._addresses]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.__aexit__(kind, error, trace)

    async def ask(
        self, via: int, question: Struct, answer: type[_Answer], *, timeout_s: float = CALL_S
    ) -> _Answer:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        return await self._links[via].call(question, answer, deadline_s=deadline_s)

    async def command(
        self,
        group: int,
        key: str,
        body: bytes,
        *,
        audit: bytes = b"",
        via: int | None = None,
        within_s: float = 60.0,
    ) -> ForwardCommandReply:
        """Commit a command; raise `UnknownError` if it may or may not be committed."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while True:
            where = self.rng.randrange(len(self._links)) if via is None else via
            try:
                command = ForwardCommand(group, key, body, hops=1, audit=audit)
                done = await self.ask(where, command, ForwardCommandReply)
            except CallError as error:
                if not error.is_definite:
                    raise UnknownError(str(error)) from error
            else:
                if not done.refused:
                    return done
            if loop.time() > until_s:
                raise AssertionError(
                    f"no answer for {within_s:.0f} s to a command of group {group}"
                )
            await asyncio.sleep(_AGAIN_S)

    async def commit(
        self, event: Event, *, by: str = "", via: int | None = None, within_s: float = 60.0
    ) -> tuple[ForwardCommandReply, Reply]:
        """Repeat an idempotent event until its outcome is known. `by`: whom the audit names."""
        if isinstance(event, JobSubmitted):
            group, key = -1, event.key
        else:
            group, key = parse_job_id(event.job).group, ""
        until_s = asyncio.get_running_loop().time() + within_s
        audit = b"" if by == "" else audited(event, by)
        while True:
            try:
                done = await self.command(
                    group, key, encode(event), audit=audit, via=via, within_s=within_s
                )
            except UnknownError:
                if asyncio.get_running_loop().time() > until_s:
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                return done, decode_reply(done.reply)

    async def events(self, job: str = "", *, since_ms: int = 0) -> list[tuple[Any, ...]]:
        """Fetch all history rows, page by page, from any node that answers."""
        rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        while True:
            asked = ListEvents(job=job, since_ms=since_ms, limit=5_000)
            told = await self.ask(
                self.rng.randrange(len(self._links)), asked, ListEventsReply, timeout_s=20.0
            )
            rows.update({(row[0], row[1], row[2], row[4]): row for row in told.rows})
            if not told.has_more:
                return list(rows.values())
            since_ms = told.rows[-1][3]


def audited(event: Event, by: str) -> bytes:
    """Return the audit entry of an event, as the node makes it that a client is connected to."""
    action = "submit" if isinstance(event, JobSubmitted) else "cancel"
    subject = "" if isinstance(event, JobSubmitted) else event.job
    entry = AuditEntry(by=by, role="client", action=action, subject=subject)
    return msgspec.msgpack.encode(entry)


class Acknowledged(Struct):
    """The answers a client got about one of its jobs."""

    key: str
    job: str
    kinds: list[str]


class Load:
    """Clients in their own thread that submit, cancel and finish jobs."""

    def __init__(
        self, addresses: Sequence[str], *, clients: int = 8, pause_s: float = 0.005, tag: str = "k"
    ) -> None:
        self._addresses = addresses
        self._clients = clients
        self._pause_s = pause_s
        self._tag = tag
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.acknowledged: list[Acknowledged] = []
        self.commits = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the clients do not end"

    def check(self) -> None:
        if self.failure is not None:
            raise AssertionError(f"a client failed: {self.failure!r}") from self.failure

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:  # noqa: BLE001  told to the test
            self.failure = error

    async def _all(self) -> None:
        async with Forwarder(self._addresses) as forwarder, asyncio.TaskGroup() as tasks:
            for client in range(self._clients):
                tasks.create_task(self._client(forwarder, client))

    async def _client(self, forwarder: Forwarder, client: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            key = f"{self._tag}-{client}-{number}"
            _, reply = await forwarder.commit(submission(key), by=key)
            assert reply.ok, reply
            said = Acknowledged(key, reply.job, ["submitted"])
            self.acknowledged.append(said)
            self.commits += 1
            for event in (
                CancelRequested(job=reply.job, reason="enough", by=key),
                JobFinished(job=reply.job, status=JobStatus.CANCELLED),
            ):
                by = "" if isinstance(event, JobFinished) else key
                _, reply = await forwarder.commit(event, by=by)
                # Whoever leads may have ended the job first.
                assert reply.ok or reply.code.value == "terminal", reply
                self.commits += 1
                if isinstance(event, JobFinished):
                    said.kinds.append("finished")
                elif reply.ok:
                    said.kinds.append("cancel")
            await asyncio.sleep(self._pause_s)


def run(work: "Callable[[Forwarder], Coroutine[Any, Any, Any]]", addresses: Sequence[str]) -> Any:
    """Run one piece of work with its own forwarder."""

    async def within() -> Any:
        async with Forwarder(addresses) as forwarder:
            return await work(forwarder)

    return asyncio.run(within())


def asked(addresses: Sequence[str], question: Struct, answer: type[_Answer], via: int) -> _Answer:
    """Return the answer of one node to an operator; retry while it does not answer."""

    async def within() -> _Answer:
        async with Forwarder(addresses, Role.OPERATOR) as forwarder:
            for _ in range(30):
                with suppress(HyperscaleError):
                    return await forwarder.ask(via, question, answer, timeout_s=10.0)
                await asyncio.sleep(0.2)
            raise AssertionError(f"node {via} does not answer {type(question).__name__}")

    return asyncio.run(within())


def losses(acknowledged: Sequence[Acknowledged], rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return the acknowledged jobs that are missing or exist twice."""
    found: dict[str, list[str]] = {}
    keys: dict[str, list[str]] = {}
    for job, _, _, _, kind, data in rows:
        found.setdefault(job, []).append(kind)
        if kind == "submitted":
            keys.setdefault(msgspec.msgpack.decode(data)["key"], []).append(job)
    wrong = [f"{key} made {jobs}" for key, jobs in keys.items() if len(jobs) != 1]
    audit = Counter(
        (entry.subject, entry.by, _KINDS.get(entry.action, entry.action))
        for job, *_, data in rows
        if job == AUDIT
        for entry in (decode_audit(data),)
    )
    for said in acknowledged:
        if keys.get(said.key) != [said.job]:
            wrong.append(f"{said.key} was told {said.job}, there is {keys.get(said.key)}")
        for kind in said.kinds:
            count = found.get(said.job, []).count(kind)
            if count != 1:
                wrong.append(f"{said.job}: {kind} is there {count} times")
            if kind != "finished" and audit[said.job, said.key, kind] != 1:
                count = audit[said.job, said.key, kind]
                wrong.append(f"{said.job}: {kind} is in the audit {count} times")
    return wrong
