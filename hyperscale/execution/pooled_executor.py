"""One executor of a pool: its process, its phase and the slot it holds.

Decides when the executor has to be killed. A process that ended is replaced when the executor
is next given a slot.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from hyperscale.errors import InvariantError, RunError
from hyperscale.execution.box import ExecutorBox
from hyperscale.execution.lease import boottime_ns
from hyperscale.execution.limits import START_S
from hyperscale.execution.overdue import KillReason, LeaseLapse, OverdueWatch
from hyperscale.execution.process import (
    ExecutorLostError,
    ExecutorProcess,
    ExitInfo,
    spawn_executor,
)
from hyperscale.execution.protocol import (
    ChangeSlot,
    ExecutorDied,
    ExecutorEvent,
    ExecutorHello,
    ExecutorOutput,
    FromExecutor,
    GrantSlotRows,
    PrepareSlot,
    RefusalKind,
    RenewLease,
    ShareContext,
    SlotFinished,
    SlotPrepared,
    SlotRefused,
    SlotReport,
    SlotSetUp,
    SlotTearingDown,
    StartSlot,
    StopSlot,
)
from hyperscale.execution.slot_clock import SlotClock
from hyperscale.plan.changes import AppliedChange

_CHECK_OVERDUE_EVERY_S = 0.25
_CHECK_MEMORY_EVERY_S = 0.25
T = TypeVar("T")


class ExecutorPhase(Enum):
    GONE = "gone"  # the process has exited, or there is none yet
    STARTING = "starting"
    IDLE = "idle"
    PREPARING = "preparing"
    PREPARED = "prepared"
    RUNNING = "running"
    TEARING_DOWN = "tearing_down"


EXECUTOR_MOVES = {
    ExecutorPhase.GONE: {ExecutorPhase.STARTING},
    ExecutorPhase.STARTING: {ExecutorPhase.IDLE, ExecutorPhase.GONE},
    ExecutorPhase.IDLE: {ExecutorPhase.PREPARING, ExecutorPhase.GONE},
    ExecutorPhase.PREPARING: {
        ExecutorPhase.PREPARED,
        ExecutorPhase.TEARING_DOWN,  # a setup hook failed
        ExecutorPhase.IDLE,
        ExecutorPhase.GONE,
    },
    ExecutorPhase.PREPARED: {
        ExecutorPhase.RUNNING,
        ExecutorPhase.TEARING_DOWN,  # stopped before it started
        ExecutorPhase.GONE,
    },
    ExecutorPhase.RUNNING: {ExecutorPhase.TEARING_DOWN, ExecutorPhase.GONE},
    ExecutorPhase.TEARING_DOWN: {ExecutorPhase.IDLE, ExecutorPhase.GONE},
}

_HOLDS_SLOT = frozenset(ExecutorPhase) - {
    ExecutorPhase.GONE,
    ExecutorPhase.STARTING,
    ExecutorPhase.IDLE,
}
_MOVE_BY_MESSAGE = {
    ExecutorHello: ExecutorPhase.IDLE,
    SlotPrepared: ExecutorPhase.PREPARED,
    SlotRefused: ExecutorPhase.IDLE,
    SlotTearingDown: ExecutorPhase.TEARING_DOWN,
    SlotFinished: ExecutorPhase.IDLE,
}


class ExecutorEnd(StrEnum):
    """Why a process of an executor ended."""

    ASKED = "asked"  # it was idle, or its pool was closed
    KILLED = "killed"  # by its pool: its code did not stop, or it broke the protocol
    LEASE_EXPIRED = "lease_expired"  # by the kernel
    DIED = "died"  # it crashed, or something else killed it


class ExecutorCounts:
    """Processes that the executors of a pool have had."""

    def __init__(self) -> None:
        self.started = 0
        self.ended: Counter[ExecutorEnd] = Counter()

    @property
    def running(self) -> int:
        return self.started - self.ended.total()


class HeldSlot:
    """A slot of an executor, from its assignment on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, assignment: PrepareSlot) -> None:
        self.clock = SlotClock(assignment)
        self._grace_s = assignment.plan.grace_s_after(None)
        self.is_stopping = False
        # Done if the slot is stopped before its assignment was sent.
        self.called_off: asyncio.Future[None] = loop.create_future()
        self.answer: asyncio.Future[SlotPrepared | SlotRefused] = loop.create_future()
        # Fails with the reason if the slot was prepared and ended before it was announced.
        self.early_end: asyncio.Future[None] = loop.create_future()
        # Every slot of the workflow is ready: from now on the end of this one is an event.
        self.is_announced = False

    @property
    def lasts_s(self) -> float | None:
        """How long the slot lasts at most, to the cut of what is in flight; None: it is paused."""
        left_s = self.clock.left_s
        return None if left_s is None else left_s + self._grace_s


def _resolve(future: "asyncio.Future[T]", outcome: T | RunError) -> None:
    """Set the outcome of a future, unless it has one or is cancelled."""
    if future.done():
        return
    if isinstance(outcome, RunError):
        future.set_exception(outcome)
        future.exception()  # retrieved here: perhaps nothing waits for it
    else:
        future.set_result(outcome)


class _EndWatch:
    """Watches one process: calls `kill` if its slot does not end in time."""

    def __init__(self, process: ExecutorProcess, kill: Callable[[str, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._kill = kill
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0  # when the slot has to be over, while there is a timer
        self._lapse = LeaseLapse()
        self._heard_s = self._loop.time()
        self.is_tearing_down = False

    def note_message(self) -> None:
        self._heard_s = self._loop.time()

    def note_lease(self, deadline_boottime_ns: int) -> None:
        cpu_s, _ = self._process.usage()
        self._lapse.renewed(
            deadline_boottime_ns, now_s=self._loop.time(), heard_s=self._heard_s, cpu_s=cpu_s
        )

    def expect_end(self, *, in_s: float) -> None:
        """Kill the executor if its slot has not ended some time after `in_s`."""
        due_s = self._loop.time() + in_s
        if self._timer is not None and self._due_s <= due_s:
            return  # a repeated stop does not postpone the end
        self._disarm()
        self._due_s = due_s
        self._timer = self._loop.call_later(in_s, self._check, OverdueWatch(due_s=due_s))

    def reset(self) -> None:
        """Stop watching: the slot has ended, or another one begins."""
        self._disarm()
        self._lapse = LeaseLapse()
        self.is_tearing_down = False

    def reason_of_lapse(self, cpu_s: float) -> KillReason | None:
        """Return why the kernel killed the executor, if its lease had expired."""
        silent_s = self._loop.time() - self._heard_s
        return self._lapse.verdict(now_ns=boottime_ns(), silent_s=silent_s, cpu_s=cpu_s)

    def put_off(self) -> None:
        """Expect no end until `expect_end` is called again: the load was changed."""
        if not self.is_tearing_down:
            self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, overdue: OverdueWatch) -> None:
        # If this process was suspended, messages that arrived meanwhile are still unread.
        self._process.channel.drain()
        if self._timer is None:  # the end was among them
            return
        cpu_s, is_held_up = self._process.usage()
        reason = overdue.verdict(
            now_s=self._loop.time(),
            heard_s=self._heard_s,
            cpu_s=cpu_s,
            is_held_up=is_held_up,
            is_tearing_down=self.is_tearing_down,
        )
        if reason is not None:
            self._kill(*reason)
        else:
            self._timer = self._loop.call_later(_CHECK_OVERDUE_EVERY_S, self._check, overdue)


class _Launch(NamedTuple):
    """How the processes of an executor are started."""

    core: int | None
    environment: Mapping[str, str] | None
    box: ExecutorBox | None


class PooledExecutor:
    """One executor of a pool. `on_event` gets what it says about its slot, and its death."""

    def __init__(
        self,
        *,
        core: int | None,
        on_event: Callable[[ExecutorEvent], None],
        log_file: Path | None,
        counts: ExecutorCounts,
        environment: Mapping[str, str] | None = None,
        box: ExecutorBox | None = None,
    ) -> None:
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._launch = _Launch(core, environment, box)
        self._on_event = on_event
        self._log_file = log_file
        self._phase = ExecutorPhase.GONE
        self._slot: HeldSlot | None = None  # the last one it was given
        self._nice: int | None = None  # CPU weight of that slot; None: that of every executor
        self._is_idle = asyncio.Event()
        self._replacing = asyncio.Lock()
        self._spawn()

    def _spawn(self) -> None:
        self._become(ExecutorPhase.STARTING)
        self._is_leaving = False  # asked to exit: its end is not an event
        self._kill_reason: KillReason | None = None
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        try:
            self.process = ExecutorProcess(
                spawn_executor(*self._launch),
                on_message=self._on_message,
                on_garbage=self._on_garbage,
                on_output=self._on_output,
                on_exit=self._on_exit,
            )
        except ExecutorLostError:
            self._become(ExecutorPhase.GONE)  # started again when it is next given a slot
            raise
        self._counts.started += 1
        self._watch = _EndWatch(self.process, self.kill)
        if self._launch.box is not None:
            self._loop.call_later(_CHECK_MEMORY_EVERY_S, self._check_memory, self.process)

    def _check_memory(self, process: ExecutorProcess) -> None:
        if self._launch.box is None or process.has_exited:
            return
        over = self._launch.box.over_memory(process.pid)
        if over is not None and self._phase in _HOLDS_SLOT:
            self.kill(over, True)
        else:
            self._loop.call_later(_CHECK_MEMORY_EVERY_S, self._check_memory, process)

    def _become(self, phase: ExecutorPhase) -> None:
        """The only writer of the phase."""
        if phase not in EXECUTOR_MOVES[self._phase]:
            raise InvariantError(f"executor: {self._phase.name} -> {phase.name}")
        self._phase = phase

    # --- called by the pool ---------------------------------------------------------------

    def prepare(
        self, assignment: PrepareSlot, *, nice: int | None
    ) -> "tuple[HeldSlot, asyncio.Task[SlotPrepared | SlotRefused]]":
        """Give the executor a slot; the task ends with its answer, or RunError if it dies."""
        # Here, not in the task: a stop may come before the task begins.
        self._slot, self._nice = HeldSlot(self._loop, assignment), nice
        return self._slot, self._loop.create_task(self._prepare(assignment, self._slot))

    async def _prepare(self, assignment: PrepareSlot, slot: HeldSlot) -> SlotPrepared | SlotRefused:
        await self._replace_ended()
        await self._wait_started(slot.called_off)
        if not self.weigh(self._nice):
            self._is_leaving = True  # a new process may be given any weight
            await self._replace_ended()
            await self._wait_started(slot.called_off)
            self.weigh(self._nice)
        if slot.called_off.done():
            return SlotRefused(error="stopped while preparing", kind=RefusalKind.STOPPED)
        if self._phase is not ExecutorPhase.IDLE:
            raise InvariantError(f"an executor in phase {self._phase.name} was given a slot")
        if self._launch.box is not None:
            bundle = self._launch.box.admit(assignment.bundle)
            assignment = msgspec.structs.replace(assignment, bundle=bundle)
        self.process.mask(assignment.secrets.values())
        self.process.channel.send(assignment)  # first: a message that is too large changes nothing
        self.process.forget_last_words()
        self.process.runs_code = True
        self._watch.reset()
        self._is_idle.clear()
        self._become(ExecutorPhase.PREPARING)
        return await slot.answer

    async def start_if_ended(self) -> None:
        """Start the process if it has ended, and wait until it has started.

        Raises `ExecutorLostError`."""
        if self._phase not in _HOLDS_SLOT:
            await self._replace_ended()
        if self._phase is ExecutorPhase.STARTING:
            await self._wait_started()

    async def _replace_ended(self) -> None:
        async with self._replacing:
            if self._is_leaving or self._phase is ExecutorPhase.GONE:
                self.process.kill()
                await self.process.wait_gone()
                self._spawn()

    def weigh(self, nice: int | None) -> bool:
        """Set the CPU weight; return False if this process may not be given more weight again."""
        self._nice = nice
        # A process that starts sets its own nice value first; `_prepare` weighs it then.
        is_started = self._phase not in (ExecutorPhase.GONE, ExecutorPhase.STARTING)
        return not is_started or self.process.weight.set(nice)

    async def _wait_started(self, *called_off: "asyncio.Future[None]") -> None:
        """Wait until the process has said hello, or its slot is called off."""
        either = [self._greeted, *called_off]
        await asyncio.wait(either, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        # If this process was suspended, the hello may have arrived and be unread.
        self.process.channel.drain()
        if not any(each.done() for each in either):
            self.kill(f"it did not start within {START_S:g} s")
            await asyncio.wait([self._greeted])
        if self._greeted.done():
            self._greeted.result()

    def share_context(self, context: bytes) -> None:
        """Give a slot that waits for it the context that setup left."""
        if self._phase is ExecutorPhase.PREPARING:
            self.process.channel.send(ShareContext(context=context))

    def start(self, start_in_ms: float, since_s: float | None) -> None:
        if self._phase is ExecutorPhase.PREPARED and self._slot is not None:
            self._become(ExecutorPhase.RUNNING)
            self.process.channel.send(StartSlot(start_in_ms=start_in_ms, since_s=since_s))
            self._slot.clock.start(since_s)
            self._slot.clock.begin()
            self._expect_end(self._slot, start_in_s=start_in_ms / 1000)

    def change(self, changes: Sequence[AppliedChange]) -> None:
        """Change the load of a slot that is prepared or runs; `changes` are all so far."""
        if (
            self._phase in (ExecutorPhase.PREPARED, ExecutorPhase.RUNNING)
            and self._slot is not None
        ):
            self.process.channel.send(ChangeSlot(changes=list(changes)))
            is_news = self._slot.clock.change(changes)
            if is_news and self._phase is ExecutorPhase.RUNNING and not self._slot.is_stopping:
                self._watch.put_off()
                self._expect_end(self._slot)

    def grant_rows(self, limit: int) -> None:
        """Let a slot that is prepared or runs use more rows."""
        if self._phase in (ExecutorPhase.PREPARED, ExecutorPhase.RUNNING):
            self.process.channel.send(GrantSlotRows(limit=limit))

    def _expect_end(self, slot: HeldSlot, *, start_in_s: float = 0.0) -> None:
        if slot.lasts_s is not None:
            self._watch.expect_end(in_s=start_in_s + slot.lasts_s)

    def renew_lease(self, deadline_boottime_ns: int) -> None:
        if self._phase in _HOLDS_SLOT:
            self._watch.note_lease(deadline_boottime_ns)
            self.process.channel.send(RenewLease(deadline_boottime_ns=deadline_boottime_ns))

    def stop(self, reason: str, grace_s: float) -> None:
        if self._phase in _HOLDS_SLOT:
            if self._slot is not None:
                self._slot.is_stopping = True
            self.process.channel.send(StopSlot(reason=reason, grace_s=grace_s))
            self._watch.expect_end(in_s=grace_s)
        elif self._slot is not None:
            _resolve(self._slot.called_off, None)

    def kill(self, reason: str, blames_code: bool = False) -> None:
        if not self.process.has_exited:
            self._kill_reason = self._kill_reason or KillReason(reason, blames_code)
            self.process.kill()

    def leave(self) -> None:
        """Ask the process to exit: its teardown hooks run."""
        if not self.process.has_exited:
            self._is_leaving = True
            self.process.terminate()

    async def wait_idle(self) -> None:
        """Return when it holds no slot."""
        if self._phase in _HOLDS_SLOT:
            await self._is_idle.wait()

    async def wait_vacant(self) -> None:
        """Return when no user code can be running: it is idle, or the process has exited."""
        await self.wait_idle()
        if self._is_leaving or self._phase is ExecutorPhase.GONE:
            await self.process.wait_gone()

    # --- called by the process ------------------------------------------------------------

    def _on_message(self, message: FromExecutor) -> None:
        self._watch.note_message()
        phase = _MOVE_BY_MESSAGE.get(type(message))
        if phase is not None:
            if phase not in EXECUTOR_MOVES[self._phase]:
                self._on_garbage(f"{type(message).__name__} while {self._phase.value}")
                return
            self._become(phase)
        slot = self._slot
        match message:
            case ExecutorHello():
                self._greet(message)
            case SlotReport() | SlotSetUp():
                self._on_event(message)
            case _ if slot is None:
                self._on_garbage(f"{type(message).__name__} without a slot")
            case SlotPrepared():
                _resolve(slot.answer, message)
            case SlotRefused():
                self._release(is_leaving=message.tainted)
                _resolve(slot.answer, message)
            case SlotTearingDown():
                if slot.is_announced:  # else hooks of a failed setup run
                    self._on_event(message)
                self._watch.is_tearing_down = True
            case SlotFinished():
                self.process.flush_output()  # the output of a slot comes before its end
                self._release(is_leaving=message.tainted)
                if slot.is_announced:
                    self._on_event(message)
                else:  # requests of its setup hooks count all the same
                    self._on_event(SlotReport(report=message.report))
                    _resolve(slot.early_end, RunError("stopped while preparing"))

    def _greet(self, hello: ExecutorHello) -> None:
        if self._launch.box is not None:
            self._launch.box.in_force = hello.boxed
        _resolve(self._greeted, None)

    def _release(self, *, is_leaving: bool) -> None:
        self._is_leaving = self._is_leaving or is_leaving or self._launch.box is not None
        self._watch.reset()
        self._is_idle.set()
        if is_leaving:
            self.kill("code of its slot was still running when the slot ended")
        elif self._launch.box is not None:
            self.process.kill()  # code of another job must not run where this code did
        else:
            self.process.runs_code = False

    def _on_garbage(self, reason: str) -> None:
        self.kill(f"it broke the executor protocol: {reason}")

    def _on_output(self, output: ExecutorOutput) -> None:
        self._on_event(output)
        if self._log_file is None:
            return
        try:
            self._log_file.parent.mkdir(parents=True, exist_ok=True)
            with self._log_file.open("a", encoding="utf-8") as file:
                file.write(output.text)
        except OSError as error:  # the run continues without the file
            text = f"{self._log_file}: output is no longer saved: {error.strerror}\n"
            self._log_file = None
            self._on_event(ExecutorOutput(stream="stderr", text=text))

    def _on_exit(self, info: ExitInfo) -> None:
        phase, slot = self._phase, self._slot
        self._become(ExecutorPhase.GONE)
        if self._launch.box is not None:
            self._launch.box.remove()
        end, why = self._end_of(phase, info)
        self._counts.ended[end] += 1
        self._watch.reset()
        _resolve(self._greeted, ExecutorLostError(f"an executor failed to start: {why.reason}"))
        if slot is not None and phase in _HOLDS_SLOT:
            lost = ExecutorLostError(f"an executor failed while it prepared a slot: {why.reason}")
            _resolve(slot.answer, lost)
            if not slot.is_announced:
                _resolve(slot.early_end, lost)
            elif not self._is_leaving:
                self._on_event(ExecutorDied(reason=why.reason, blames_code=why.blames_code))
        self._is_idle.set()

    def _end_of(self, phase: ExecutorPhase, info: ExitInfo) -> tuple[ExecutorEnd, KillReason]:
        """Return why the process ended: for counts, and in words."""
        if self._kill_reason is not None:
            return ExecutorEnd.KILLED, self._kill_reason
        if phase is ExecutorPhase.RUNNING and info.is_killed:
            lapsed = self._watch.reason_of_lapse(info.cpu_s)
            if lapsed is not None:
                return ExecutorEnd.LEASE_EXPIRED, lapsed
        is_late = phase is ExecutorPhase.TEARING_DOWN
        why = KillReason(
            info.describe() + (" during teardown" if is_late else ""),
            # Teardown hooks would end another executor too, and the load has had its time.
            blames_code=is_late and not info.is_killed,
        )
        return ExecutorEnd.ASKED if self._is_leaving else ExecutorEnd.DIED, why
