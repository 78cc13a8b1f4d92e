"""Simulated workers of one cluster, many in one process; `benchmarks.reports` runs it.

Each has a connection and a datagram socket of its own, sealed with the cluster's secret, and
the agent a worker has (`jobs.agent.core`), so that commands, leases and reports are the real ones.
Simulated are its executors with the merging of what they report, and its part in membership:
it joins and answers, and asks nobody itself.
"""

import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import uvloop

from hyperscale._native import Histogram, Recorder
from hyperscale.client.cluster_file import ClusterFile, read_cluster
from hyperscale.config.addresses import format_address, split_address
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.agent.events import (
    AgentEffect,
    AgentEvent,
    AttemptPrepared,
    CommandReceived,
    EraseResult,
    LeaderCommand,
    LeaseAttempt,
    PlaceEnded,
    PlaceReported,
    PlaceVacated,
    PrepareAttempt,
    ReplyToCommand,
    ReportAnswered,
    ResultStored,
    SendMessage,
    SendReport,
    StartAttempt,
    StopAttempt,
    StoreResult,
)
from hyperscale.jobs.agent.reports import PROGRESS_S
from hyperscale.jobs.agent.statistics import PHASES_S
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    AnnounceCores,
    AttemptId,
    Backpressure,
    DrainWorker,
    DrainWorkerReply,
    ListAttempts,
    PartPhase,
    PartProgress,
    PreparePart,
    RenewLeases,
    ReportProgressReply,
    StartPart,
    StopPart,
)
from hyperscale.membership.messages import (
    Ack,
    ClaimedState,
    MemberSnapshot,
    MemberUpdate,
    Ping,
    PushPull,
    PushPullReply,
    Sender,
)
from hyperscale.nodes.messages import NodeMetadata
from hyperscale.plan.status import PartStatus
from hyperscale.sansio.core import Tick
from hyperscale.sansio.driver import CoreDriver
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.cluster_secret import Secrets, read_secret_file
from hyperscale.wire.connection import Connection
from hyperscale.wire.datagrams import DatagramSocket, bind_datagrams
from hyperscale.wire.errors import CallError
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import Role
from hyperscale.wire.sealing import DatagramSealer
from hyperscale.wire.security import VERSION, Security, incarnation_now
from hyperscale.wire.server import PeerServer

HOST = "127.0.0.1"
CORES = 4
RATE = 100  # requests a second of each step
STEPS = ("browse", "buy")
PHASES_EVERY = int(PHASES_S / PROGRESS_S[Backpressure.NONE])  # reports
WHOLE = 16  # distributions of a whole run
TOTAL_STEP = 10  # parts that have about as many requests share their steps
STEPS_KEPT = 10_000
CALL_S = 2.0
JOIN_S = 30.0


class Shapes:
    """The steps that executors report, encoded: parts that are as far and alike share them, as
    what is measured is elsewhere and needs the CPU."""

    def __init__(self, rng: Random) -> None:
        self._whole = [_histogram(rng, 5_000) for _ in range(WHOLE)]
        self._second = [_histogram(rng, RATE) for _ in range(64)]
        self._once = _histogram(rng, 1)
        self._known: dict[tuple[int, int, int], msgspec.Raw] = {}

    def steps(self, total: int, number: int, sequence: int) -> msgspec.Raw:
        """After `total` requests each. Histograms are made once a second, so every second
        report has them."""
        total -= total % TOTAL_STEP
        with_phases = sequence % PHASES_EVERY == 0
        detail = 2 if with_phases else 1 if sequence % 2 == 0 else 0
        key = (total, number % WHOLE if detail else 0, detail)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > STEPS_KEPT:
                self._known.clear()
            steps = [self._step(name, total, number, detail) for name in STEPS]
            known = self._known[key] = msgspec.Raw(msgspec.msgpack.encode(steps))
        return known

    def _step(self, name: str, total: int, number: int, detail: int) -> dict[str, Any]:
        failed = total // 100
        counts = {
            "total": total,
            "ok": total - failed,
            "failed": failed,
            "sent": total,
            "bytes_sent": total * 120,
            "bytes_received": total * 900,
            "status_codes": {200: total - failed, 503: failed},
        }
        if not detail:
            return {"name": name, "counts": counts}
        return {
            "name": name,
            "counts": counts,
            "latency": self._whole[number % WHOLE],
            "phases": self._phases(number) if detail == 2 else None,
            "series": self._series(*divmod(total, RATE)),
        }

    def _phases(self, number: int) -> dict[str, bytes]:
        """Each user has connected once and keeps its connection."""
        return {
            "blocked": self._once,
            "connect": self._once,
            "first_byte": self._whole[(number + 1) % WHOLE],
        }

    def _series(self, second: int, total: int) -> list[dict[str, Any]]:
        """Those that grew since they were told last: the one before was not over then. The last
        has `total` requests so far."""
        return [
            {
                "second": at,
                "total": RATE if at < second else total + 1,
                "failed": 1,
                "latency": self._second[at % len(self._second)],
            }
            for at in range(max(0, second - 1), second + 1)
        ]


def _histogram(rng: Random, samples: int) -> bytes:
    histogram = Histogram()
    for _ in range(samples):
        histogram.record(int(rng.lognormvariate(16.1, 0.4)))  # about 10 ms
    return histogram.encode()


class Load:
    """The executors of one run: what their agent would make of their reports."""

    def __init__(self, workflow: str, slot: int, starts_s: float, shapes: Shapes) -> None:
        self._workflow = workflow
        self._slot = slot
        self.starts_s = starts_s
        self._shapes = shapes
        self._sequence = 0

    def report(self, now_s: float) -> bytes:
        """Cumulative, as all reports are."""
        elapsed_s = max(0.0, now_s - self.starts_s)
        self._sequence += 1
        total = int(elapsed_s * RATE)
        steps = self._shapes.steps(total, self._sequence + self._slot, self._sequence)
        report = {
            "workflow": self._workflow,
            "slot": self._slot,
            "sequence": self._sequence,
            "elapsed_s": elapsed_s,
            "vus": 1,
            "iterations": total,
            "steps": steps,
            "cpu_s": elapsed_s * 0.4,
            "loop_lag_s": 0.001,
            "rss_bytes": 60_000_000,
        }
        return msgspec.msgpack.encode(report)


class Answers:
    """How long the manager took to answer reports, and how often it asked for fewer."""

    def __init__(self) -> None:
        self.took_s: list[float] = []
        self.lost = 0
        self.parts = 0
        self.levels: Counter[str] = Counter()


class Worker:
    """One simulated worker: a real agent, connected, with executors that only report."""

    def __init__(
        self, name: str, connection: Connection, *, incarnation: int, shapes: Shapes
    ) -> None:
        self.answers = Answers()
        self.offered = 1
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._agent = Agent(name, incarnation=incarnation, cores=CORES, now_s=time.monotonic())
        self._shapes = shapes
        self._loads: dict[AttemptId, Load] = {}
        self._slots: dict[AttemptId, int] = {}
        self._driver: CoreDriver[AgentEvent, AgentEffect] = CoreDriver(
            self._agent,
            lambda effect: self._performers[type(effect)](effect),
            clock=time.monotonic,
            on_failure=self._fail,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._performers: dict[type, Callable[[Any], None]] = {
            ReplyToCommand: lambda effect: effect.token.reply(effect.reply),
            SendMessage: self._send,
            SendReport: self._report,
            PrepareAttempt: self._prepare,
            StartAttempt: self._start,
            StopAttempt: self._stop,
            StoreResult: lambda effect: self.feed(ResultStored(effect.result.attempt_id)),
            LeaseAttempt: lambda _: None,
            EraseResult: lambda _: None,
        }

    def close(self) -> None:
        self._driver.stop()
        for task in self._tasks:
            task.cancel()

    @property
    def running(self) -> int:
        return sum(phase is PartPhase.RUNNING for phase in self._agent.attempts.values())

    def commanded(self, call: InboundCall, command: LeaderCommand) -> None:
        self.feed(CommandReceived(call.peer.node_id, command, call))

    def feed(self, event: AgentEvent) -> None:
        self._driver.feed(event)

    def _fail(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "an agent failed", "exception": error})

    # --- effects --------------------------------------------------------------------------

    def _send(self, effect: SendMessage) -> None:
        message = effect.message
        if isinstance(message, AnnounceCores):
            message = msgspec.structs.replace(message, total=self.offered)
        with suppress(CallError):  # all of it is said again
            self._connection.send(message)

    def _report(self, effect: SendReport) -> None:
        task = self._loop.create_task(self._report_to(effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report_to(self, effect: SendReport) -> None:
        now_s = time.monotonic()
        parts = [
            PartProgress(
                attempt_id=each.attempt_id,
                report=load.report(now_s),
                elapsed_s=now_s - load.starts_s,
            )
            for each in effect.progress.parts
            if (load := self._loads.get(each.attempt_id)) is not None
        ]
        progress = msgspec.structs.replace(effect.progress, parts=parts)
        answers, taken = self.answers, None
        began_s = time.perf_counter()
        try:
            taken = await self._connection.call(
                progress, ReportProgressReply, deadline_s=self._loop.time() + CALL_S
            )
        except CallError:
            answers.lost += 1
        else:
            answers.took_s.append(time.perf_counter() - began_s)
            answers.parts += len(progress.parts)
            answers.levels[taken.backpressure.value] += 1
        self.feed(ReportAnswered(progress.group, effect.to, taken))

    def _prepare(self, effect: PrepareAttempt) -> None:
        run = effect.command.attempt_id
        self._slots[run] = effect.command.first_slot
        self.feed(AttemptPrepared(run))

    def _start(self, effect: StartAttempt) -> None:
        starts_s = time.monotonic() + effect.start_in_ms / 1000
        load = Load(
            effect.attempt_id.workflow, self._slots.pop(effect.attempt_id), starts_s, self._shapes
        )
        self._loads[effect.attempt_id] = load
        # The agent reports from the first word of an executor on; `_report_to` fills it in.
        first = Recorder(0).report(
            [], workflow=effect.attempt_id.workflow, slot=0, sequence=0, elapsed_s=0.0
        )
        self.feed(PlaceReported(effect.attempt_id, effect.places[0], first))

    def _stop(self, effect: StopAttempt) -> None:
        self._loads.pop(effect.attempt_id, None)
        for place in effect.places:
            self.feed(PlaceEnded(effect.attempt_id, place, PartStatus.STOPPED, error=effect.reason))
            self.feed(PlaceVacated(effect.attempt_id, place))


@asynccontextmanager
async def joined(name: str, cluster: ClusterFile, shapes: Shapes) -> AsyncIterator[Worker]:
    """A worker that is a member of the cluster."""
    security = Security(secrets=Secrets(read_secret_file(Path(cluster.secret_file))))
    handlers = Handlers()
    local = Introduction(
        cluster="hyperscale",
        environment="default",
        role=Role.WORKER,
        node_id=name,
        incarnation=incarnation_now(),
        version=VERSION,
        datacenter="default",
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(PeerServer(local, security, handlers))
        bound = bind_datagrams(HOST, 0)
        address = format_address(*bound.getsockname())
        _, stream_port = await server.listen(HOST, 0)
        sealer = DatagramSealer(
            security.secrets,
            name,
            local.incarnation,
            cluster=local.cluster,
            environment=local.environment,
        )
        datagrams = stack.enter_context(DatagramSocket(bound, sealer))
        sender = Sender(address, stream_port=stream_port)
        metadata = msgspec.msgpack.encode(
            NodeMetadata(version=VERSION, datacenter="default", cores=CORES, is_ready=True)
        )
        news = MemberUpdate(
            name, local.incarnation, ClaimedState.ALIVE, address=address, stream_port=stream_port
        )
        view = PushPull(sender, (MemberSnapshot(news, 1, metadata),))

        def heard(source: str, _node: str, _incarnation: int, message: Any) -> None:
            if isinstance(message, Ping):
                is_news = message.metadata_seen < 1
                ack = Ack(sender, message.sequence, 1, metadata if is_news else b"")
                datagrams.send(source, ack)

        connection = await server.dial(*split_address(cluster.managers[0].tcp))
        worker = Worker(name, connection, incarnation=local.incarnation, shapes=shapes)
        stack.callback(worker.close)
        handlers.add(PushPull, lambda _call, _request: PushPullReply(sender, view.members))
        handlers.add(PreparePart, worker.commanded)
        handlers.add(StartPart, worker.commanded)
        handlers.add(StopPart, worker.commanded)
        handlers.add(RenewLeases, worker.commanded)
        handlers.add(ListAttempts, worker.commanded)
        handlers.add(AcknowledgeResult, worker.commanded)
        handlers.add(DrainWorker, lambda _call, _drain: DrainWorkerReply(worker.running))
        datagrams.listen(heard)
        deadline_s = asyncio.get_running_loop().time() + JOIN_S
        await connection.call(view, PushPullReply, deadline_s=deadline_s)
        worker.feed(Tick())
        yield worker


async def run(directory: Path, first: int, count: int) -> None:
    """Serves `offer N`, `running` and `take` on standard input, one per line."""
    cluster = read_cluster(directory)
    shapes = Shapes(Random(first))
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(joined(f"worker-{number:04}", cluster, shapes))
            for number in range(first, first + count)
        ]
        gc.freeze()
        gc.disable()  # for minutes only; what is measured is elsewhere and needs the CPU
        print(json.dumps({"joined": len(workers)}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            command, _, amount = line.strip().partition(" ")
            told: dict[str, Any] = {}
            match command:
                case "offer":
                    for worker in workers:
                        worker.offered = int(amount)
                case "running":
                    told = {"running": sum(worker.running for worker in workers)}
                case "take":
                    told = taken(workers)
            print(json.dumps(told), flush=True)


def taken(workers: list[Worker]) -> dict[str, Any]:
    """What the manager answered since this was asked last."""
    answers = [worker.answers for worker in workers]
    for worker in workers:
        worker.answers = Answers()
    return {
        "took_s": [took_s for each in answers for took_s in each.took_s],
        "lost": sum(each.lost for each in answers),
        "parts": sum(each.parts for each in answers),
        "levels": sum((each.levels for each in answers), Counter()),
        "cpu_s": time.process_time(),
    }


if __name__ == "__main__":
    uvloop.run(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
