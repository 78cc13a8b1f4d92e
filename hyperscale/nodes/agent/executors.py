"""The executors of a worker, by place: starts and stops them for the agent, measures their use.

Places beyond the worker's cores get an executor when one is needed, pinned to no core, and
lose it afterwards.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path

from hyperscale.errors import HyperscaleError
from hyperscale.execution import protocol
from hyperscale.execution.pool import ExecutorPool
from hyperscale.execution.process import ExecutorLostError
from hyperscale.health.signals import ProgressMeter
from hyperscale.jobs.agent.events import (
    AgentEvent,
    AttemptPrepared,
    AttemptPrepareFailed,
    LeaseAttempt,
    PlaceEnded,
    PlacePrinted,
    PlaceReported,
    PlaceVacated,
    PrepareAttempt,
    StartAttempt,
    StopAttempt,
)
from hyperscale.jobs.messages import AttemptId, PreparePart
from hyperscale.nodes.agent.manager_links import SpawnTask
from hyperscale.nodes.agent.storage import BundleError
from hyperscale.plan import share
from hyperscale.plan.status import PartStatus

FetchBundle = Callable[[str, str], Awaitable[Path]]
"""Return the path of the bundle with this SHA-256; the second argument is the job leader."""

_NS = 1_000_000_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class WorkerExecutors:
    """Executors by place, and the attempt that each belongs to."""

    def __init__(
        self,
        cores: int,
        *,
        feed: Callable[[AgentEvent], None],
        fetch: FetchBundle,
        spawn: SpawnTask,
    ) -> None:
        self._cores = cores
        self._feed = feed
        self._fetch = fetch
        self._spawn = spawn
        self._pool = ExecutorPool(cores, on_event=self._on_event)
        self._indices = {place: place for place in range(cores)}  # place -> index in the pool
        self._places = dict(self._indices)  # index in the pool -> place
        self._attempts: dict[int, AttemptId] = {}  # by place
        self._fetching: dict[AttemptId, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Start one executor per core."""
        await self._pool.__aenter__()

    async def close(self) -> None:
        """End every executor."""
        for task in self._fetching.values():
            task.cancel()
        await self._pool.close()

    @property
    def pids(self) -> list[int]:
        return self._pool.pids

    # --- effects ----------------------------------------------------------------------------

    def prepare(self, effect: PrepareAttempt) -> None:
        """Fetch the bundle and prepare the executors at the places of a new attempt."""
        attempt_id = effect.command.attempt_id
        for place in effect.places:
            self._attempts[place] = attempt_id
        name = f"prepare:{attempt_id.job}/{attempt_id.workflow}/{attempt_id.part}"
        work = self._prepare(effect.command, effect.places)
        self._fetching[attempt_id] = self._spawn(work, name)

    def start(self, effect: StartAttempt) -> None:
        """Start prepared executors."""
        indices = self._indices_of(effect.attempt_id, effect.places)
        self._pool.start(indices, effect.start_in_ms)

    def renew(self, effect: LeaseAttempt) -> None:
        """Renew the leases of executors."""
        indices = self._indices_of(effect.attempt_id, effect.places)
        self._pool.renew_lease(indices, round(effect.until_s * _NS))

    def stop(self, effect: StopAttempt) -> None:
        """Stop executors, or the fetching of their bundle."""
        # A task that is cancelled before its first step never runs, and `AttemptPrepareFailed`
        # would not follow. On the next iteration of the loop a task just started has begun.
        asyncio.get_running_loop().call_soon(self._stop, effect)

    def _stop(self, effect: StopAttempt) -> None:
        fetching = self._fetching.get(effect.attempt_id)
        if fetching is not None:
            fetching.cancel()  # `_prepare` reports the failure
        indices = self._indices_of(effect.attempt_id, effect.places)
        self._pool.stop(indices, effect.reason, effect.grace_s)

    def _indices_of(self, attempt_id: AttemptId, places: tuple[int, ...]) -> list[int]:
        """Return the executors that still belong to the attempt."""
        return [
            self._indices[place]
            for place in places
            if place in self._indices and self._attempts.get(place) == attempt_id
        ]

    # --- preparing --------------------------------------------------------------------------

    async def _prepare(self, command: PreparePart, places: tuple[int, ...]) -> None:
        attempt_id = command.attempt_id
        try:
            try:
                for place in places:
                    if place not in self._indices:
                        self._indices[place] = self._pool.grow()
                        self._places[self._indices[place]] = place
                bundle = await self._fetch(command.bundle, command.leader)
            finally:
                self._fetching.pop(attempt_id, None)
            indices = self._indices_of(attempt_id, places)
            await self._pool.prepare(indices, slots_of(command, bundle))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or any(self._attempts.get(place) != attempt_id for place in places):
                raise
            # The attempt was stopped while its bundle was fetched; the node goes on.
            task.uncancel()
            failed = AttemptPrepareFailed(attempt_id, "stopped while preparing")
        except OSError as error:
            failed = AttemptPrepareFailed(attempt_id, str(error), is_retryable=True)
        except HyperscaleError as error:
            is_retryable = isinstance(error, ExecutorLostError | BundleError)
            failed = AttemptPrepareFailed(
                attempt_id, error.message, error.hint, is_retryable=is_retryable
            )
        else:
            self._feed(AttemptPrepared(attempt_id))
            return
        for index in self._indices_of(attempt_id, places):
            await self._pool.wait_vacant(index)
        for place in places:
            self._leave(attempt_id, place)
        self._feed(failed)

    # --- events of executors ----------------------------------------------------------------

    def _on_event(self, index: int, event: protocol.ExecutorEvent) -> None:
        place = self._places[index]
        attempt_id = self._attempts.get(place)
        if attempt_id is None:
            return
        match event:
            case protocol.SlotReport():
                self._feed(PlaceReported(attempt_id, place, event.report))
            case protocol.ExecutorOutput():
                self._feed(PlacePrinted(attempt_id, place, event.stream, event.text))
            case protocol.SlotFinished():
                self._end(
                    PlaceEnded(
                        attempt_id,
                        place,
                        event.status,
                        error=event.reason,
                        report=event.report,
                        provided=event.provided,
                    )
                )
            case protocol.ExecutorDied():
                self._end(
                    PlaceEnded(
                        attempt_id,
                        place,
                        PartStatus.FAILED,
                        error=f"an executor of the part failed: {event.reason}",
                        is_dead=not event.blames_code,  # else a retry would fail alike
                    )
                )

    def _end(self, ended: PlaceEnded) -> None:
        self._feed(ended)
        self._spawn(self._vacate(ended.attempt_id, ended.place), f"vacate:{ended.place}")

    async def _vacate(self, attempt_id: AttemptId, place: int) -> None:
        await self._pool.wait_vacant(self._indices[place])
        self._leave(attempt_id, place)
        self._feed(PlaceVacated(attempt_id, place))

    def _leave(self, attempt_id: AttemptId, place: int) -> None:
        if self._attempts.get(place) == attempt_id:
            del self._attempts[place]
            if place >= self._cores and place in self._indices:
                self._pool.retire(self._indices[place])


def slots_of(command: PreparePart, bundle: Path) -> list[protocol.PrepareSlot]:
    """Return the command for each executor of a part."""
    return [
        protocol.PrepareSlot(
            bundle=str(bundle),
            file=command.file,
            job=command.attempt_id.job,
            workflow=command.attempt_id.workflow,
            plan=command.plan,
            slot=command.first_slot + index,
            slots=command.slots,
            context=command.context,
            log_level=command.log_level,
            elapsed_s=command.elapsed_s,
            iterations=iterations,
            static=command.static,
        )
        for index, iterations in enumerate(_iterations(command))
    ]


def _iterations(command: PreparePart) -> list[int | None]:
    """Return the iterations of each slot: None for the slot's share of the plan, otherwise its
    share of what earlier attempts have not done."""
    total = command.plan.iterations
    if total is None or not command.iterations_done:
        return [None] * command.cores
    slots = range(command.first_slot, command.first_slot + command.cores)
    whole = sum(share(total, command.slots, slot) for slot in slots)
    left = max(0, whole - command.iterations_done)
    return [share(left, command.cores, index) for index in range(command.cores)]


class UsageMeter:
    """CPU use and progress of all executors of a worker."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._cpu_s: dict[int, float] = {}  # process -> CPU time at the last measurement
        self._measured_s: float | None = None
        self._actions: dict[tuple[AttemptId, int], int] = {}  # (attempt, place) -> actions
        self._ended_actions = 0  # actions of attempts that have ended
        self._progress = ProgressMeter()

    def note_actions(self, attempt_id: AttemptId, place: int, count: int) -> None:
        """Note how many actions an executor has finished in an attempt."""
        self._actions[attempt_id, place] = count

    def measure(
        self, pids: Iterable[int], attempts: Collection[AttemptId], *, now_s: float
    ) -> float:
        """Return the share of the cores used since the last call; `attempts` have not ended."""
        for key in [key for key in self._actions if key[0] not in attempts]:
            self._ended_actions += self._actions.pop(key)
        total = self._ended_actions + sum(self._actions.values())
        self._progress.report(assigned=len(self._actions), actions=total, now_s=now_s)
        return self._cpu_share(pids, now_s)

    def progress(self, *, now_s: float) -> str:
        """Return the state of progress that is announced to members."""
        return str(self._progress.state(now_s=now_s))

    def _cpu_share(self, pids: Iterable[int], now_s: float) -> float:
        cpu_s = {pid: _cpu_s(pid) for pid in pids}
        # A process that is new has used all its CPU time since the last call.
        spent_s = sum(used_s - self._cpu_s.get(pid, 0.0) for pid, used_s in cpu_s.items())
        measured_s, self._measured_s, self._cpu_s = self._measured_s, now_s, cpu_s
        if measured_s is None or now_s <= measured_s:
            return 0.0
        return min(1.0, max(0.0, spent_s / ((now_s - measured_s) * self._cores)))


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process, 0 if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
