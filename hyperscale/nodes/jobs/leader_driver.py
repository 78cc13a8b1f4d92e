"""Runs the job leader of one group: performs its effects on ledger, workers and allocator."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from hyperscale.errors import HyperscaleError
from hyperscale.jobs.committed.events import Event
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
        spawn = tasks.spawn_request
        performers: dict[type, Callable[[Any], Any]] = {
            leader_events.Propose: lambda effect: spawn(self._propose(effect.event), "propose"),
            leader_events.SendCommand: lambda effect: (
                peers.send(effect.worker, effect.command)
                if isinstance(effect.command, AcknowledgeResult)
                else spawn(self._command(effect.worker, effect.command), "command")
            ),
            leader_events.SendCoreRequest: lambda effect: allocator.request(
                effect.request, lambda reply: self.feed(leader_events.CoresAnswered(reply))
            ),
            leader_events.SendRelease: lambda effect: allocator.release(effect.release),
            leader_events.ConfirmLeadership: lambda effect: spawn(
                self._confirm(effect.question), "confirm"
            ),
            leader_events.AnswerProgress: lambda effect: effect.token.reply(effect.reply),
            leader_events.LogJobError: _log_job_error,
        }
        driver: CoreDriver[LeaderEvent, LeaderEffect] = CoreDriver(
            leader,
            lambda effect: performers[type(effect)](effect),
            clock=time.monotonic,
            on_failure=tasks.fail,
        )
        self.feed = driver.feed
        self.stop = driver.stop
        """Ignores every event from then on: replies to this leader say nothing to the next one."""

    async def _propose(self, event: Event) -> None:
        try:
            await self._ledger.propose(self._group, self._ledger.encode(event))
        except HyperscaleError as error:
            _log.info("proposal.failed: %s", error, extra={"group": self._group})
            self.feed(leader_events.ProposalFailed(event))

    async def _confirm(self, question: int) -> None:
        try:
            await self._ledger.fresh(self._group, STRONG)
        except HyperscaleError as error:
            _log.info("leadership.unconfirmed: %s", error, extra={"group": self._group})
            return
        # If another node answered as the leader, this driver has been stopped by now.
        self.feed(leader_events.LeadershipConfirmed(question))

    async def _command(self, worker: str, command: WorkerCommand) -> None:
        reply = None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        link = self._peers.link(worker)
        # A worker that refuses connections is not waited for.
        if link is not None and not link.is_refused:
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


def _log_job_error(effect: leader_events.LogJobError) -> None:
    _log.error("job.failed: %s", effect.error, exc_info=effect.error, extra={"job": effect.job})
