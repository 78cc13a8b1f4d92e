"""The agent of a worker on its node: events in, effects carried out, in order.

Owns the timer of the core, its files, its executors and its links; decides nothing. The clock
is CLOCK_BOOTTIME, the one the executors' leases are kept on.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hyperscale.errors import RunError
from hyperscale.health.progress import ProgressMeter
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.agent.events import (
    Answered,
    Command,
    Commanded,
    Drain,
    Erase,
    Event,
    LeaseRun,
    Measured,
    PrepareRun,
    Reply,
    Report,
    Reported,
    Restored,
    Send,
    StartRun,
    StopRun,
    Store,
    Stored,
    Tick,
)
from hyperscale.jobs.messages import (
    AnnounceCores,
    AnnounceCoresReply,
    AttemptId,
    DeliverResult,
    DrainWorker,
    DrainWorkerReply,
    FetchBlob,
    PartPhase,
    PreparePart,
    ReportProgressReply,
)
from hyperscale.membership.events import MemberChanged, MemberDied, MemberState
from hyperscale.nodes.agent.executors import BundleError, Executors
from hyperscale.nodes.agent.manager_links import Managers
from hyperscale.nodes.agent.message_size import fit
from hyperscale.nodes.agent.result_store import ResultStore
from hyperscale.nodes.agent.usage import ActionCount, CpuMeter
from hyperscale.nodes.bundle_store import BundleStore
from hyperscale.nodes.member import MemberNode
from hyperscale.nodes.metrics import Family, counter, gauge
from hyperscale.nodes.turns import Turns
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import CallError, OverloadedError, UnreachableError
from hyperscale.wire.messages import Chunk
from hyperscale.wire.roles import Role

FETCH_S = 60.0
FIRST_S = 5.0
STALL_S = 15.0
ANSWER_S = 2.0
MEASURE_S = 1.0
_OPENS_S = 0.2

_log = logging.getLogger("hyperscale.agent")


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgentDriver:
    """Runs the agent of one worker. Complete when made; `open` begins."""

    def __init__(self, member: MemberNode, *, cores: int, directory: Path) -> None:
        self.agent = Agent(
            member.node_id,
            incarnation=member.server.local.incarnation,
            cores=cores,
            now_s=now_s(),
        )
        self._member = member
        self._loop = asyncio.get_running_loop()
        self._cores = cores
        self._directory = directory
        self._shelf = BundleStore(directory / "bundles")
        self._spool = ResultStore(directory / "results")
        self._managers = Managers(member.server, member)
        # One thread: what is stored and erased happens in the order it was decided.
        self._disk = ThreadPoolExecutor(1, "spool")
        self._executors = Executors(
            cores,
            feed=self.feed,
            fetch=self._fetch,
            spawn=self._spawn,
        )
        self._turns: Turns[Event] = Turns(self._handle)
        self._is_open = False
        self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._described: dict[str, Any] = {}
        self._meter = ProgressMeter()
        self._actions = ActionCount()
        self._results_sent = 0
        self._cores_told: AnnounceCores | None = None
        self._are_cores_known = False  # to an allocator; a later one waits for all before it grants
        self._fetches: dict[str, asyncio.Task[Path]] = {}
        self._perform: dict[type, Callable[[Any], None]] = {
            Reply: self._reply,
            Send: self._send,
            Report: self._report,
            PrepareRun: self._executors.prepare,
            StartRun: self._executors.start,
            LeaseRun: self._executors.renew,
            StopRun: self._stop_run,
            Store: self._store,
            Erase: self._erase,
        }

    # --- lifetime -------------------------------------------------------------------------

    async def open(self) -> None:
        """Results of an earlier life are found again, executors start."""
        try:
            await self._in_thread(self._shelf.open)
            results, broken = await self._in_thread(self._spool.open)
        except OSError as error:
            raise RunError(
                f"{self._directory}: {error.strerror or error}",
                hint="say with --data-dir where this worker may keep its results",
            ) from error
        for path in broken:
            _log.error("result.unreadable: %s", path, extra={"file": str(path)})
        await self._executors.open()
        self._is_open = True
        if results:
            _log.info("results.found", extra={"results": len(results)})
        self.feed(Restored(tuple(results)))
        self._spawn(self._measure(), "agent:measure")

    async def hand_over(self) -> None:
        """Ends its runs for others to go on, and waits until every result is in good hands."""
        self.feed(Drain(hands_over=True))
        while not self.agent.is_idle:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in [*self._tasks, *self._fetches.values()]:
            task.cancel()
        await self._executors.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._managers.close()
        # What was to be stored is stored before this returns.
        await asyncio.to_thread(self._disk.shutdown)

    # --- what the node asks ---------------------------------------------------------------

    def changed(self, change: MemberChanged | MemberDied) -> None:
        member = change.member
        self._managers.changed(member)
        is_new = isinstance(change, MemberChanged) and change.before is not MemberState.ALIVE
        if is_new and member.role is Role.MANAGER and member.state is MemberState.ALIVE:
            # It may be the allocator, and jobs may come before the next second.
            self._tell_cores([member.node])

    def why_not_ready(self) -> tuple[str, ...]:
        if self.agent.is_draining:
            return ("draining",)
        return () if self._are_cores_known else ("no manager that grants cores knows its own",)

    def metadata(self) -> dict[str, Any]:
        return {
            "free": self.agent.free_cores,
            "is_draining": self.agent.is_draining,
            "progress": str(self._meter.state(now_s=now_s())),
        }

    def collect(self) -> list[Family]:
        agent = self.agent
        phases = [phase.value for phase in agent.runs.values()]
        return [
            gauge("hyperscale_worker_cores", "Cores this worker offers", ({}, agent.total_cores)),
            gauge("hyperscale_worker_cores_free", "Of them, free ones", ({}, agent.free_cores)),
            gauge(
                "hyperscale_worker_runs",
                "Runs that are here, by phase",
                *(({"phase": phase}, phases.count(phase)) for phase in sorted(set(phases))),
            ),
            counter(
                "hyperscale_worker_results_sent_total",
                "Results told to a leader, repetitions included",
                ({}, self._results_sent),
            ),
        ]

    # --- events ---------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Hands one event to the core and carries out what follows, in order."""
        if self._is_stopped:
            return
        if not self._turns.take(event):
            return
        self._arm()
        self._changed.set()
        described = self.metadata()
        if described != self._described:
            self._described = described
            self._member.describe()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Reported):
            total = sum(step.counts.total for step in event.report.steps)
            self._actions.note(event.run, event.place, total)
        for effect in self.agent.handle(event, now_s=now_s()):
            self._perform[type(effect)](effect)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, self.agent.wake_at_s() - now_s())
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self.feed(Tick())

    def commanded(self, call: InboundCall, command: Command) -> None:
        if not self._is_open:
            raise OverloadedError("its executors are not there yet", retry_after_s=_OPENS_S)
        self.feed(Commanded(call.peer.node_id, command, call))

    def drain_asked(self, _call: InboundCall, _asked: DrainWorker) -> DrainWorkerReply:
        self.feed(Drain())
        return DrainWorkerReply(len(self.agent.runs))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of this service; its failure is the node's."""
        task = self._member.tasks.spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(self._disk, work, *arguments)

    # --- effects --------------------------------------------------------------------------

    def _reply(self, effect: Reply) -> None:
        call: InboundCall = effect.token
        call.reply(fit(effect.answer))

    def _send(self, effect: Send) -> None:
        if isinstance(effect.message, DeliverResult):
            self._results_sent += 1
        if isinstance(effect.message, AnnounceCores):
            self._cores_told = effect.message
            self._tell_cores(self._managers.everyone())
            return
        message = fit(effect.message)
        for node in [effect.to] if effect.to else self._managers.everyone():
            self._managers.send(node, message)

    def _tell_cores(self, nodes: Iterable[str]) -> None:
        """The latest about its cores. Told again each second, so that only whether anybody has
        ever heard of them is worth an answer."""
        if self._cores_told is None:
            return
        for node in nodes:
            if self._are_cores_known:
                self._managers.send(node, self._cores_told)
            else:
                self._spawn(self._offer_cores(node, self._cores_told), f"cores:{node}")

    async def _offer_cores(self, node: str, cores: AnnounceCores) -> None:
        deadline_s = self._loop.time() + ANSWER_S
        try:
            taken = await self._managers.call(
                node, cores, AnnounceCoresReply, deadline_s=deadline_s
            )
        except CallError as error:
            _log.debug("cores.unanswered: %s", error, extra={"to": node})
            return
        if taken.is_known and not self._are_cores_known:
            self._are_cores_known = True
            self._member.describe()

    def _report(self, effect: Report) -> None:
        self._spawn(self._report_to(effect), f"report:{effect.to}")

    async def _report_to(self, effect: Report) -> None:
        taken: ReportProgressReply | None = None
        try:
            taken = await self._managers.call(
                effect.to,
                fit(effect.progress),
                ReportProgressReply,
                deadline_s=self._loop.time() + ANSWER_S,
            )
        except CallError as error:
            _log.debug("report.lost: %s", error, extra={"to": effect.to})
        self.feed(Answered(effect.progress.group, effect.to, taken))

    def _stop_run(self, effect: StopRun) -> None:
        _log.info(
            "run.stopping",
            extra={**_named(effect.run), "reason": effect.reason},
        )
        self._executors.stop(effect)

    def _store(self, effect: Store) -> None:
        result = effect.result
        _log.info(
            "run.finished",
            extra={
                **_named(result.run),
                "status": result.status.value,
                "reason": result.error or "",
                "elapsed_s": round(result.elapsed_s, 3),
            },
        )
        # Handed to the disk now: whatever becomes of the task, it is written.
        storing = self._loop.run_in_executor(self._disk, self._spool.store, result)
        self._spawn(self._tell_when_stored(result, storing), "store")

    async def _tell_when_stored(self, result: DeliverResult, storing: asyncio.Future[None]) -> None:
        try:
            await storing
        except OSError as error:  # better told from memory than not at all
            _log.error(
                "result.not_stored: %s", error, extra={**_named(result.run), "error": str(error)}
            )
        self.feed(Stored(result.run))

    def _erase(self, effect: Erase) -> None:
        self._spawn(self._in_thread(self._spool.erase, effect.run), "erase")

    # --- bundles --------------------------------------------------------------------------

    async def _fetch(self, command: PreparePart) -> Path:
        """The bundle's path; brought here once, however many runs want it."""
        sha256 = command.bundle
        if sha256 not in self._fetches:
            work = self._bring(sha256, command.leader)
            self._fetches[sha256] = self._loop.create_task(work, name=f"fetch:{sha256[:12]}")
            self._fetches[sha256].add_done_callback(lambda _: self._fetches.pop(sha256, None))
        return await asyncio.shield(self._fetches[sha256])

    async def _bring(self, sha256: str, leader: str) -> Path:
        found: Path | None = await self._in_thread(self._shelf.find, sha256)
        if found is not None:
            return found
        others = [node for node in self._managers.everyone() if node != leader]
        problem = ""
        for node in [leader, *others]:
            try:
                path = await self._receive(sha256, node)
            except (CallError, RunError) as error:
                problem = problem or f"{node}: {error}"
            else:
                await self._in_thread(self._shelf.trim, [sha256])
                return path
        raise BundleError(f"no manager gave bundle {sha256[:12]}; {problem}")

    async def _receive(self, sha256: str, node: str) -> Path:
        deadline_s = self._loop.time() + FETCH_S
        asked = FetchBlob(sha256)
        receiving = await self._in_thread(self._shelf.receive, sha256)
        with receiving:
            try:
                # One that is silent is found out while the job can still wait for another.
                async with asyncio.timeout(FIRST_S) as patience:
                    stream = await self._managers.stream(node, asked, Chunk, deadline_s=deadline_s)
                    async with stream as chunks:
                        async for chunk in chunks:
                            patience.reschedule(self._loop.time() + STALL_S)
                            await self._in_thread(receiving.write, chunk.data)
            except TimeoutError:
                raise UnreachableError("it does not give the bundle") from None
            path: Path = await self._in_thread(receiving.finish)
        return path

    # --- how it does ----------------------------------------------------------------------

    async def _measure(self) -> None:
        meter = CpuMeter(self._cores)
        while True:
            await asyncio.sleep(MEASURE_S)
            cpu = meter.share(self._executors.pids, now_s=now_s())
            runs = self.agent.runs.items()
            self._actions.forget_others([r for r, phase in runs if phase is not PartPhase.FINISHED])
            self._meter.report(
                assigned=self._actions.executors, actions=self._actions.total, now_s=now_s()
            )
            self.feed(Measured(cpu=cpu, memory=self._member.vitals.memory))


def _named(run: AttemptId) -> dict[str, Any]:
    return {
        "job": run.job,
        "workflow": run.workflow,
        "part": run.part,
        "attempt": run.attempt,
    }
