"""A stand-in for a job leader, connected to a real worker with real executors."""

import asyncio
import itertools
import json
import textwrap
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hyperscale import WorkerServer
from hyperscale._native import Target
from hyperscale.config.addresses import split_address
from hyperscale.execution.bundle import Bundle, bundle_file
from hyperscale.graph import build_plan, collect, load_module
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnounceCores,
    AnnounceCoresReply,
    AnnouncePrepareFailed,
    AnnounceReady,
    AttemptId,
    DeliverResult,
    FetchBlob,
    ForwardOutput,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    PreparePart,
    RenewLeases,
    RenewLeasesReply,
    ReportProgress,
    ReportProgressReply,
    StartPart,
    StopPart,
)
from hyperscale.plan import WorkflowPlan
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Chunk, Introduction
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security, incarnation_now
from hyperscale.wire.server import PeerServer
from tests.lab.reports import read
from tests.lab.waiting import WAIT_S, until_async

_HEADER = """
import asyncio, os, sys, time
from hyperscale.graph import Provide, Use, Workflow, setup, state, step, teardown
from hyperscale.testing import CustomResult, HTTPResponse, URL

class Result(CustomResult):
    ok = True
"""
LOAD = """
class Load(Workflow):
    vus = 4
    duration = "{duration}"

    @step()
    async def hit(self, url: URL = "{url}") -> HTTPResponse:
        {pause}
        return await self.client.http.get(url)
"""
_R = TypeVar("_R", bound=Struct)


class Code:
    """A test file, its bundle and its plans."""

    def __init__(self, directory: Path, source: str) -> None:
        self.file = directory / "shop.py"
        self.file.write_text(_HEADER + textwrap.dedent(source))
        plan = build_plan(self.file, collect(load_module(self.file)))
        self.plans = {workflow.name: workflow for workflow in plan.workflows}
        self.bundle: Bundle = bundle_file(self.file)

    @property
    def sha256(self) -> str:
        return self.bundle.name

    @property
    def plan(self) -> WorkflowPlan:
        return next(iter(self.plans.values()))


def load(
    directory: Path, target: Target, *, duration: str = "60s", path: str = "/", pause_s: float = 0.0
) -> Code:
    """Return a workflow of four virtual users that request a page; static unless they pause."""
    pause = f"await asyncio.sleep({pause_s})" if pause_s else ""
    url = f"http://127.0.0.1:{target.port}{path}"
    source = LOAD.format(duration=duration, url=url, pause=pause)
    return Code(directory, source)


def counted(target: Target) -> int:
    return int(json.loads(target.counts())["total"])


def total(finished: DeliverResult) -> int:
    """Return how many requests a result reports."""
    assert finished.report is not None
    return sum(step.counts.sent for step in read(finished.report).steps)


def run_id(attempt: int = 1, *, job: str = "dc.1-a", workflow: str = "Load") -> AttemptId:
    return AttemptId(job, workflow, 0, attempt)


class StandInLeader:
    """A manager that commands a worker as the leader of group 1 and records its messages."""

    def __init__(self, server: PeerServer, handlers: Handlers, blobs: dict[str, bytes]) -> None:
        self.server = server
        self.blobs = blobs
        self.heard: list[Any] = []
        self.taken = ReportProgressReply()
        self.fetches: list[str] = []
        self.answers_progress = True
        self._worker = ("", 0)
        self.grants_cores = True
        self.gives_bundles = True
        for kind in (AnnounceReady, AnnouncePrepareFailed, DeliverResult, ForwardOutput):
            handlers.add(kind, self._hear)
        handlers.add(AnnounceCores, self._cores)
        handlers.add(ReportProgress, self._progress)
        handlers.add(FetchBlob, self._blob)

    def _hear(self, _call: InboundCall, message: Any) -> None:
        self.heard.append(message)

    def _cores(self, _call: InboundCall, message: AnnounceCores) -> AnnounceCoresReply:
        self.heard.append(message)
        return AnnounceCoresReply(is_known=self.grants_cores)

    async def _progress(self, _call: InboundCall, message: ReportProgress) -> ReportProgressReply:
        self.heard.append(message)
        if not self.answers_progress:
            await asyncio.sleep(WAIT_S)
        return self.taken

    async def _blob(self, _call: InboundCall, asked: FetchBlob) -> AsyncGenerator[Struct, None]:
        self.fetches.append(asked.sha256)
        if not self.gives_bundles:
            await asyncio.sleep(WAIT_S)
        if asked.sha256 not in self.blobs:
            raise RemoteError("no such blob", code=RemoteErrorCode.UNKNOWN_BUNDLE)
        payload = self.blobs[asked.sha256]
        for start in range(0, len(payload), 1000):
            yield Chunk(payload[start : start + 1000])

    # --- commanding -----------------------------------------------------------------------

    async def meet(self, address: str) -> None:
        self._worker = split_address(address)
        await self.server.dial(*self._worker)

    async def ask(self, message: Struct, reply: type[_R]) -> _R:
        found = self.server.connections
        connection = found[0] if found else await self.server.dial(*self._worker)
        deadline_s = asyncio.get_running_loop().time() + WAIT_S
        return await connection.call(message, reply, deadline_s=deadline_s)

    async def prepare(
        self,
        code: Code,
        attempt_id: AttemptId | None = None,
        *,
        term: int = 1,
        cores: int = 1,
        **changes: Any,
    ) -> PartCommandReply:
        self.blobs.setdefault(code.sha256, code.bundle.payload)
        attempt_id = attempt_id or run_id(workflow=code.plan.name)
        command = PreparePart(
            attempt_id=attempt_id,
            group=1,
            term=term,
            leader=self.server.local.node_id,
            first_slot=0,
            slots=cores,
            cores=cores,
            plan=code.plans[attempt_id.workflow],
            file=str(code.file),
            bundle=code.sha256,
        )
        return await self.ask(msgspec.structs.replace(command, **changes), PartCommandReply)

    async def start(
        self,
        attempt_id: AttemptId | None = None,
        *,
        term: int = 1,
        lease_ms: int = 8_000,
        stamp_ms: int = 0,
    ) -> PartCommandReply:
        command = StartPart(
            attempt_id=attempt_id or run_id(),
            group=1,
            term=term,
            start_in_ms=0.0,
            lease_ms=lease_ms,
            stamp_ms=stamp_ms,
        )
        return await self.ask(command, PartCommandReply)

    async def stop(
        self, attempt_id: AttemptId | None = None, *, term: int = 1, reason: str = "cancelled"
    ) -> PartCommandReply:
        command = StopPart(attempt_id=attempt_id or run_id(), group=1, term=term, reason=reason)
        return await self.ask(command, PartCommandReply)

    async def renew(
        self, *runs: AttemptId, term: int = 1, lease_ms: int = 8_000, stamp_ms: int = 0
    ) -> RenewLeasesReply:
        command = RenewLeases(
            group=1,
            term=term,
            leader=self.server.local.node_id,
            lease_ms=lease_ms,
            attempts=list(runs or [run_id()]),
            stamp_ms=stamp_ms,
        )
        return await self.ask(command, RenewLeasesReply)

    async def who_runs(self, *, term: int = 1) -> ListAttemptsReply:
        command = ListAttempts(group=1, term=term, leader=self.server.local.node_id)
        return await self.ask(command, ListAttemptsReply)

    def acknowledge(self, attempt_id: AttemptId | None = None, *, term: int = 1) -> None:
        (connection,) = self.server.connections
        connection.send(AcknowledgeResult(attempt_id=attempt_id or run_id(), group=1, term=term))

    async def run(
        self,
        code: Code,
        attempt_id: AttemptId | None = None,
        *,
        lease_ms: int = 8_000,
        **changes: Any,
    ) -> AttemptId:
        """Prepare and start an attempt, under this lease."""
        attempt_id = attempt_id or run_id(workflow=code.plan.name)
        answer = await self.prepare(code, attempt_id, lease_ms=60_000, **changes)
        assert answer.accepted, answer
        await self.hears(AnnounceReady, lambda ready: ready.attempt_id == attempt_id)
        answer = await self.start(attempt_id, term=changes.get("term", 1), lease_ms=lease_ms)
        assert answer.accepted, answer
        return attempt_id

    # --- hearing --------------------------------------------------------------------------

    def said(self, kind: type[_R]) -> list[_R]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def hears(self, kind: type[_R], like: Callable[[_R], object] = lambda _: True) -> _R:
        """Wait for a message of a type that satisfies `like`; return the first one."""
        await until_async(lambda: any(like(message) for message in self.said(kind)))
        return next(message for message in self.said(kind) if like(message))

    async def loads(self, target: Target, *, more_than: int = 0) -> None:
        await until_async(lambda: counted(target) > more_than)


async def is_quiet(target: Target, *, for_s: float = 0.5) -> int:
    """Wait until the target received nothing for `for_s`; return its count."""
    known, since_s = counted(target), time.monotonic()
    while time.monotonic() - since_s < for_s:
        await asyncio.sleep(0.02)
        if counted(target) != known:
            known, since_s = counted(target), time.monotonic()
    return known


_incarnations = itertools.count()


@asynccontextmanager
async def stand_in_leader(
    name: str = "m1", blobs: dict[str, bytes] | None = None
) -> AsyncIterator[StandInLeader]:
    handlers = Handlers()
    local = Introduction(
        cluster="hyperscale",
        environment="default",
        role=Role.MANAGER,
        node_id=name,
        incarnation=incarnation_now() + next(_incarnations),
        version="1",
        datacenter="default",
    )
    async with PeerServer(local, Security(), handlers) as server:
        yield StandInLeader(server, handlers, {} if blobs is None else blobs)


@asynccontextmanager
async def worker(
    directory: Path, *, cores: int = 1, name: str = "w1"
) -> AsyncIterator[WorkerServer]:
    """Run a worker in this process. It finds no managers; stand-ins connect to it."""
    node = WorkerServer(
        {
            "node": {"id": name, "cores": cores, "data_dir": str(directory), "stop_s": 3.0},
            "listen": {"port": 0, "http_port": 0},
            "discovery": {"seeds": ["127.0.0.1:9"]},
        }
    )
    await node.start()
    try:
        yield node
    finally:
        await node.graceful_shutdown()
