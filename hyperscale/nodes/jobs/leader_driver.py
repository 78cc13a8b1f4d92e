"""Runs the job leader of one group: performs its effects on ledger, workers and allocator."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from hyperscale.errors import HyperscaleError
from hyperscale.jobs.committed.events import Event, encode
from hyperscale.jobs.leader import events as leader_events
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.leader.events import CommandAnswered, LeaderEffect, LeaderEvent, WorkerCommand
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    ListAttempts,
    ListAttemptsReply,
    PartCommandReply,
    RenewLeases,
    RenewLeasesReply,
    RequestCores,
    RequestCoresReply,
)
from hyperscale.ledger.server.ledger import STRONG, Ledger
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.nodes.jobs.allocator_driver import AllocatorDriver
from hyperscale.sansio.driver import CoreDriver
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.errors import CallError

RENEW_S = 2.0  # renewals and questions are repeated, so a missing reply should be known soon
COMMAND_S = 5.0
_REPLIES: dict[type, type[Any]] = {RenewLeases: RenewLeasesReply, ListAttempts: ListAttemptsReply}

_log = logging.getLogger("hyperscale.jobs")


class LeaderDriver:
    """One group's leader, from the election of this node until another is elected."""

    def __init__(
        self,
        group: int,
        leader: JobLeader,
        *,
        ledger: Ledger,
        peers: TierPeers,
        allocator: AllocatorDriver,
        tasks: TaskSupervisor,
    ) -> None:
        self.leader = leader
        self._group = group
        self._ledger = ledger
        self._peers = peers
        self._allocator = allocator
        self._tasks = tasks
        self._driver: CoreDriver[LeaderEvent, LeaderEffect] = CoreDriver(
            leader, self._perform, clock=time.monotonic, on_failure=tasks.fail
        )
        self._performers: dict[type, Callable[[Any], None]] = {
            leader_events.Propose: self._start_proposal,
            leader_events.SendCommand: self._start_command,
            leader_events.SendCoreRequest: self._request_cores,
            leader_events.SendRelease: lambda effect: allocator.release(effect.release),
            leader_events.ConfirmLeadership: self._start_confirmation,
            leader_events.AnswerProgress: lambda effect: effect.token.reply(effect.reply),
            leader_events.LogJobError: _log_job_error,
        }

    def feed(self, event: LeaderEvent) -> None:
        self._driver.feed(event)

    def stop(self) -> None:
        """Ignore everything from now on: replies to this leader say nothing to the next one."""
        self._driver.stop()

    def _perform(self, effect: LeaderEffect) -> None:
        self._performers[type(effect)](effect)

    def _start_proposal(self, effect: leader_events.Propose) -> None:
        self._tasks.spawn_request(self._propose(effect.event), "propose")

    async def _propose(self, event: Event) -> None:
        try:
            await self._ledger.propose(self._group, encode(event))
        except HyperscaleError as error:
            _log.info("proposal.failed: %s", error, extra={"group": self._group})
            self.feed(leader_events.ProposalFailed(event))

    def _start_confirmation(self, effect: leader_events.ConfirmLeadership) -> None:
        self._tasks.spawn_request(self._confirm(effect.question), "confirm")

    async def _confirm(self, question: int) -> None:
        try:
            await self._ledger.fresh(self._group, STRONG)
        except HyperscaleError as error:
            _log.info("leadership.unconfirmed: %s", error, extra={"group": self._group})
            return
        # If another node answered as the leader, this driver has been stopped by now.
        self.feed(leader_events.LeadershipConfirmed(question))

    def _start_command(self, effect: leader_events.SendCommand) -> None:
        if isinstance(effect.command, AcknowledgeResult):
            self._peers.send(effect.worker, effect.command)
        else:
            self._tasks.spawn_request(self._command(effect.worker, effect.command), "command")

    async def _command(self, worker: str, command: WorkerCommand) -> None:
        reply = None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        link = self._peers.link(worker)
        # A worker that refuses connections is not waited for.
        if link is not None and (link.refused_s is None or link.connection is not None):
            expected = _REPLIES.get(type(command), PartCommandReply)
            wait_s = RENEW_S if type(command) in _REPLIES else COMMAND_S
            try:
                reply = await link.call(command, expected, deadline_s=begun_s + wait_s, retries=0)
            except CallError as error:
                extra = {"command": type(command).__name__, "worker": worker}
                _log.info("command.unanswered: %s", error, extra=extra)
        rtt_s = loop.time() - begun_s
        refused_s = None if link is None else link.refused_s
        self.feed(CommandAnswered(worker, command, reply, rtt_s, refused_s))

    def _request_cores(self, effect: leader_events.SendCoreRequest) -> None:
        request: RequestCores = effect.request
        self._allocator.request(request, self.cores_answered)

    def cores_answered(self, reply: RequestCoresReply) -> None:
        self.feed(leader_events.CoresAnswered(reply))


def _log_job_error(effect: leader_events.LogJobError) -> None:
    _log.error("job.failed: %s", effect.error, exc_info=effect.error, extra={"job": effect.job})
