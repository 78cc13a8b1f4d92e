"""The service that makes a node a worker: feeds its agent events and performs the effects.

It decides nothing. The clock is CLOCK_BOOTTIME, on which the leases of executors are kept, too.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import asdict

from hyperscale.errors import InvariantError
from hyperscale.jobs.agent import events
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.agent.events import AgentEffect, AgentEvent, LeaderCommand
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
from hyperscale.nodes.agent.agent_metrics import LoadCounts, agent_metrics
from hyperscale.nodes.agent.executors import UsageMeter, WorkerExecutors, box_of
from hyperscale.nodes.agent.machine import labels_of
from hyperscale.nodes.agent.manager_links import CoreAnnouncer, ManagerLinks, fit
from hyperscale.nodes.agent.storage import BundleFetcher, WorkerStorage, fetch_secrets
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.sansio.driver import CoreDriver
from hyperscale.telemetry.metrics import Family
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, OverloadedError
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role

MEASURE_EVERY_S = 1.0
_STARTS_WITHIN_S = 0.2
_HAND_OVER_SHARE = 0.7
"""Share of a node's time to stop in which results are handed over; then the node leaves."""

_log = logging.getLogger("hyperscale.agent")


def now_s() -> float:
    """Return the time of CLOCK_BOOTTIME, which also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgentDriver(NodeService):
    """The agent of one worker: its core, executors, disk and links to managers."""

    def __init__(self, member: MemberNode, handlers: Handlers, *, cores: int) -> None:
        config = member.config.node
        self.agent = Agent(
            member.node_id,
            incarnation=member.server.local.incarnation,
            cores=cores,
            now_s=now_s(),
            labels=labels_of(member.config, member.node_id),
            reserved=member.config.worker.reserved_cores,
        )
        self._hand_over_s = config.stop_s * _HAND_OVER_SHARE
        self._member = member
        self._spawn = spawn = member.tasks.spawn
        kept = member.config.bundles.keep
        self._storage = WorkerStorage(Path(config.data_dir), bundles_kept=kept)
        self._managers = ManagerLinks(member.server, member.members)
        self._announcer = CoreAnnouncer(self._managers, spawn, on_confirmed=member.announce)
        fetcher = BundleFetcher(self._storage, self._managers, spawn)
        self._executors = WorkerExecutors(
            cores,
            worker=member.node_id,
            feed=self.feed,
            fetch=fetcher.fetch,
            fetch_secrets=partial(fetch_secrets, self._managers),
            spawn=spawn,
            visible=member.config.executors.env,
            box=box_of(member.config.executors, Path(config.data_dir)),
        )
        self._usage = UsageMeter(cores)
        self._load = LoadCounts()
        performers: dict[type, Callable[[Any], Any]] = {
            events.ReplyToCommand: self._reply,
            events.SendMessage: self._send,
            events.SendReport: lambda effect: spawn(
                self._send_report(effect), f"report:{effect.to}"
            ),
            events.PrepareAttempt: self._executors.prepare,
            events.WeighAttempt: self._executors.weigh,
            events.ShareWithAttempt: self._executors.share_context,
            events.StartAttempt: self._executors.start,
            events.ChangeAttempt: self._executors.change,
            events.GrantAttemptRows: self._executors.grant_rows,
            events.LeaseAttempt: self._executors.renew,
            events.StopAttempt: self._stop_attempt,
            events.StoreResult: self._store,
            events.EraseResult: lambda effect: spawn(self._erase(effect), "erase-result"),
        }
        self._driver: CoreDriver[AgentEvent, AgentEffect] = CoreDriver(
            self.agent,
            lambda effect: performers[type(effect)](effect),
            clock=now_s,
            on_failure=member.tasks.fail,
            after_events=self._after_events,
        )
        self._is_open = False
        self._changed = asyncio.Event()
        self._announced: dict[str, Any] = {}
        self._results_sent = 0
        command_received = member.load_monitor.timed(self._command_received)
        for command in get_args(LeaderCommand):
            handlers.add(command, command_received)
        handlers.add(DrainWorker, self._drain_requested)

    @property
    def disk_failed(self) -> asyncio.Event:
        """Set when something could not be written to the data directory."""
        return self._storage.has_failed

    # --- NodeService ------------------------------------------------------------------------

    async def start(self) -> None:
        """Restore results from disk and start the executors."""
        results = await self._storage.open()
        await self._executors.open()
        self._is_open = True
        self.feed(events.ResultsRestored(results))
        self._member.tasks.spawn_every(MEASURE_EVERY_S, self._measure, "agent:measure")

    async def leave(self) -> None:
        """Stop all attempts so that other workers retry them; wait for all acknowledgements."""
        self.feed(events.DrainRequested(hands_over=True))
        with suppress(TimeoutError):  # unacknowledged results are on disk
            async with asyncio.timeout(self._hand_over_s):
                while not self.agent.is_idle:
                    self._changed.clear()
                    await self._changed.wait()

    async def stop(self) -> None:
        """Stop the executors and wait until every result is on disk."""
        self._driver.stop()
        await self._executors.close()
        await self._member.tasks.close()
        self._managers.close()
        await self._storage.close()

    def changed(self, change: MemberChanged | MemberDied) -> None:
        """Announce the cores to a new manager: it may be the allocator."""
        member = change.member
        self._managers.member_changed(member)
        is_new = isinstance(change, MemberChanged) and change.before is not MemberState.ALIVE
        if is_new and member.role is Role.MANAGER and member.state is MemberState.ALIVE:
            self._announcer.send_latest([member.node])

    def why_not_ready(self) -> tuple[str, ...]:
        if self.agent.is_draining:
            return ("draining",)
        if not self._announcer.is_confirmed:
            return ("no manager that grants cores knows this worker",)
        return ()

    def metadata(self) -> dict[str, Any]:
        return {
            "cores": self.agent.total_cores,
            "free": self.agent.free_cores,
            "is_draining": self.agent.is_draining,
            "progress": self._usage.progress(now_s=now_s()),
        }

    def collect(self) -> list[Family]:
        return agent_metrics(
            self.agent,
            self._load,
            self._executors.counts,
            results_sent=self._results_sent,
            boxed=self._executors.boxed,
        )

    async def start_executors(self) -> None:
        """Start the executors whose process has ended; raise `RunError` if one does not start."""
        await self._executors.start_ended()

    # --- events -----------------------------------------------------------------------------

    def feed(self, event: AgentEvent) -> None:
        """Hand one event to the core and perform its effects."""
        if isinstance(event, events.PlaceReported):
            self._usage.note_actions(event.attempt_id, event.place, event.report.actions)
        self._load.note(event)
        self._driver.feed(event)

    def _after_events(self) -> None:
        self._changed.set()
        metadata = self.metadata()
        if metadata != self._announced:
            self._announced = metadata
            self._member.announce()

    def _command_received(self, call: InboundCall, command: LeaderCommand) -> None:
        """Take a command of a job leader; `ReplyToCommand` answers the call."""
        if not self._is_open:
            raise OverloadedError("the executors are starting", retry_after_s=_STARTS_WITHIN_S)
        self.feed(events.CommandReceived(call.peer.node_id, command, call))

    def _drain_requested(self, _call: InboundCall, _request: DrainWorker) -> DrainWorkerReply:
        """Accept no new work."""
        self.feed(events.DrainRequested())
        return DrainWorkerReply(len(self.agent.attempts))

    def _measure(self) -> None:
        phases = self.agent.attempts
        live = {each for each, phase in phases.items() if phase is not PartPhase.FINISHED}
        cpu = self._usage.measure(self._executors.pids, live, now_s=now_s())
        self.feed(events.UsageMeasured(cpu=cpu, memory=self._member.load_monitor.memory))

    # --- effects ----------------------------------------------------------------------------

    def _reply(self, effect: events.ReplyToCommand) -> None:
        call: InboundCall = effect.token
        try:
            call.reply(fit(effect.reply))
        except InvariantError as error:  # too large; no reason to end the worker
            _log.error("message.unfit: %s", error, extra={"to": call.peer.node_id})
            call.abandon()

    def _send(self, effect: events.SendMessage) -> None:
        if isinstance(effect.message, AnnounceCores):
            self._announcer.announce(effect.message)
            return
        if isinstance(effect.message, DeliverResult):
            self._results_sent += 1
        message = fit(effect.message)
        for node in self._managers.all() if effect.to is None else [effect.to]:
            self._managers.send(node, message)

    async def _send_report(self, effect: events.SendReport) -> None:
        reply: ReportProgressReply | None = None
        try:
            reply = await self._managers.call(effect.to, fit(effect.progress), ReportProgressReply)
        except CallError as error:
            _log.debug("report.lost: %s", error, extra={"to": effect.to})
        self.feed(events.ReportAnswered(effect.progress.group, effect.to, reply))

    def _stop_attempt(self, effect: events.StopAttempt) -> None:
        _log.info("attempt.stopping", extra={**asdict(effect.attempt_id), "reason": effect.reason})
        self._executors.stop(effect)

    def _store(self, effect: events.StoreResult) -> None:
        result = effect.result
        _log.info(
            "attempt.finished",
            extra={
                **asdict(result.attempt_id),
                "status": result.status.value,
                "reason": result.error or "",
                "elapsed_s": round(result.elapsed_s, 3),
            },
        )
        storing = self._storage.run(self._storage.results.store, result)
        self._spawn(self._send_when_stored(result.attempt_id, storing), "store-result")

    async def _send_when_stored(self, attempt_id: AttemptId, storing: asyncio.Future[None]) -> None:
        try:
            await storing
        except OSError as error:  # a result sent from memory is better than none
            fields = {**asdict(attempt_id), "error": str(error)}
            _log.error("result.not_stored: %s", error, extra=fields)
            self._storage.has_failed.set()
        self.feed(events.ResultStored(attempt_id))

    async def _erase(self, effect: events.EraseResult) -> None:
        try:
            await self._storage.run(self._storage.results.erase, effect.attempt_id)
        except OSError as error:  # it is sent once more after a restart, which changes nothing
            fields = {**asdict(effect.attempt_id), "error": str(error)}
            _log.error("result.not_erased: %s", error, extra=fields)
            self._storage.has_failed.set()
