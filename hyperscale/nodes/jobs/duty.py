"""Jobs as a part of a manager: there once the node has a ledger."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from hyperscale.errors import RunError
from hyperscale.jobs.allocator import Allocator
from hyperscale.jobs.commands import (
    AskCores,
    CoresAnswer,
    PartFinished,
    PartOutput,
    PartReady,
    PartRefused,
    Progress,
    ProgressTaken,
    ReleaseCores,
    WorkerCores,
)
from hyperscale.membership.events import Changed, Died
from hyperscale.nodes.client_messages import (
    CancelJob,
    DrainNode,
    JobAsked,
    JobsAsked,
    KeepBlob,
    KeyAsked,
    PutBlob,
    RecordAsked,
    RoomAsked,
    SubmitJob,
    WatchJob,
    WorkersAsked,
)
from hyperscale.nodes.job_messages import CoresTaken, FetchBlob
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.nodes.jobs.desk import ClientDesk
from hyperscale.nodes.jobs.driver import JobsDriver
from hyperscale.nodes.ledger.duty import LedgerDuty
from hyperscale.nodes.ledger.errors import OutcomeUnknownError, UnavailableError
from hyperscale.nodes.ledger.routing import Ledger
from hyperscale.nodes.member import MemberNode, Service
from hyperscale.nodes.metrics import Family, gauge
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError
from hyperscale.wire.serving import Handlers

_Tell = Callable[[JobsDriver, InboundCall, Any], None]
_Ask = Callable[[ClientDesk, InboundCall, Any], Any]


class JobsDuty(Service):
    """Job leaders, the allocator and the answers to clients."""

    def __init__(self, directory: Path, ledger: LedgerDuty, allocator: Allocator) -> None:
        self._directory = directory
        self._allocator = allocator
        self._ledger_duty = ledger
        self.driver: JobsDriver | None = None
        self.desk: ClientDesk | None = None
        ledger.on_ledger.append(self._begin)

    def attach(self, member: MemberNode, handlers: Handlers) -> None:
        self._member = member
        self._bundles = Bundles(self._directory, self._ledger_duty.peers, self._bundles_in_use)
        handlers.add(PutBlob, self._bundles.put)
        handlers.add(KeepBlob, self._bundles.keep)
        handlers.add(FetchBlob, self._bundles.fetch)
        for message, handle in _TO_CORES.items():
            handlers.add(message, self._to_core(handle))
        handlers.add(WorkerCores, self._worker_told)
        handlers.add(AskCores, self._asked_cores)
        handlers.add(Progress, self._progress)
        handlers.add(RoomAsked, lambda _call, _asked: self._driver().told_room())
        for message, answer in _TO_DESK.items():
            handlers.add(message, self._to_desk(answer))
        handlers.add(WatchJob, self._watch)
        handlers.add(RecordAsked, self._record)

    def _begin(self, ledger: Ledger) -> None:
        self.driver = JobsDriver(self._member, ledger, self._ledger_duty.peers, self._allocator)
        self.desk = ClientDesk(
            self._member, ledger, self.driver, self._bundles, self._ledger_duty.peers
        )

    def _bundles_in_use(self) -> set[str]:
        return set() if self.driver is None else self.driver.bundles()

    async def stop(self) -> None:
        if self.driver is not None:
            await self.driver.close()
        await self._bundles.close()

    def changed(self, change: Changed | Died) -> None:
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

    def _worker_told(self, call: InboundCall, cores: WorkerCores) -> CoresTaken | None:
        if self.driver is None:
            return CoresTaken(is_known=False)
        return self.driver.worker_told(call, cores)

    def _asked_cores(self, call: InboundCall, wish: AskCores) -> CoresAnswer:
        return self._driver().asked_cores(call, wish)

    def _progress(self, call: InboundCall, progress: Progress) -> ProgressTaken:
        return self._driver().progress(call, progress)

    def _to_desk(self, ask: _Ask) -> Callable[[InboundCall, Any], Any]:
        async def handle(call: InboundCall, message: Any) -> Any:
            try:
                answer = ask(self._desk(), call, message)
                return await answer if asyncio.iscoroutine(answer) else answer
            except (UnavailableError, OutcomeUnknownError) as error:
                raise RemoteError(str(error), code="unavailable") from error

        return handle

    async def _watch(self, call: InboundCall, asked: WatchJob) -> AsyncGenerator[Struct, None]:
        async for news in self._desk().watch(call, asked):
            yield news

    async def _record(self, call: InboundCall, asked: RecordAsked) -> AsyncGenerator[Struct, None]:
        async for chunk in self._desk().record(call, asked):
            yield chunk

    def _driver(self) -> JobsDriver:
        if self.driver is None:
            raise RunError("this manager has not joined its ledger yet")
        return self.driver

    def _desk(self) -> ClientDesk:
        if self.desk is None:
            raise RemoteError("this manager has not joined its ledger yet", code="unavailable")
        return self.desk


_TO_CORES: dict[type[Struct], _Tell] = {
    PartReady: JobsDriver.received,
    PartRefused: JobsDriver.received,
    PartFinished: JobsDriver.received,
    PartOutput: JobsDriver.printed,
    ReleaseCores: JobsDriver.released_cores,
    CoresAnswer: JobsDriver.told_cores,
}
_TO_DESK: dict[type[Struct], _Ask] = {
    SubmitJob: ClientDesk.submit,
    CancelJob: ClientDesk.cancel,
    JobAsked: ClientDesk.told,
    JobsAsked: ClientDesk.jobs,
    WorkersAsked: ClientDesk.workers,
    KeyAsked: ClientDesk.key,
    DrainNode: ClientDesk.drain,
}
