"""Jobs as a part of a manager: there once the node has a ledger."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from hyperscale.client.messages import (
    CancelJob,
    DrainNode,
    GetJob,
    GetJobOfKey,
    GetJobRecord,
    GetQueueRoom,
    KeepBlob,
    ListJobs,
    ListWorkers,
    PutBlob,
    SubmitJob,
    WatchJob,
)
from hyperscale.errors import RunError
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.messages import (
    AnnounceCores,
    AnnounceCoresReply,
    AnnouncePrepareFailed,
    AnnounceReady,
    DeliverResult,
    FetchBlob,
    ForwardOutput,
    ReleaseCores,
    ReportProgress,
    ReportProgressReply,
    RequestCores,
    RequestCoresReply,
)
from hyperscale.membership.events import MemberChanged, MemberDied
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.nodes.jobs.client_requests import ClientRequests
from hyperscale.nodes.jobs.jobs_driver import JobsDriver
from hyperscale.nodes.ledger.errors import OutcomeUnknownError, UnavailableError
from hyperscale.nodes.ledger.ledger_service import LedgerService
from hyperscale.nodes.ledger.routing import Ledger
from hyperscale.nodes.member import MemberNode, Service
from hyperscale.nodes.metrics import Family, gauge
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.handlers import Handlers

_Tell = Callable[[JobsDriver, InboundCall, Any], None]
_Ask = Callable[[ClientRequests, InboundCall, Any], Any]


class JobsService(Service):
    """Job leaders, the allocator and the answers to clients."""

    def __init__(self, directory: Path, ledger: LedgerService, allocator: Allocator) -> None:
        self._directory = directory
        self._allocator = allocator
        self._ledger_duty = ledger
        self.driver: JobsDriver | None = None
        self.desk: ClientRequests | None = None
        ledger.on_ledger.append(self._begin)

    def attach(self, member: MemberNode, handlers: Handlers) -> None:
        self._member = member
        self._bundles = Bundles(self._directory, self._ledger_duty.peers, self._bundles_in_use)
        handlers.add(PutBlob, self._bundles.put)
        handlers.add(KeepBlob, self._bundles.keep)
        handlers.add(FetchBlob, self._bundles.fetch)
        for message, handle in _TO_CORES.items():
            handlers.add(message, self._to_core(handle))
        handlers.add(AnnounceCores, self._worker_told)
        handlers.add(RequestCores, self._asked_cores)
        handlers.add(ReportProgress, self._progress)
        handlers.add(GetQueueRoom, lambda _call, _asked: self._driver().told_room())
        for message, answer in _TO_DESK.items():
            handlers.add(message, self._to_desk(answer))
        handlers.add(WatchJob, self._watch)
        handlers.add(GetJobRecord, self._record)

    def _begin(self, ledger: Ledger) -> None:
        self.driver = JobsDriver(self._member, ledger, self._ledger_duty.peers, self._allocator)
        self.desk = ClientRequests(
            self._member, ledger, self.driver, self._bundles, self._ledger_duty.peers
        )

    def _bundles_in_use(self) -> set[str]:
        return set() if self.driver is None else self.driver.bundles()

    async def stop(self) -> None:
        if self.driver is not None:
            await self.driver.close()
        await self._bundles.close()

    def changed(self, change: MemberChanged | MemberDied) -> None:
        if self.driver is not None:
            self.driver.member_changed(change)

    def collect(self) -> list[Family]:
        if self.driver is None:
            return []
        driver = self.driver
        return [
            gauge("hyperscale_jobs_led", "Groups of jobs led here", ({}, len(driver.leaders))),
            gauge("hyperscale_cores_pool", "Cores of all workers", ({}, driver.allocator.pool)),
            gauge(
                "hyperscale_cores_waiting", "Workflows that wait", ({}, driver.allocator.waiting)
            ),
        ]

    # -- handlers -------------------------------------------------------------------------

    def _to_core(self, tell: _Tell) -> Callable[[InboundCall, Any], None]:
        """What workers say by themselves is repeated: before there is a core it is let go."""

        def handle(call: InboundCall, message: Any) -> None:
            if self.driver is not None:
                tell(self.driver, call, message)

        return handle

    def _worker_told(self, call: InboundCall, cores: AnnounceCores) -> AnnounceCoresReply | None:
        if self.driver is None:
            return AnnounceCoresReply(is_known=False)
        return self.driver.worker_told(call, cores)

    def _asked_cores(self, call: InboundCall, wish: RequestCores) -> RequestCoresReply:
        return self._driver().asked_cores(call, wish)

    def _progress(self, call: InboundCall, progress: ReportProgress) -> ReportProgressReply:
        return self._driver().progress(call, progress)

    def _to_desk(self, ask: _Ask) -> Callable[[InboundCall, Any], Any]:
        async def handle(call: InboundCall, message: Any) -> Any:
            try:
                answer = ask(self._desk(), call, message)
                return await answer if asyncio.iscoroutine(answer) else answer
            except (UnavailableError, OutcomeUnknownError) as error:
                raise RemoteError(
                    error.message, code=RemoteErrorCode.UNAVAILABLE, hint=error.hint
                ) from error

        return handle

    async def _watch(self, call: InboundCall, asked: WatchJob) -> AsyncGenerator[Struct, None]:
        async for news in self._desk().watch(call, asked):
            yield news

    async def _record(self, call: InboundCall, asked: GetJobRecord) -> AsyncGenerator[Struct, None]:
        async for chunk in self._desk().record(call, asked):
            yield chunk

    def _driver(self) -> JobsDriver:
        if self.driver is None:
            raise RunError("this manager has not joined its ledger yet")
        return self.driver

    def _desk(self) -> ClientRequests:
        if self.desk is None:
            raise RemoteError(
                "this manager has not joined its ledger yet", code=RemoteErrorCode.UNAVAILABLE
            )
        return self.desk


_TO_CORES: dict[type[Struct], _Tell] = {
    AnnounceReady: JobsDriver.received,
    AnnouncePrepareFailed: JobsDriver.received,
    DeliverResult: JobsDriver.received,
    ForwardOutput: JobsDriver.printed,
    ReleaseCores: JobsDriver.released_cores,
    RequestCoresReply: JobsDriver.told_cores,
}
_TO_DESK: dict[type[Struct], _Ask] = {
    SubmitJob: ClientRequests.submit,
    CancelJob: ClientRequests.cancel,
    GetJob: ClientRequests.told,
    ListJobs: ClientRequests.jobs,
    ListWorkers: ClientRequests.workers,
    GetJobOfKey: ClientRequests.key,
    DrainNode: ClientRequests.drain,
}
