"""The executors of a worker, by place: starts and stops them for the agent, measures their use.

Places beyond the worker's cores get an executor when one is needed, pinned to no core, and
lose it afterwards.
"""

import asyncio
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from hyperscale.config.schema import ExecutorsSection
from hyperscale.errors import HyperscaleError, InputError
from hyperscale.execution import protocol
from hyperscale.execution.box import BoxSettings
from hyperscale.execution.pool import ExecutorPool
from hyperscale.execution.pooled_executor import ExecutorCounts
from hyperscale.execution.process import ExecutorLostError
from hyperscale.health.signals import ProgressMeter
from hyperscale.jobs.agent.events import (
    AgentEvent,
    AttemptPrepared,
    AttemptPrepareFailed,
    AttemptSetUp,
    ChangeAttempt,
    GrantAttemptRows,
    LeaseAttempt,
    PlaceEnded,
    PlacePrinted,
    PlaceReported,
    PlaceVacated,
    PrepareAttempt,
    ShareWithAttempt,
    StartAttempt,
    StopAttempt,
    WeighAttempt,
)
from hyperscale.jobs.messages import AttemptId, PreparePart
from hyperscale.nodes.agent.manager_links import SpawnTask
from hyperscale.nodes.agent.storage import BundleError
from hyperscale.plan import share
from hyperscale.plan.status import PartStatus

FetchBundle = Callable[[str, str], Awaitable[Path]]
"""Return the path of the bundle with this SHA-256; the second argument is the job leader."""

FetchParameters = Callable[[str, str], Awaitable[dict[str, str]]]
"""Return the secret parameters with this id; the second argument is the job leader."""

_NS = 1_000_000_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


# What programs need to run and to show text and times; nothing that holds a credential.
_VISIBLE = ("PATH", "LANG", "LC_*", "TZ", "PYTHON*")


def visible_environment(environment: Mapping[str, str], added: Iterable[str]) -> dict[str, str]:
    """Return the variables that tests may see. `added` has further names; `*` ends a prefix."""
    patterns = (*_VISIBLE, *added)
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def box_of(config: ExecutorsSection, data: Path) -> BoxSettings | None:
    """Return the box that a worker's configuration asks for; None: executors have none."""
    if config.sandbox == "off":
        return None
    return BoxSettings(
        directory=data.absolute() / "executors",
        hidden=data,
        is_required=config.sandbox == "required",
        read=config.read,
        write=config.write,
        memory_mib=config.memory_mib,
        processes=config.processes,
        open_files=config.open_files,
    )


class WorkerExecutors:
    """Executors by place, and the attempt that each belongs to."""

    def __init__(
        self,
        cores: int,
        *,
        worker: str,
        feed: Callable[[AgentEvent], None],
        fetch: FetchBundle,
        fetch_secrets: FetchParameters,
        spawn: SpawnTask,
        visible: Iterable[str] = (),
        box: BoxSettings | None = None,
    ) -> None:
        self._cores = cores
        self._worker = worker
        self._feed = feed
        self._fetch = fetch
        self._fetch_secrets = fetch_secrets
        self._spawn = spawn
        self._pool = ExecutorPool(
            cores,
            on_event=self._on_event,
            environment=visible_environment(os.environ, visible),
            box=box,
        )
        self._indices = {place: place for place in range(cores)}  # place -> index in the pool
        self._places = dict(self._indices)  # index in the pool -> place
        self._attempts: dict[int, AttemptId] = {}  # by place
        self._nice: dict[AttemptId, int] = {}  # of attempts that share cores
        # What setup left, by place of the executors that wait until all of their attempt do.
        self._set_up: dict[int, bytes] = {}
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

    @property
    def boxed(self) -> str:
        """What is in force of the executors' box; empty without one."""
        return self._pool.boxed

    @property
    def counts(self) -> ExecutorCounts:
        return self._pool.counts

    async def start_ended(self) -> None:
        """Start executors whose process has ended; raise `RunError` if one does not start."""
        await self._pool.start_ended()

    # --- effects ----------------------------------------------------------------------------

    def prepare(self, effect: PrepareAttempt) -> None:
        """Fetch the bundle and prepare the executors at the places of a new attempt."""
        attempt_id = effect.command.attempt_id
        for place in effect.places:
            self._attempts[place] = attempt_id
        name = f"prepare:{attempt_id.job}/{attempt_id.workflow}/{attempt_id.part}"
        work = self._prepare(effect.command, effect.places)
        self._fetching[attempt_id] = self._spawn(work, name)

    def weigh(self, effect: WeighAttempt) -> None:
        """Set the CPU weight of executors, or have them prepared with it."""
        self._nice[effect.attempt_id] = effect.nice
        self._pool.weigh(self._indices_of(effect.attempt_id, effect.places), effect.nice)

    def share_context(self, effect: ShareWithAttempt) -> None:
        """Tell executors that wait for it the context that setup left."""
        indices = self._indices_of(effect.attempt_id, effect.places)
        self._pool.share_context(indices, effect.context)

    def start(self, effect: StartAttempt) -> None:
        """Start prepared executors."""
        indices = self._indices_of(effect.attempt_id, effect.places)
        self._pool.start(indices, effect.start_in_ms, since_s=effect.since_s)

    def change(self, effect: ChangeAttempt) -> None:
        """Change the load of executors."""
        self._pool.change(self._indices_of(effect.attempt_id, effect.places), effect.changes)

    def grant_rows(self, effect: GrantAttemptRows) -> None:
        """Let executors use more rows."""
        self._pool.grant_rows(self._indices_of(effect.attempt_id, effect.places), effect.limit)

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
                secrets = await self._fetch_secrets(command.secrets, command.leader)
            finally:
                self._fetching.pop(attempt_id, None)
            indices = self._indices_of(attempt_id, places)
            nice = self._nice.get(attempt_id)
            await self._pool.prepare(indices, slots_of(command, bundle, secrets), nice=nice)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or any(self._attempts.get(place) != attempt_id for place in places):
                raise
            # The attempt was stopped while its bundle was fetched; the node goes on.
            task.uncancel()
            failed = AttemptPrepareFailed(attempt_id, "stopped while preparing")
        except OSError as error:
            failed = AttemptPrepareFailed(attempt_id, str(error), is_retryable=True)
        except InputError as error:
            # The file was imported where it was submitted, so this worker is what differs.
            here = f"{sys.prefix} of {self._worker} has Python {platform.python_version()}"
            hint = f"{error.hint}; {here}" if error.hint else here
            failed = AttemptPrepareFailed(attempt_id, f"on {self._worker}: {error.message}", hint)
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
        # Setup may have run although another executor failed: then teardown is owed.
        left = b"".join(self._set_up.pop(place, b"") for place in places)
        for place in places:
            self._leave(attempt_id, place)
        if left:
            self._feed(AttemptSetUp(attempt_id, left))
        self._feed(failed)

    # --- events of executors ----------------------------------------------------------------

    def _on_event(self, index: int, event: protocol.ExecutorEvent) -> None:
        place = self._places[index]
        attempt_id = self._attempts.get(place)
        if attempt_id is None:
            return
        match event:
            case protocol.SlotSetUp():
                self._note_set_up(attempt_id, place, event.context)
            case protocol.SlotReport():
                self._feed(PlaceReported(attempt_id, place, event.report, drawn=event.drawn))
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
                        drawn=event.drawn,
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

    def _note_set_up(self, attempt_id: AttemptId, place: int, context: bytes) -> None:
        """Report what setup left once every executor of the attempt waits for it."""
        self._set_up[place] = context
        places = [each for each, held in self._attempts.items() if held == attempt_id]
        if all(each in self._set_up for each in places):
            left = [self._set_up.pop(each) for each in places]
            self._feed(AttemptSetUp(attempt_id, b"".join(left)))  # slot 0 alone left something

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
            if attempt_id not in self._attempts.values():
                self._nice.pop(attempt_id, None)
            self._set_up.pop(place, None)
            if place >= self._cores and place in self._indices:
                self._pool.retire(self._indices[place])


def slots_of(
    command: PreparePart, bundle: Path, secrets: dict[str, str]
) -> list[protocol.PrepareSlot]:
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
            parameters=command.parameters,
            secrets=secrets,
            set_up=command.set_up,
            changes=command.changes,
            rows=command.rows,
            role=protocol.SlotRole.TEAR_DOWN
            if command.tears_down
            else protocol.role_of(command.plan, command.first_slot + index, command.set_up),
        )
        for index, iterations in enumerate(_iterations(command))
    ]


def _iterations(command: PreparePart) -> list[int | None]:
    """Return the iterations of each slot: None for the slot's share of the plan, otherwise its
    share of what earlier attempts have not done."""
    if not command.plan.is_counted or not command.iterations_done:
        return [None] * command.cores
    slots = range(command.first_slot, command.first_slot + command.cores)
    whole = sum(command.plan.iterations_of(command.slots, slot) or 0 for slot in slots)
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
