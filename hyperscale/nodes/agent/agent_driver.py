"""The driver of a worker's agent: feeds events to the core and performs its effects, in order.

Owns the core's timer and the worker's tasks; decides nothing. The clock is CLOCK_BOOTTIME, on
which the leases of executors are kept, too.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hyperscale.errors import InvariantError
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.agent.events import (
    AgentEffect,
    AgentEvent,
    CommandReceived,
    DrainRequested,
    EraseResult,
    LeaderCommand,
    LeaseAttempt,
    PlaceReported,
    PrepareAttempt,
    ReplyToCommand,
    ReportAnswered,
    ResultsRestored,
    ResultStored,
    SendMessage,
    SendReport,
    StartAttempt,
    StopAttempt,
    StoreResult,
    UsageMeasured,
)
from hyperscale.jobs.messages import (
    AnnounceCores,
    AttemptId,
    DeliverResult,
    DrainWorker,
    DrainWorkerReply,
    PartPhase,
    ReportProgressReply,
)
from hyperscale.membership.events import MemberChanged, MemberDied, MemberState
from hyperscale.nodes.agent.bundle_fetcher import BundleFetcher
from hyperscale.nodes.agent.core_announcer import REPLY_S, CoreAnnouncer
from hyperscale.nodes.agent.executors import WorkerExecutors
from hyperscale.nodes.agent.manager_links import ManagerLinks
from hyperscale.nodes.agent.message_size import fit
from hyperscale.nodes.agent.storage import WorkerStorage
from hyperscale.nodes.agent.usage import UsageMeter
from hyperscale.nodes.member import MemberNode
from hyperscale.sansio.driver import CoreDriver
from hyperscale.telemetry.metrics import Family, counter, gauge
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, OverloadedError
from hyperscale.wire.roles import Role

MEASURE_EVERY_S = 1.0
_STARTS_WITHIN_S = 0.2

_log = logging.getLogger("hyperscale.agent")


def now_s() -> float:
    """Return the time of CLOCK_BOOTTIME, which also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgentDriver:
    """Runs the agent of one worker from `open` to `close`."""

    def __init__(self, member: MemberNode, *, cores: int, directory: Path) -> None:
        self.agent = Agent(
            member.node_id,
            incarnation=member.server.local.incarnation,
            cores=cores,
            now_s=now_s(),
        )
        self._member = member
        self._storage = WorkerStorage(directory)
        self._managers = ManagerLinks(member.server, member.members)
        self._announcer = CoreAnnouncer(
            self._managers, self._spawn, on_confirmed=self._member.announce
        )
        fetcher = BundleFetcher(self._storage, self._managers, self._spawn)
        self._executors = WorkerExecutors(
            cores, feed=self.feed, fetch=fetcher.fetch, spawn=self._spawn
        )
        self._usage = UsageMeter(cores)
        self._driver: CoreDriver[AgentEvent, AgentEffect] = CoreDriver(
            self.agent,
            self._perform,
            clock=now_s,
            on_failure=member.tasks.fail,
            after_events=self._after_events,
        )
        self._is_open = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._described: dict[str, Any] = {}
        self._results_sent = 0
        self._performers: dict[type, Callable[[Any], None]] = {
            ReplyToCommand: self._reply,
            SendMessage: self._send,
            SendReport: self._send_report,
            PrepareAttempt: self._executors.prepare,
            StartAttempt: self._executors.start,
            LeaseAttempt: self._executors.renew,
            StopAttempt: self._stop_attempt,
            StoreResult: self._store,
            EraseResult: self._erase,
        }

    # --- lifetime ---------------------------------------------------------------------------

    async def open(self) -> None:
        """Restore results from disk and start the executors."""
        results = await self._storage.open()
        await self._executors.open()
        self._is_open = True
        self.feed(ResultsRestored(results))
        self._spawn(self._measure(), "agent:measure")

    async def hand_over(self) -> None:
        """Stop all attempts so that other workers retry them; wait for all acknowledgements."""
        self.feed(DrainRequested(hands_over=True))
        while not self.agent.is_idle:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Stop the executors and wait until every result is on disk."""
        self._driver.stop()
        for task in self._tasks:
            task.cancel()
        await self._executors.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._managers.close()
        await self._storage.close()

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task that ends with this driver; if it fails, the node ends."""
        task = self._member.tasks.spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- what the node asks -----------------------------------------------------------------

    def member_changed(self, change: MemberChanged | MemberDied) -> None:
        """Announce the cores to a new manager: it may be the allocator."""
        member = change.member
        self._managers.member_changed(member)
        is_new = isinstance(change, MemberChanged) and change.before is not MemberState.ALIVE
        if is_new and member.role is Role.MANAGER and member.state is MemberState.ALIVE:
            self._announcer.send_latest([member.node])

    def why_not_ready(self) -> tuple[str, ...]:
        """Return the reasons why this worker accepts no work."""
        if self.agent.is_draining:
            return ("draining",)
        if not self._announcer.is_confirmed:
            return ("no manager that grants cores knows this worker",)
        return ()

    def metadata(self) -> dict[str, Any]:
        """Return what members are told about this worker."""
        return {
            "free": self.agent.free_cores,
            "is_draining": self.agent.is_draining,
            "progress": self._usage.progress(now_s=now_s()),
        }

    def collect(self) -> list[Family]:
        """Return the metrics of this worker."""
        agent = self.agent
        phases = [phase.value for phase in agent.attempts.values()]
        return [
            gauge("hyperscale_worker_cores", "Cores this worker offers", ({}, agent.total_cores)),
            gauge("hyperscale_worker_cores_free", "Free cores", ({}, agent.free_cores)),
            gauge(
                "hyperscale_worker_runs",
                "Attempts on this worker, by phase",
                *(({"phase": phase}, phases.count(phase)) for phase in sorted(set(phases))),
            ),
            counter(
                "hyperscale_worker_results_sent_total",
                "Results sent to managers, repetitions included",
                ({}, self._results_sent),
            ),
        ]

    # --- events -----------------------------------------------------------------------------

    def feed(self, event: AgentEvent) -> None:
        """Hand one event to the core and perform its effects."""
        if isinstance(event, PlaceReported):
            self._usage.note_actions(event.attempt_id, event.place, event.report.actions)
        self._driver.feed(event)

    def _after_events(self) -> None:
        self._changed.set()
        described = self.metadata()
        if described != self._described:
            self._described = described
            self._member.announce()

    def command_received(self, call: InboundCall, command: LeaderCommand) -> None:
        """Take a command of a job leader; `ReplyToCommand` answers the call."""
        if not self._is_open:
            raise OverloadedError("the executors are starting", retry_after_s=_STARTS_WITHIN_S)
        self.feed(CommandReceived(call.peer.node_id, command, call))

    def drain_requested(self, _call: InboundCall, _request: DrainWorker) -> DrainWorkerReply:
        """Accept no new work."""
        self.feed(DrainRequested())
        return DrainWorkerReply(len(self.agent.attempts))

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_EVERY_S)
            phases = self.agent.attempts
            live = {each for each, phase in phases.items() if phase is not PartPhase.FINISHED}
            cpu = self._usage.measure(self._executors.pids, live, now_s=now_s())
            self.feed(UsageMeasured(cpu=cpu, memory=self._member.load_monitor.memory))

    # --- effects ----------------------------------------------------------------------------

    def _perform(self, effect: AgentEffect) -> None:
        self._performers[type(effect)](effect)

    def _reply(self, effect: ReplyToCommand) -> None:
        call: InboundCall = effect.token
        try:
            call.reply(fit(effect.reply))
        except InvariantError as error:  # too large; no reason to end the worker
            _log.error("message.unfit: %s", error, extra={"to": call.peer.node_id})
            call.abandon()

    def _send(self, effect: SendMessage) -> None:
        if isinstance(effect.message, AnnounceCores):
            self._announcer.announce(effect.message)
            return
        if isinstance(effect.message, DeliverResult):
            self._results_sent += 1
        message = fit(effect.message)
        for node in self._managers.all() if effect.to is None else [effect.to]:
            self._managers.send(node, message)

    def _send_report(self, effect: SendReport) -> None:
        self._spawn(self._call_with_report(effect), f"report:{effect.to}")

    async def _call_with_report(self, effect: SendReport) -> None:
        reply: ReportProgressReply | None = None
        try:
            reply = await self._managers.call(
                effect.to,
                fit(effect.progress),
                ReportProgressReply,
                deadline_s=asyncio.get_running_loop().time() + REPLY_S,
            )
        except CallError as error:
            _log.debug("report.lost: %s", error, extra={"to": effect.to})
        self.feed(ReportAnswered(effect.progress.group, effect.to, reply))

    def _stop_attempt(self, effect: StopAttempt) -> None:
        fields = {**_log_fields(effect.attempt_id), "reason": effect.reason}
        _log.info("run.stopping", extra=fields)
        self._executors.stop(effect)

    def _store(self, effect: StoreResult) -> None:
        result = effect.result
        _log.info(
            "run.finished",
            extra={
                **_log_fields(result.attempt_id),
                "status": result.status.value,
                "reason": result.error or "",
                "elapsed_s": round(result.elapsed_s, 3),
            },
        )
        storing = self._storage.store(result)
        self._spawn(self._send_when_stored(result.attempt_id, storing), "store-result")

    async def _send_when_stored(self, attempt_id: AttemptId, storing: asyncio.Future[None]) -> None:
        try:
            await storing
        except OSError as error:  # a result sent from memory is better than none
            fields = {**_log_fields(attempt_id), "error": str(error)}
            _log.error("result.not_stored: %s", error, extra=fields)
        self.feed(ResultStored(attempt_id))

    def _erase(self, effect: EraseResult) -> None:
        async def erase() -> None:
            await self._storage.erase(effect.attempt_id)

        self._spawn(erase(), "erase-result")


def _log_fields(attempt_id: AttemptId) -> dict[str, Any]:
    return {
        "job": attempt_id.job,
        "workflow": attempt_id.workflow,
        "part": attempt_id.part,
        "attempt": attempt_id.attempt,
    }
