"""Runs the owners of the groups that this gate leads, and takes reports of datacenters."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from hyperscale.client.messages import BLOB_CHUNK_BYTES, PutBlob, PutBlobReply
from hyperscale.errors import HyperscaleError
from hyperscale.gates.committed.events import GlobalEvent
from hyperscale.gates.committed.machine import GlobalJobMachine
from hyperscale.gates.committed.state import GlobalJob
from hyperscale.gates.messages import (
    HOPS_MAX,
    AssignJob,
    AssignmentCommand,
    AssignmentReply,
    AssignmentResultReply,
    DatacenterReport,
    DeliverAssignmentResult,
    ReportAssignment,
    ReportAssignmentReply,
)
from hyperscale.gates.owner import events as owner_events
from hyperscale.gates.owner.core import GlobalJobOwner
from hyperscale.gates.owner.events import OwnerEffect, OwnerEvent
from hyperscale.gates.results import checked_result
from hyperscale.jobs.committed.events import Reply
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.nodes.gates.datacenter_links import DatacenterLinks
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.nodes.jobs.job_secrets import JobSecrets
from hyperscale.sansio.driver import CoreDriver
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError
from hyperscale.wire.roles import Role

_COMMAND_S = 8.0
_FORWARD_S = 4.0
_PIECE_S = 10.0

_log = logging.getLogger("hyperscale.gates")


class _Answer:
    """The answer to a report. A result is answered once it is committed."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def reply(self, reply: ReportAssignmentReply | AssignmentResultReply) -> None:
        if not self.future.done():
            self.future.set_result(reply)


class _OwnerDriver:
    """One group's owner, from the election of this gate until another is elected."""

    def __init__(
        self,
        group: int,
        machine: GlobalJobMachine,
        *,
        node: str,
        ledger: Ledger,
        datacenters: DatacenterLinks,
        bundles: Bundles,
        secrets: JobSecrets,
        tasks: TaskSupervisor,
    ) -> None:
        self.owner = GlobalJobOwner(group, machine)
        self._node = node
        self._group = group
        self._ledger = ledger
        self._datacenters = datacenters
        self._bundles = bundles
        self._secrets = secrets
        spawn = tasks.spawn_request
        performers: dict[type, Callable[[Any], Any]] = {
            owner_events.ProposeGlobal: lambda effect: spawn(
                self._propose(effect.event), "propose"
            ),
            owner_events.SendAssignment: lambda effect: spawn(
                self._command(effect.datacenter, effect.command), "assignment"
            ),
            owner_events.AnswerDatacenter: lambda effect: effect.token.reply(effect.reply),
            owner_events.LogGlobalJobError: lambda effect: _log.error(
                "job.failed: %s", effect.error, exc_info=effect.error, extra={"job": effect.job}
            ),
        }
        driver: CoreDriver[OwnerEvent, OwnerEffect] = CoreDriver(
            self.owner,
            lambda effect: performers[type(effect)](effect),
            clock=time.monotonic,
            on_failure=tasks.fail,
        )
        self.feed = driver.feed
        self.stop = driver.stop

    async def _propose(self, event: GlobalEvent) -> None:
        try:
            await self._ledger.propose(self._group, self._ledger.encode(event))
        except HyperscaleError as error:
            _log.info("proposal.failed: %s", error, extra={"group": self._group})
            self.feed(owner_events.GlobalProposalFailed(event))

    async def _command(self, datacenter: str, command: AssignmentCommand) -> None:
        reply = None
        try:
            if isinstance(command, AssignJob) and command.options.secrets:
                packed = await self._secrets.read(command.options.secrets)
                command = replace(command, secrets=packed)
            reply = await self._call(datacenter, command)
            if reply.needs_bundle and isinstance(command, AssignJob):
                await self._upload(datacenter, command.bundle)
                reply = await self._call(datacenter, command)
        except (CallError, OSError) as error:
            extra = {"command": type(command).__name__, "datacenter": datacenter}
            _log.info("command.unanswered: %s", error, extra=extra)
            reply = None
        self.feed(owner_events.AssignmentAnswered(datacenter, command, reply))

    async def _call(self, datacenter: str, command: AssignmentCommand) -> AssignmentReply:
        return await self._datacenters.call(
            datacenter, command, AssignmentReply, within_s=_COMMAND_S
        )

    async def _upload(self, datacenter: str, sha256: str) -> None:
        """Bring a bundle to a datacenter, from where an earlier upload to it had stopped."""
        await self._bundles.find(sha256, self._node)
        data = await self._bundles.read(sha256)
        offset = 0
        while True:
            piece = PutBlob(
                sha256=sha256,
                size=len(data),
                offset=offset,
                data=data[offset : offset + BLOB_CHUNK_BYTES],
            )
            taken = await self._datacenters.call(datacenter, piece, PutBlobReply, within_s=_PIECE_S)
            if taken.is_complete:
                return
            offset = taken.offset


class GlobalOwners:
    """The owners of all groups that this gate leads. It exists once the gate has a ledger."""

    def __init__(
        self,
        ledger: Ledger,
        peers: TierPeers,
        datacenters: DatacenterLinks,
        bundles: Bundles,
        tasks: TaskSupervisor,
        *,
        node: str,
        secrets: JobSecrets,
        removed: Callable[[], list[str]],
    ) -> None:
        """`removed` names the datacenters that were removed for good."""
        self.ledger = ledger
        self._secrets = secrets
        self._removed = removed
        self._node = node
        self._peers = peers
        self._datacenters = datacenters
        self._bundles = bundles
        self._tasks = tasks
        self._drivers: dict[int, _OwnerDriver] = {}
        ledger.hooks.leading.append(self._became_leader)
        ledger.hooks.following.append(self._lost_leadership)
        ledger.hooks.applied.append(self._applied)

    def stop(self) -> None:
        for driver in self._drivers.values():
            driver.stop()

    def owner(self, group: int) -> GlobalJobOwner | None:
        """Return the owner of a group's jobs, if this gate leads the group."""
        driver = self._drivers.get(group)
        return None if driver is None else driver.owner

    def machine(self, group: int) -> GlobalJobMachine | None:
        machine = self.ledger.machine(group)
        return machine if isinstance(machine, GlobalJobMachine) else None

    def machines(self) -> list[GlobalJobMachine]:
        """Return the state of every group that this gate has a replica of."""
        found = [self.machine(group) for group in self.ledger.topology.groups]
        return [machine for machine in found if machine is not None]

    def datacenters_seen(self) -> None:
        """Hand what is known about datacenters to every owner."""
        seen = owner_events.DatacentersSeen(
            self._datacenters.views(), self._datacenters.coordinates.local
        )
        for driver in self._drivers.values():
            driver.feed(seen)

    def datacenters_removed(self) -> None:
        """Have every owner give up what it assigned to datacenters that were removed."""
        removed = owner_events.DatacentersRemoved(frozenset(self._removed()))
        for driver in self._drivers.values():
            driver.feed(removed)

    def owned(self) -> list[GlobalJob]:
        """Return the jobs of the groups that this gate leads, also ended ones that are kept."""
        led = [machine for group in self._drivers if (machine := self.machine(group)) is not None]
        return [job for machine in led for job in machine.all_jobs()]

    def secrets(self) -> set[str]:
        """Return the ids of the secret parameters that jobs need which have not ended."""
        jobs = (job for machine in self.machines() for job in machine.jobs())
        return {job.options.job.secrets for job in jobs} - {""}

    # -- leadership -------------------------------------------------------------------------

    def _became_leader(self, group: int, term: int) -> None:
        if group == MANAGEMENT:
            return
        machine = self.machine(group)
        assert machine is not None
        self._lost_leadership(group)  # of an earlier term
        driver = self._drivers[group] = _OwnerDriver(
            group,
            machine,
            node=self._node,
            ledger=self.ledger,
            datacenters=self._datacenters,
            bundles=self._bundles,
            secrets=self._secrets,
            tasks=self._tasks,
        )
        driver.feed(owner_events.BecameOwner(term, self.ledger.time_ms(group)))
        self.datacenters_seen()
        self.datacenters_removed()

    def _lost_leadership(self, group: int) -> None:
        if (driver := self._drivers.pop(group, None)) is not None:
            driver.stop()

    def _applied(self, entry: AppliedEntry) -> None:
        driver = self._drivers.get(entry.group)
        event, reply = entry.event, entry.reply
        if driver is not None and isinstance(event, GlobalEvent) and isinstance(reply, Reply):
            driver.feed(owner_events.GlobalEventApplied(event, reply))

    # -- reports of datacenters -------------------------------------------------------------

    async def reported(self, call: InboundCall, report: DatacenterReport) -> Any:
        """Hand a report to the owner of its job, here or at another gate."""
        group = self.ledger.topology.heir_of(parse_job_id(report.job).group)
        is_result = isinstance(report, DeliverAssignmentResult)
        is_own = report.hops == 0 and call.peer.datacenter == report.datacenter
        if call.peer.role is not Role.GATE and not is_own:
            # A datacenter speaks for itself alone; only gates pass reports of others on.
            refused = AssignmentResultReply(is_known=False)
            return refused if is_result else ReportAssignmentReply(is_known=False)
        driver = self._drivers.get(group)
        if driver is not None:
            if isinstance(report, DeliverAssignmentResult) and report.result:
                machine = self.machine(group)
                job = None if machine is None else machine.job(report.job)
                report = await asyncio.to_thread(checked_result, report, job)
            answer = _Answer()
            driver.feed(owner_events.DatacenterReported(report, answer))
            return await answer.future
        unknown = AssignmentResultReply() if is_result else ReportAssignmentReply()
        leader = self.ledger.leader_of(group)
        # A gate that was elected a moment ago knows it before it owns the jobs.
        is_here = leader == self._node
        link = self._peers.link(leader) if report.hops < HOPS_MAX and not is_here else None
        if link is None:
            return unknown
        deadline_s = min(call.deadline_s, asyncio.get_running_loop().time() + _FORWARD_S)
        expected = AssignmentResultReply if is_result else ReportAssignmentReply
        forwarded = replace(report, hops=report.hops + 1)
        try:
            return await link.call(forwarded, expected, deadline_s=deadline_s, retries=0)
        except CallError as error:
            _log.info("report.not_forwarded: %s", error, extra={"job": report.job})
            return unknown


REPORTS = (ReportAssignment, DeliverAssignmentResult)
