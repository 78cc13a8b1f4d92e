"""Simulated datacenters of many workers, in one process; `benchmarks.gates` runs it.

Each has a connection of its own to the gate, sealed with the cluster's secret, and the reporter
that managers have (`gates.reporter`), so that registration, probes, commands, reports and results
are the real ones. Simulated is what its managers and workers do: a job is ready at once, its
reports grow with time, and its final record is made of one report per worker, as by a job leader.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import uvloop

from benchmarks.reports_workers import RATE, Shapes
from hyperscale.config.addresses import format_address, split_address
from hyperscale.gates.datacenters.health import DatacenterFigures
from hyperscale.gates.messages import (
    AssignJob,
    AssignmentAnswer,
    AssignmentReply,
    AssignmentResultReply,
    CancelAssignment,
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
    AssignmentUpdated,
    GateAnswered,
    GateReporter,
    GatesKnown,
    ReporterEffect,
    ReporterEvent,
    ResultSettled,
    SendToGate,
)
from hyperscale.gates.results import short_record
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import (
    Job,
    Part,
    PartEnd,
    WorkflowState,
    WorkflowStatus,
)
from hyperscale.plan.status import PartStatus
from hyperscale.sansio.driver import CoreDriver
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.cluster_secret import Secrets, read_secret_file
from hyperscale.wire.errors import CallError
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import Role
from hyperscale.wire.security import VERSION, Security, incarnation_now
from hyperscale.wire.server import PeerServer

HOST = "127.0.0.1"
CORES = 4  # of a worker
REQUESTS = 5_000  # of each step, by each worker, in the final record
CALL_S = 5.0
REGISTER_S = 15.0
UPDATE_S = 0.5


class Assigned:
    """A datacenter's part of a job."""

    def __init__(self, command: AssignJob) -> None:
        part = command.options.part_of
        assert part is not None
        self.command = command
        self.index = part.index
        self.started_s: float | None = None
        self.sequence = 0


class Datacenter:
    """One simulated datacenter, connected to the gate."""

    def __init__(self, name: str, workers: int, shapes: Shapes) -> None:
        self.name = name
        self.reports = 0  # sent
        self.report_bytes = 0
        self.result_bytes = 0
        self.settled = 0
        self.address = ""
        self.link: Any = None
        self._workers = workers
        self._shapes = shapes
        self._parts: dict[str, Assigned] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._driver: CoreDriver[ReporterEvent, ReporterEffect] = CoreDriver(
            GateReporter(), self._perform, clock=time.monotonic, on_failure=_fail
        )

    @property
    def running(self) -> int:
        return sum(part.started_s is not None for part in self._parts.values())

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def register(self, gate: str) -> None:
        self._driver.feed(GatesKnown((gate,)))
        request = RegisterDatacenter(datacenter=self.name, managers=[self.address])
        while True:
            await self.link.call(request, RegisterDatacenterReply, deadline_s=_soon())
            await asyncio.sleep(REGISTER_S)

    async def update(self) -> None:
        """Hand the latest about each part to the reporter, as a manager does."""
        while True:
            for part in self._parts.values():
                self._driver.feed(AssignmentUpdated(self._report(part)))
            await asyncio.sleep(UPDATE_S)

    # -- what the gate asks -----------------------------------------------------------------

    def acknowledge(self, _call: InboundCall, probe: CrossClusterProbe) -> CrossClusterAck:
        return CrossClusterAck(
            nonce=probe.nonce,
            datacenter=self.name,
            node=f"{self.name}-manager",
            incarnation=1,
            is_leader=True,
            leader=self.address,
            managers=[self.address],
            figures=DatacenterFigures(
                managers=3,
                healthy_managers=3,
                workers=self._workers,
                healthy_workers=self._workers,
                total_cores=self._workers * CORES,
                available_cores=self._workers * (CORES - min(CORES - 1, len(self._parts))),
            ),
        )

    def assign(self, _call: InboundCall, command: AssignJob) -> AssignmentReply:
        self._parts.setdefault(command.job, Assigned(command))
        return AssignmentReply(answer=AssignmentAnswer.OK, local_job=f"{self.name}.1-x")

    def begin(self, _call: InboundCall, command: StartAssignment) -> AssignmentReply:
        part = self._parts[command.job]
        part.started_s = part.started_s or time.monotonic() + command.start_in_ms / 1000
        return AssignmentReply(answer=AssignmentAnswer.OK, local_job=f"{self.name}.1-x")

    async def end(self) -> None:
        """Deliver the result of every part."""
        while self._parts:
            _, part = self._parts.popitem()
            self._driver.feed(AssignmentEnded(await asyncio.to_thread(self._result, part)))

    # -- what the gate gets -----------------------------------------------------------------

    def _report(self, part: Assigned) -> ReportAssignment:
        is_running = part.started_s is not None
        elapsed_s = max(0.0, time.monotonic() - (part.started_s or time.monotonic()))
        part.sequence += 2  # even ones have histograms
        reports = [
            _encoded(plan.name, part.index, part.sequence, elapsed_s, self._shapes)
            for plan in part.command.plan.workflows
            if is_running
        ]
        return ReportAssignment(
            job=part.command.job,
            datacenter=self.name,
            status=JobStatus.RUNNING if is_running else JobStatus.DISPATCHING,
            is_ready=True,
            reports=reports,
        )

    def _result(self, part: Assigned) -> DeliverAssignmentResult:
        elapsed_s = REQUESTS / RATE
        ended = PartEnd(status=PartStatus.COMPLETED)
        plan = part.command.plan
        record = Job(
            id=f"{self.name}.1-x",
            key=part.command.job,
            digest="",
            plan=plan,
            status=JobStatus.COMPLETED,
            workflows={
                each.name: WorkflowState(
                    status=WorkflowStatus.COMPLETED,
                    ended_as=JobStatus.COMPLETED,
                    parts=[
                        Part(
                            first_slot=number,
                            cores=1,
                            attempt=1,
                            worker=f"worker-{number:04}",
                            elapsed_s=elapsed_s,
                            report=_encoded(each.name, number, 2, elapsed_s, self._shapes),
                            end=ended,
                        )
                        for number in range(self._workers)
                    ],
                )
                for each in plan.workflows
            },
        )
        result = short_record(record, datacenter=self.name, index=part.index)
        self.result_bytes = max(self.result_bytes, len(result))
        return DeliverAssignmentResult(
            job=part.command.job,
            datacenter=self.name,
            status=JobStatus.COMPLETED,
            local_job=record.id,
            elapsed_s=elapsed_s,
            result=result,
        )

    def _perform(self, effect: ReporterEffect) -> None:
        match effect:
            case SendToGate(gate=gate, report=report):
                self.spawn(self._send(gate, report))
            case ResultSettled():
                self.settled += 1

    async def _send(self, gate: str, report: DatacenterReport) -> None:
        is_result = isinstance(report, DeliverAssignmentResult)
        reply: type[Any] = AssignmentResultReply if is_result else ReportAssignmentReply
        if isinstance(report, ReportAssignment):
            self.reports += 1
            self.report_bytes += sum(map(len, report.reports))
        try:
            answer = await self.link.call(report, reply, deadline_s=_soon(), retries=0)
        except CallError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            answer = None
        self._driver.feed(GateAnswered(gate, report, answer))


def _encoded(workflow: str, slot: int, sequence: int, elapsed_s: float, shapes: Shapes) -> bytes:
    total = int(elapsed_s * RATE)
    return msgspec.msgpack.encode(
        {
            "workflow": workflow,
            "slot": slot,
            "sequence": sequence,
            "elapsed_s": elapsed_s,
            "vus": 1,
            "iterations": total,
            "steps": shapes.steps(total, slot, 2),
            "cpu_s": elapsed_s * 0.4,
            "loop_lag_s": 0.001,
            "rss_bytes": 60_000_000,
        }
    )


def _soon() -> float:
    return asyncio.get_running_loop().time() + CALL_S


def _fail(error: BaseException) -> None:
    raise error


@asynccontextmanager
async def connected(
    name: str, gate: str, secret_file: Path, workers: int, shapes: Shapes
) -> AsyncIterator[Datacenter]:
    """A datacenter that is registered with the gate."""
    handlers = Handlers()
    local = Introduction(
        cluster="hyperscale",
        environment="default",
        role=Role.MANAGER,
        node_id=f"{name}-manager",
        incarnation=incarnation_now(),
        version=VERSION,
        datacenter=name,
    )
    security = Security(secrets=Secrets(read_secret_file(secret_file)))
    async with PeerServer(local, security, handlers) as server:
        datacenter = Datacenter(name, workers, shapes)
        datacenter.address = format_address(*await server.listen(HOST, 0))
        handlers.add(CrossClusterProbe, datacenter.acknowledge)
        handlers.add(AssignJob, datacenter.assign)
        handlers.add(StartAssignment, datacenter.begin)
        ok = AssignmentReply(answer=AssignmentAnswer.OK)
        handlers.add(CancelAssignment, lambda _call, _command: ok)
        datacenter.link = server.link(*split_address(gate))
        datacenter.spawn(datacenter.register(gate))
        datacenter.spawn(datacenter.update())
        yield datacenter


async def run(gate: str, secret_file: Path, count: int, workers: int) -> None:
    """Serves `take` and `end` on standard input, one per line."""
    shapes = Shapes(Random(14))
    async with AsyncExitStack() as stack:
        datacenters = [
            await stack.enter_async_context(
                connected(f"dc{number + 1}", gate, secret_file, workers, shapes)
            )
            for number in range(count)
        ]
        print(json.dumps({"datacenters": len(datacenters)}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip() == "end":
                for datacenter in datacenters:
                    await datacenter.end()
            told = {
                "reports": sum(each.reports for each in datacenters),
                "report_bytes": sum(each.report_bytes for each in datacenters),
                "result_bytes": max(each.result_bytes for each in datacenters),
                "running": sum(each.running for each in datacenters),
                "settled": sum(each.settled for each in datacenters),
            }
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
