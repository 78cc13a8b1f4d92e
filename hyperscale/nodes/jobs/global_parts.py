"""A manager's side of global jobs: what gates ask of its datacenter, and what it reports to them.

Managers with `gates.seeds` register their datacenter with the gates. Any manager takes the commands
of gates and commits them in the datacenter's ledger; the manager that leads a job reports on it.
"""

import asyncio
import logging
import time
from random import Random
from typing import Any

from hyperscale.client.messages import GetJobOfKey, SubmitJob
from hyperscale.config.addresses import format_address, parse_address, split_address
from hyperscale.config.schema import GATE_PORT
from hyperscale.errors import HyperscaleError
from hyperscale.gates.datacenters.health import DatacenterFigures
from hyperscale.gates.messages import (
    AssignJob,
    AssignmentAnswer,
    AssignmentReply,
    AssignmentResultReply,
    CancelAssignment,
    ChangeAssignment,
    CrossClusterAck,
    CrossClusterProbe,
    DatacenterReport,
    DeliverAssignmentResult,
    RegisterDatacenter,
    RegisterDatacenterReply,
    ReportAssignment,
    ReportAssignmentReply,
    StartAssignment,
)
from hyperscale.gates.reporter import (
    AssignmentEnded,
    AssignmentForgotten,
    AssignmentUpdated,
    GateAnswered,
    GateReporter,
    GatesKnown,
    ReporterEffect,
    ReporterEvent,
    ResultSettled,
    SendToGate,
    StopAssignment,
)
from hyperscale.gates.results import short_record
from hyperscale.jobs.committed.events import (
    CancelRequested,
    Code,
    JobEvent,
    JobReleased,
    LoadChanged,
    SubmissionRevoked,
    decode_reply,
)
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.jobs.committed.state import Job, decode_job
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.jobs.leader.views import (
    extension_s,
    is_prepared,
    is_queued,
    merged_reports,
    running_s,
)
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.membership.coordinates import CoordinateSystem, unpack
from hyperscale.membership.events import LIVING
from hyperscale.nodes.jobs.service import JobsService
from hyperscale.nodes.ledger_service import LedgerService
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.nodes.messages import metadata_of
from hyperscale.sansio.driver import CoreDriver
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.link import PeerLink
from hyperscale.wire.roles import Role

_FIRST_S = (0.5, 1.0, 2.0)
_REGISTER_S = 15.0
_CALL_S = 5.0
_LOOK_S = 0.5

_REPLIES: dict[type, type[Any]] = {
    ReportAssignment: ReportAssignmentReply,
    DeliverAssignmentResult: AssignmentResultReply,
}
_log = logging.getLogger("hyperscale.gates")


class GlobalParts(NodeService):
    """The parts of global jobs in a datacenter, as one of its managers handles them."""

    def __init__(
        self, member: MemberNode, handlers: Handlers, ledger: LedgerService, jobs: JobsService
    ) -> None:
        self._member = member
        self._ledger_service = ledger
        self._jobs = jobs
        seeds = member.config.gates.seeds
        self._seeds = [
            format_address(*parse_address(seed, default_port=GATE_PORT, where="gates.seeds"))
            for seed in seeds
        ]
        self._gates: tuple[str, ...] = tuple(self._seeds)
        self._links: dict[str, PeerLink] = {}
        self._coordinates = CoordinateSystem(Random())  # noqa: S311  for directions, not for keys
        self._sequence = 0
        self._reported: set[str] = set()  # jobs that the reporter knows
        self._delivering: set[str] = set()  # global ids of results that are on their way
        self._settled: set[str] = set()  # global ids of results that the gates have
        self._driver: CoreDriver[ReporterEvent, ReporterEffect] = CoreDriver(
            GateReporter(), self._perform, clock=time.monotonic, on_failure=member.tasks.fail
        )
        handlers.add(AssignJob, self._assign)
        handlers.add(StartAssignment, self._start)
        handlers.add(ChangeAssignment, self._change)
        handlers.add(CancelAssignment, self._cancel)
        handlers.add(CrossClusterProbe, self._acknowledge)

    async def start(self) -> None:
        if self._seeds:
            self._driver.feed(GatesKnown(self._gates))
            self._member.tasks.spawn(self._register(), "gates:register")
            self._member.tasks.spawn(self._report_jobs(), "gates:report")

    async def stop(self) -> None:
        self._driver.stop()
        while self._links:
            self._links.popitem()[1].close()

    # -- commands of gates -----------------------------------------------------------------

    async def _assign(self, call: InboundCall, command: AssignJob) -> AssignmentReply:
        submission = SubmitJob(
            key=command.job,
            plan=command.plan,
            bundle=command.bundle,
            options=command.options,
            by=command.by,
            secrets=command.secrets,
        )
        reply = await self._jobs.commands.submit(call, submission)
        if reply.accepted:
            return AssignmentReply(answer=AssignmentAnswer.OK, local_job=reply.job)
        if reply.needs_bundle or reply.code is Code.CAPACITY:
            return AssignmentReply(
                answer=AssignmentAnswer.RETRY, reason=reply.error, needs_bundle=reply.needs_bundle
            )
        is_revoked = reply.code is Code.REVOKED
        answer = AssignmentAnswer.NEVER_RAN if is_revoked else AssignmentAnswer.REFUSED
        return AssignmentReply(answer=answer, reason=reply.error)

    async def _start(self, call: InboundCall, command: StartAssignment) -> AssignmentReply:
        local = await self._local_job(call, command.job)
        if not local:
            return AssignmentReply(answer=AssignmentAnswer.RETRY, reason="not assigned here")
        # The commit takes a few milliseconds in every datacenter, so the wait comes before it.
        await asyncio.sleep(min(command.start_in_ms / 1000, _CALL_S / 2))
        await self._execute(local, JobReleased(job=local, elapsed_s=command.elapsed_s))
        return AssignmentReply(answer=AssignmentAnswer.OK, local_job=local)

    async def _change(self, call: InboundCall, command: ChangeAssignment) -> AssignmentReply:
        local = await self._local_job(call, command.job)
        if not local:
            return AssignmentReply(answer=AssignmentAnswer.RETRY, reason="not assigned here")
        for change in command.changes:  # a part that has ended refuses them, and needs none
            await self._execute(local, LoadChanged(job=local, change=change, is_of_gates=True))
        return AssignmentReply(answer=AssignmentAnswer.OK, local_job=local)

    async def _cancel(self, call: InboundCall, command: CancelAssignment) -> AssignmentReply:
        ledger = self._ledger()
        event = SubmissionRevoked(key=command.job, reason=command.reason)
        done = await ledger.submit(command.job, ledger.encode(event))
        local = decode_reply(done.reply).job
        if not local:
            return AssignmentReply(
                answer=AssignmentAnswer.NEVER_RAN, reason="cancelled before it began"
            )
        self._settled.discard(command.job)  # the gates have no result yet, if it has ended
        cancel = CancelRequested(
            job=local, reason=command.reason, by=call.peer.node_id, status=command.status
        )
        await self._execute(local, cancel)
        return AssignmentReply(answer=AssignmentAnswer.OK, local_job=local)

    async def _local_job(self, call: InboundCall, key: str) -> str:
        return (await self._jobs.commands.job_of_key(call, GetJobOfKey(key=key))).job

    async def _execute(self, job: str, event: JobEvent) -> None:
        ledger = self._ledger()
        group = ledger.topology.heir_of(parse_job_id(job).group)
        await ledger.execute(group, ledger.encode(event))

    def _ledger(self) -> Ledger:
        return self._ledger_service.require().ledger

    # -- probes ------------------------------------------------------------------------------

    def _acknowledge(self, _call: InboundCall, probe: CrossClusterProbe) -> CrossClusterAck:
        member, ledger = self._member, self._ledger_service.ledger
        is_leader = ledger is not None and ledger.core.is_leader(MANAGEMENT)
        leader = "" if ledger is None else ledger.leader_of(MANAGEMENT)
        known = member.known(leader) if leader else None
        address = member.address if is_leader else known.stream_address if known else ""
        role = None if ledger is None else ledger.core.roles.get(MANAGEMENT)
        return CrossClusterAck(
            nonce=probe.nonce,
            datacenter=member.config.node.datacenter,
            node=member.node_id,
            incarnation=member.server.local.incarnation,
            is_leader=is_leader,
            term=0 if role is None else role.term,
            leader=address,
            managers=self._managers(),
            figures=self._figures(),
            coordinate=self._coordinates.local.pack(),
        )

    def _managers(self) -> list[str]:
        living = [
            each.stream_address
            for each in self._member.members()
            if each.role is Role.MANAGER and each.state in LIVING
        ]
        return sorted({self._member.address, *living})

    def _figures(self) -> DatacenterFigures:
        members = self._member.members()
        workers = [each for each in members if each.role is Role.WORKER]
        living = [each for each in workers if each.state in LIVING]
        announced = [found for each in living if (found := metadata_of(each.metadata)) is not None]
        managers = [each for each in members if each.role is Role.MANAGER]
        return DatacenterFigures(
            managers=len(managers),
            healthy_managers=sum(each.state in LIVING for each in managers),
            workers=len(workers),
            healthy_workers=len(living),
            total_cores=sum(each.cores for each in announced),
            available_cores=sum(each.free for each in announced if not each.is_draining),
            queue_depth=self._jobs.queue_depth,
        )

    # -- registration ------------------------------------------------------------------------

    async def _register(self) -> None:
        """Register the datacenter with every gate: soon at first, then again and again."""
        waits = iter(_FIRST_S)
        while True:
            request = RegisterDatacenter(
                datacenter=self._member.config.node.datacenter, managers=self._managers()
            )
            replies = await asyncio.gather(
                *(self._register_with(gate, request) for gate in self._gates)
            )
            for refused in {reply.refused for reply in replies if reply is not None} - {""}:
                _log.warning("datacenter.not_registered: %s", refused)
            if any(reply is not None and reply.is_removed for reply in replies):
                await self._end_parts("the datacenter was removed from the gates")
            found = {gate for reply in replies if reply is not None for gate in reply.gates}
            gates = tuple(sorted({*self._seeds, *found}))
            if gates != self._gates:
                self._gates = gates
                self._driver.feed(GatesKnown(gates))
            is_known = any(reply is not None for reply in replies)
            await asyncio.sleep(_REGISTER_S if is_known else next(waits, _REGISTER_S))

    async def _register_with(
        self, gate: str, request: RegisterDatacenter
    ) -> RegisterDatacenterReply | None:
        """Register with one gate. The round trip moves the coordinate of this manager, so that no
        message is sent for that alone."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        reply: RegisterDatacenterReply | None = await self._call(
            gate, request, RegisterDatacenterReply
        )
        if reply is not None and (coordinate := unpack(reply.coordinate)) is not None:
            self._coordinates.measured(reply.node, coordinate, loop.time() - begun_s)
        return reply

    async def _end_parts(self, reason: str, only: set[str] | None = None) -> None:
        """Cancel the parts of global jobs that this manager leads; of `only` these, if given."""
        leaders = self._jobs.leaders
        for machine, _ in [] if leaders is None else leaders.led_jobs():
            for job in list(machine.jobs()):
                part = job.options.part_of
                if part is None or job.stop is not None or (only and part.job not in only):
                    continue
                try:
                    await self._execute(job.id, CancelRequested(job=job.id, reason=reason))
                except HyperscaleError as error:  # the command is sent again
                    _log.info("part.not_ended: %s", error, extra={"job": job.id})

    async def _call(self, gate: str, message: Any, reply: type[Any]) -> Any:
        """Call a gate; return None if it does not answer. A gate that refuses connections is not
        waited for: another one may be up."""
        link = self._links.get(gate)
        if link is None:
            link = self._links[gate] = self._member.server.link(*split_address(gate))
        if link.is_refused:
            return None
        deadline_s = asyncio.get_running_loop().time() + _CALL_S
        try:
            return await link.call(message, reply, deadline_s=deadline_s, retries=0)
        except CallError as error:
            _log.info("gate.unanswered: %s", error, extra={"gate": gate})
            return None

    # -- reports -----------------------------------------------------------------------------

    async def _report_jobs(self) -> None:
        """Hand the latest about the parts that this manager leads to the reporter."""
        while True:
            await asyncio.sleep(_LOOK_S)
            leaders = self._jobs.leaders
            current: set[str] = set()
            for machine, leader in [] if leaders is None else leaders.led_jobs():
                for job in list(machine.jobs()):
                    if job.options.part_of is not None:
                        current.add(job.options.part_of.job)
                        self._update(job, leader)
                for job in machine.ended_jobs():
                    part = job.options.part_of
                    if part is not None and part.job not in self._settled:
                        current.add(part.job)
                        await self._ended(job)
            for job_id in self._reported - current:
                self._delivering.discard(job_id)
                self._driver.feed(AssignmentForgotten(job_id))
            self._reported = current

    def _update(self, job: Job, leader: JobLeader) -> None:
        part = job.options.part_of
        assert part is not None
        self._sequence += 1
        report = ReportAssignment(
            job=part.job,
            datacenter=self._member.config.node.datacenter,
            status=job.status,
            is_ready=is_prepared(leader.state, job),
            is_queued=is_queued(leader.state, job),
            running_s=running_s(leader.state, job, now_s=time.monotonic()),
            extension_s=extension_s(leader.state, job, now_s=time.monotonic()),
            reports=merged_reports(leader.state, job, slot=part.index, sequence=self._sequence),
        )
        self._driver.feed(AssignmentUpdated(report))

    async def _ended(self, job: Job) -> None:
        part = job.options.part_of
        assert part is not None
        if part.job in self._delivering:
            return
        store = self._ledger().store
        rows = await asyncio.to_thread(store.history, job_id=job.id, limit=100_000)
        final = [data for _, _, _, _, kind, data in rows if kind == "finished"]
        if not final:
            return  # this node has no history of it; another has
        datacenter = self._member.config.node.datacenter
        record = decode_job(final[-1])
        short = await asyncio.to_thread(
            short_record, record, datacenter=datacenter, index=part.index
        )
        self._delivering.add(part.job)
        result = DeliverAssignmentResult(
            job=part.job,
            datacenter=datacenter,
            status=record.status,
            reason=record.reason,
            local_job=record.id,
            elapsed_s=record.times.elapsed_s,
            result=short,
        )
        self._driver.feed(AssignmentEnded(result))

    def _perform(self, effect: ReporterEffect) -> None:
        match effect:
            case SendToGate(gate=gate, report=report):
                self._member.tasks.spawn_request(self._send(gate, report), f"gate:{gate}")
            case ResultSettled(job=job):
                self._settled.add(job)
                self._delivering.discard(job)
            case StopAssignment(job=job):
                ending = self._end_parts("the gates go on without this datacenter", {job})
                self._member.tasks.spawn_request(ending, f"end:{job}")

    async def _send(self, gate: str, report: DatacenterReport) -> None:
        reply = await self._call(gate, report, _REPLIES[type(report)])
        self._driver.feed(GateAnswered(gate, report, reply))
