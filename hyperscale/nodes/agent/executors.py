"""A worker's executors as its agent sees them: places that hold runs.

Carries out what `jobs.agent.core` wants of processes and says what came of it. Places beyond the
cores are made when they are first needed, and pinned to none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from hyperscale.errors import HyperscaleError, InputError
from hyperscale.execution import protocol
from hyperscale.execution.supervisor import ExecutorLostError, ExecutorPool
from hyperscale.jobs.agent.events import (
    Ended,
    Event,
    LeaseRun,
    Prepared,
    PrepareFailed,
    PrepareRun,
    Printed,
    Reported,
    StartRun,
    StopRun,
    Vacated,
)
from hyperscale.jobs.messages import AttemptId, PreparePart
from hyperscale.plan import share
from hyperscale.plan.status import PartStatus

FetchBundle = Callable[[PreparePart], Awaitable[Path]]
Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]

_NS = 1_000_000_000


class Executors:
    def __init__(
        self,
        cores: int,
        *,
        feed: Callable[[Event], None],
        fetch: FetchBundle,
        spawn: Spawn,
    ) -> None:
        self._cores = cores
        self._feed = feed
        self._fetch = fetch
        self._spawn = spawn
        self._pool = ExecutorPool(cores, on_event=self._on_event)
        self._indices = {place: place for place in range(cores)}  # place to number in the pool
        self._places = dict(self._indices)
        self._runs: dict[int, AttemptId] = {}  # by place
        self._fetching: dict[AttemptId, asyncio.Task[None]] = {}

    async def open(self) -> None:
        await self._pool.__aenter__()

    async def close(self) -> None:
        for task in self._fetching.values():
            task.cancel()
        await self._pool.close()

    @property
    def pids(self) -> list[int]:
        return self._pool.pids

    # --- effects --------------------------------------------------------------------------

    def prepare(self, effect: PrepareRun) -> None:
        run = effect.command.run
        for place in effect.places:
            self._runs[place] = run
        work = self._prepare(effect.command, effect.places)
        self._fetching[run] = self._spawn(work, f"prepare:{run.job}/{run.workflow}/{run.part}")

    def start(self, effect: StartRun) -> None:
        self._pool.start(self._of(effect.run, effect.places), effect.start_in_ms)

    def renew(self, effect: LeaseRun) -> None:
        self._pool.renew_lease(self._of(effect.run, effect.places), round(effect.until_s * _NS))

    def stop(self, effect: StopRun) -> None:
        # A task that is cancelled before its first step takes none, and nobody would say that
        # the run is over: what is prepared has begun by then, also if told in the same breath.
        asyncio.get_running_loop().call_soon(self._stop, effect)

    def _stop(self, effect: StopRun) -> None:
        fetching = self._fetching.get(effect.run)
        if fetching is not None:
            fetching.cancel()  # its code is not here yet; `_prepare` says what follows
        self._pool.stop(self._of(effect.run, effect.places), effect.reason, effect.grace_s)

    def _of(self, run: AttemptId, places: tuple[int, ...]) -> list[int]:
        """Where the run still is: what is meant for it is for nobody who came after it."""
        return [
            self._indices[place]
            for place in places
            if place in self._indices and self._runs.get(place) == run
        ]

    def _grow(self, place: int) -> None:
        if place not in self._indices:
            self._indices[place] = self._pool.grow()
            self._places[self._indices[place]] = place

    # --- preparing ------------------------------------------------------------------------

    async def _prepare(self, command: PreparePart, places: tuple[int, ...]) -> None:
        run = command.run
        try:
            try:
                for place in places:
                    self._grow(place)
                bundle = await self._fetch(command)
            finally:
                self._fetching.pop(run, None)
            await self._pool.prepare(self._of(run, places), assignments(command, bundle))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not self._is_open(places, run):
                raise
            # Told to stop while the bundle was on its way; the node itself goes on.
            task.uncancel()
            failed = PrepareFailed(run, "stopped while preparing")
        except InputError as error:
            failed = PrepareFailed(run, error.message, error.hint, is_input=True)
        except (HyperscaleError, OSError) as error:
            is_ours = isinstance(error, ExecutorLostError | OSError | BundleError)
            hint = error.hint if isinstance(error, HyperscaleError) else ""
            text = error.message if isinstance(error, HyperscaleError) else str(error)
            failed = PrepareFailed(run, text, hint, is_retryable=is_ours)
        else:
            self._feed(Prepared(run))
            return
        for index in self._of(run, places):
            await self._pool.wait_vacant(index)
        for place in places:
            self._leave(run, place)
        self._feed(failed)

    def _is_open(self, places: tuple[int, ...], run: AttemptId) -> bool:
        return all(self._runs.get(place) == run for place in places)

    # --- what executors say ---------------------------------------------------------------

    def _on_event(self, index: int, event: protocol.ExecutorEvent) -> None:
        place = self._places[index]
        run = self._runs.get(place)
        if run is None:
            return
        match event:
            case protocol.SlotReport():
                self._feed(Reported(run, place, event.report))
            case protocol.ExecutorOutput():
                self._feed(Printed(run, place, event.stream, event.text))
            case protocol.SlotFinished():
                self._end(
                    Ended(
                        run,
                        place,
                        event.status,
                        error=event.error,
                        report=event.report,
                        provided=event.provided,
                    )
                )
            case protocol.ExecutorDied():
                how = "had to be killed" if event.blames_code and event.signal else "died"
                error = f"an executor of the part {how}: {event.reason}"
                is_dead = not event.blames_code  # else it failed by itself, and would again
                self._end(Ended(run, place, PartStatus.FAILED, error=error, is_dead=is_dead))
            case _:
                pass

    def _end(self, ended: Ended) -> None:
        self._feed(ended)
        self._spawn(self._vacate(ended.run, ended.place), f"vacate:{ended.place}")

    async def _vacate(self, run: AttemptId, place: int) -> None:
        await self._pool.wait_vacant(self._indices[place])
        self._leave(run, place)
        self._feed(Vacated(run, place))

    def _leave(self, run: AttemptId, place: int) -> None:
        if self._runs.get(place) == run:
            del self._runs[place]
            if place >= self._cores and place in self._indices:  # seldom needed, so not kept
                self._pool.retire(self._indices[place])


class BundleError(HyperscaleError):
    """The code of a run could not be brought here: another worker may have better luck."""


def assignments(command: PreparePart, bundle: Path) -> list[protocol.PrepareSlot]:
    """What each executor of a part is told."""
    return [
        protocol.PrepareSlot(
            bundle=str(bundle),
            file=command.file,
            job=command.run.job,
            workflow=command.run.workflow,
            plan=command.plan,
            slot=command.first_slot + index,
            slots=command.slots,
            context=command.context,
            log_level=command.log_level,
            attempt=command.run.attempt,
            elapsed_s=command.elapsed_s,
            iterations=iterations,
            static=command.static,
        )
        for index, iterations in enumerate(_iterations(command))
    ]


def _iterations(command: PreparePart) -> list[int | None]:
    """Of each slot: its share, or its part of what earlier attempts of the part have left."""
    total = command.plan.iterations
    if total is None or not command.iterations_done:
        return [None] * command.cores
    slots = range(command.first_slot, command.first_slot + command.cores)
    whole = sum(share(total, command.slots, slot) for slot in slots)
    left = max(0, whole - command.iterations_done)
    return [share(left, command.cores, index) for index in range(command.cores)]
