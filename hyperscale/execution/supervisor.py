"""The parent's side of executors: a pool that starts, drives, watches and ends them.

Decides when an executor has to be killed; what a part's outcome means for the run is for
the caller, who hears of everything through `on_event`. Runs on any asyncio loop. It never
imports user code and never looks inside the context it passes on.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from hyperscale.config import GRACE_S
from hyperscale.errors import HyperscaleError, InputError, InvariantError, RunError
from hyperscale.execution.cores import default_executors, pinned_cores
from hyperscale.execution.lease import boottime_ns
from hyperscale.execution.limits import CLOSE_GRACE_S, START_S
from hyperscale.execution.overdue import KillReason, LeaseLapse, OverdueWatch
from hyperscale.execution.process import ExecutorLostError, ExecutorProcess, ExitInfo
from hyperscale.execution.protocol import (
    ExecutorDied,
    ExecutorEvent,
    ExecutorHello,
    ExecutorOutput,
    FromExecutor,
    PrepareSlot,
    RefusalKind,
    RenewLease,
    SlotFinished,
    SlotPrepared,
    SlotRefused,
    SlotReport,
    SlotTearingDown,
    StartSlot,
    StopSlot,
)

__all__ = ["ExecutorLostError", "ExecutorPool", "default_executors"]


_WATCH_EVERY_S = 0.25


class _Phase(Enum):
    STARTING = auto()
    IDLE = auto()
    PREPARING = auto()
    PREPARED = auto()
    RUNNING = auto()
    TEARING_DOWN = auto()
    GONE = auto()


_HOLDS_PART = frozenset(
    {_Phase.PREPARING, _Phase.PREPARED, _Phase.RUNNING, _Phase.TEARING_DOWN},
)


class _Executor:
    """One place in the pool: a process, replaced when it is gone, and what it is doing."""

    def __init__(
        self, *, core: int | None, on_event: Callable[[ExecutorEvent], None], log_file: Path | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._on_event = on_event
        self._log_file = log_file
        self._log: TextIO | None = None
        # Done once it is told to stop while its part is still on its way here.
        self._called_off: asyncio.Future[None] = self._loop.create_future()
        # Done with the reason if its part was prepared and ended before it was announced.
        self.early_end: asyncio.Future[RunError] = self._loop.create_future()
        self._spawn()

    def _spawn(self) -> None:
        self.phase = _Phase.STARTING
        self._is_leaving = False  # told to exit: its end is no news
        self._verdict: KillReason | None = None  # why it is killed
        self._lapse = LeaseLapse()  # of the lease of its part
        # Its part is one of a workflow that is ready in every slot: its end is an event.
        self._is_announced = False
        self._run_s = 0.0
        self._heard_s = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._due_s = 0.0  # when its part has to be over, while that is watched
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._answer: asyncio.Future[SlotPrepared | SlotRefused] | None = None
        self._idle = asyncio.Event()
        try:
            self.process = ExecutorProcess.spawn(
                core=self._core,
                on_message=self._on_message,
                on_garbage=self._on_garbage,
                on_output=self._on_output,
                on_exit=self._on_exit,
            )
        except ExecutorLostError:
            self.phase = _Phase.GONE  # tried again when it is next given a part
            raise

    # --- what the pool asks of it ---------------------------------------------------------

    def prepare(self, assignment: PrepareSlot) -> "asyncio.Future[SlotPrepared | SlotRefused]":
        """The executor's answer; RunError if it dies instead of answering."""
        # Now, not in the task: a stop may come before that begins.
        self._called_off = self._loop.create_future()
        self.early_end = self._loop.create_future()
        self._is_announced = False
        return asyncio.ensure_future(self._prepare(assignment))

    async def _prepare(self, assignment: PrepareSlot) -> SlotPrepared | SlotRefused:
        if self._is_leaving or self.phase is _Phase.GONE:
            self.process.kill()
            await self.process.wait_gone()
            self._spawn()
        await self._come_up()
        if self._called_off.done():
            return SlotRefused(error="stopped while preparing", kind=RefusalKind.STOPPED)
        if self.phase is not _Phase.IDLE:
            raise InvariantError(f"an executor in phase {self.phase.name} was given a part")
        self.process.send(assignment)  # first: what cannot be sent is not being prepared
        self.process.forget_last_words()
        self.process.runs_code = True
        self._answer = self._loop.create_future()
        self._run_s = assignment.run_s
        self._lapse = LeaseLapse()
        self._idle.clear()
        self.phase = _Phase.PREPARING
        return await self._answer

    async def _come_up(self) -> None:
        """Returns when it has said that it is there, or nobody wants that any more."""
        either = [self._greeted, self._called_off]
        await asyncio.wait(either, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        # Perhaps it was this process that stood still, and its word is waiting.
        self.process.drain()
        if not any(each.done() for each in either):
            self.kill(f"it did not say within {START_S:g} s that it is there")
            await asyncio.wait([self._greeted])
        if self._greeted.done():
            self._greeted.result()

    def start(self, start_in_ms: float) -> None:
        if self.phase is _Phase.PREPARED:
            self.phase = _Phase.RUNNING
            self.process.send(StartSlot(start_in_ms=start_in_ms))
            self._expect_end(in_s=start_in_ms / 1000 + self._run_s + GRACE_S)

    def renew_lease(self, deadline_boottime_ns: int) -> None:
        if self.phase in _HOLDS_PART:
            cpu_s, _ = self.process.usage()
            self._lapse.renewed(
                deadline_boottime_ns, now_s=self._loop.time(), heard_s=self._heard_s, cpu_s=cpu_s
            )
            self.process.send(RenewLease(deadline_boottime_ns=deadline_boottime_ns))

    def stop(self, reason: str, grace_s: float) -> None:
        if self.phase in _HOLDS_PART:
            self.process.send(StopSlot(reason=reason, grace_s=grace_s))
            self._expect_end(in_s=grace_s)
        elif not self._called_off.done():
            self._called_off.set_result(None)

    def announce(self) -> None:
        """Every slot is ready: from here on it is heard how its part ends."""
        self._is_announced = True

    def kill(self, reason: str, *, blames_code: bool = False) -> None:
        if not self.process.has_exited:
            self._verdict = self._verdict or KillReason(reason, blames_code)
            self.process.kill()

    def leave(self) -> None:
        if not self.process.has_exited:
            self._is_leaving = True
            self.process.terminate()

    async def wait_idle(self) -> None:
        """Returns when it holds no part (or is gone)."""
        if self.phase in _HOLDS_PART:
            await self._idle.wait()

    async def wait_vacant(self) -> None:
        """Returns when no code of a part can be running: idle, or the process really gone."""
        await self.wait_idle()
        if self._is_leaving or self.phase is _Phase.GONE:
            await self.process.wait_gone()

    def close_log(self) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):  # what did not fit was told when it was written
                self._log.close()

    # --- what the process says ------------------------------------------------------------

    def _on_message(self, message: FromExecutor) -> None:
        self._heard_s = self._loop.time()
        match message:
            case ExecutorHello():
                self.phase = _Phase.IDLE
                if not self._greeted.done():
                    self._greeted.set_result(None)
            case SlotPrepared():
                self.phase = _Phase.PREPARED
                self._resolve(message)
            case SlotRefused():
                self._become_idle(is_leaving=message.tainted)
                self._resolve(message)
            case SlotTearingDown():
                if self._is_announced:  # else the part never was: hooks of a failed setup run
                    self._on_event(message)
                self.phase = _Phase.TEARING_DOWN
            case SlotReport():
                self._on_event(message)
            case SlotFinished():
                # What the part printed comes before its end.
                self.process.flush_output()
                self._become_idle(is_leaving=message.tainted)
                if self._is_announced:
                    self._on_event(message)
                else:  # what its setup sent was sent
                    self._on_event(SlotReport(report=message.report))
                    self._end_early(RunError("stopped while preparing"))

    def _on_garbage(self, reason: str) -> None:
        self.kill(f"it broke the executor protocol: {reason}")

    def _on_output(self, output: ExecutorOutput) -> None:
        self._on_event(output)
        if self._log_file is None:
            return
        try:
            if self._log is None:
                self._log_file.parent.mkdir(parents=True, exist_ok=True)
                self._log = self._log_file.open("a", encoding="utf-8")
            self._log.write(output.text)
            self._log.flush()
        except OSError as error:  # the run goes on without it
            text = f"{self._log_file}: not written any more: {error.strerror}\n"
            self._log_file = None
            self._on_event(ExecutorOutput(stream="stderr", text=text))

    def _on_exit(self, info: ExitInfo) -> None:
        phase, self.phase = self.phase, _Phase.GONE
        self._disarm()
        verdict = self._verdict or self._judge(phase, info)
        reason = verdict.reason
        if not self._greeted.done():
            self._greeted.set_exception(
                ExecutorLostError(f"an executor ended while starting: {reason}")
            )
            self._greeted.exception()  # looked at: nobody may be waiting, and that is no error
        lost = ExecutorLostError(f"the executor ended while preparing: {reason}")
        self._resolve(lost)
        if phase in _HOLDS_PART and not self._is_announced:
            self._end_early(lost)
        elif phase in _HOLDS_PART and not self._is_leaving:
            self._on_event(
                ExecutorDied(
                    pid=self.process.pid,
                    reason=reason,
                    exit_code=info.exit_code,
                    signal=info.signal,
                    blames_code=verdict.blames_code,
                )
            )
        self._idle.set()

    def _judge(self, phase: _Phase, info: ExitInfo) -> KillReason:
        """Why it ended, if nobody here has ended it."""
        if phase is _Phase.RUNNING and info.signal == signal.SIGKILL:
            silent_s = self._loop.time() - self._heard_s
            lapsed = self._lapse.verdict(now_ns=boottime_ns(), silent_s=silent_s, cpu_s=info.cpu_s)
            if lapsed is not None:
                return lapsed
        is_late = phase is _Phase.TEARING_DOWN
        return KillReason(
            info.describe() + (" while it tore down" if is_late else ""),
            # Hooks that tear down would do it again, and the load has had its time.
            blames_code=is_late and info.signal != signal.SIGKILL,
        )

    def _end_early(self, reason: RunError) -> None:
        if not self.early_end.done():
            self.early_end.set_result(reason)

    def _resolve(self, answer: SlotPrepared | SlotRefused | RunError) -> None:
        if self._answer is None or self._answer.done():
            return
        if isinstance(answer, RunError):
            self._answer.set_exception(answer)
        else:
            self._answer.set_result(answer)

    def _become_idle(self, *, is_leaving: bool) -> None:
        self.phase = _Phase.IDLE
        self._is_leaving = self._is_leaving or is_leaving
        self._disarm()
        self._idle.set()
        if is_leaving:
            # Code of the part is still running there: nothing of it may outlive the part.
            self.process.kill()
        else:
            self.process.runs_code = False

    # --- an end that does not come --------------------------------------------------------

    def _expect_end(self, *, in_s: float) -> None:
        due_s = self._loop.time() + in_s
        if self._watch is not None and self._due_s <= due_s:
            return  # a stop that is repeated does not put off the end
        self._disarm()
        self._due_s = due_s
        self._watch = self._loop.call_later(in_s, self._check_overdue, OverdueWatch(due_s=due_s))

    def _disarm(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _check_overdue(self, overdue: OverdueWatch) -> None:
        # Perhaps it was this process that stood still, and what it missed is waiting.
        self.process.drain()
        if self._watch is None:  # the end was among it
            return
        cpu_s, is_held_up = self.process.usage()
        verdict = overdue.verdict(
            now_s=self._loop.time(),
            heard_s=self._heard_s,
            cpu_s=cpu_s,
            is_held_up=is_held_up,
            is_tearing_down=self.phase is _Phase.TEARING_DOWN,
        )
        if verdict is not None:
            self.kill(verdict.reason, blames_code=verdict.blames_code)
        else:
            self._watch = self._loop.call_later(_WATCH_EVERY_S, self._check_overdue, overdue)


class ExecutorPool:
    """`size` executors, started before they are needed. An async context manager.

    `on_event(executor_id, event)` is called on the loop with every `SlotReport`,
    `SlotTearingDown`, `SlotFinished`, `ExecutorOutput` and `ExecutorDied` (only of an executor
    that held a slot). With `log_dir`, the output of executor N is also appended to
    `executor-N.log` there.
    """

    def __init__(
        self,
        size: int,
        *,
        on_event: Callable[[int, ExecutorEvent], None],
        log_dir: Path | None = None,
    ) -> None:
        if size < 1:
            raise InvariantError(f"a pool of {size} executors")
        self._size = size
        self._on_event = on_event
        self._log_dir = log_dir
        self._executors: list[_Executor] = []

    async def __aenter__(self) -> Self:
        try:
            for index, core in enumerate(pinned_cores(self._size)):
                self._executors.append(self._executor(index, core))
        except BaseException:
            await self.close(grace_s=0.0)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _executor(self, index: int, core: int | None) -> _Executor:
        return _Executor(
            core=core,
            on_event=lambda event: self._on_event(index, event),
            log_file=None if self._log_dir is None else self._log_dir / f"executor-{index}.log",
        )

    @property
    def size(self) -> int:
        """With those that were added."""
        return len(self._executors) or self._size

    def grow(self) -> int:
        """Adds an executor that is pinned to no core; its number. Raises `ExecutorLostError`."""
        self._executors.append(self._executor(len(self._executors), None))
        return len(self._executors) - 1

    def retire(self, index: int) -> None:
        """Ends an idle executor; it is started again when it is next given a part."""
        self._executors[index].leave()

    async def wait_vacant(self, index: int) -> None:
        """Returns when nothing of a part is left on this executor: its core is free."""
        await self._executors[index].wait_vacant()

    @property
    def pids(self) -> list[int]:
        return [executor.process.pid for executor in self._executors]

    async def prepare(self, ids: Sequence[int], assignments: Sequence[PrepareSlot]) -> None:
        """Every executor named is ready to start its part, or none holds one and it raises.

        InputError: the user's file is wrong and nothing ran; RunError: code of theirs failed
        while preparing, or an executor died.
        """
        executors = [self._executors[index] for index in ids]
        tasks = [
            executor.prepare(assignment)
            for executor, assignment in zip(executors, assignments, strict=True)
        ]
        ends = [executor.early_end for executor in executors]
        try:
            # The first trouble is enough: whatever the others say, nothing starts.
            while not all(task.done() for task in tasks):
                news: list[asyncio.Future[Any]] = [task for task in tasks if not task.done()]
                await asyncio.wait([*news, *ends], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        _raise_refusal(task.result())
                for end in ends:
                    if end.done():
                        raise end.result()
        except BaseException:
            for executor, task in zip(executors, tasks, strict=True):
                task.cancel()
                executor.stop("another part of the workflow could not be prepared", 0.0)
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(executor.wait_idle() for executor in executors))
            raise
        for executor in executors:
            executor.announce()

    def start(self, ids: Iterable[int], start_in_ms: float = 0.0) -> None:
        for index in ids:
            self._executors[index].start(start_in_ms)

    def renew_lease(self, ids: Iterable[int], deadline_boottime_ns: int) -> None:
        for index in ids:
            self._executors[index].renew_lease(deadline_boottime_ns)

    def stop(self, ids: Iterable[int], reason: str, grace_s: float = GRACE_S) -> None:
        """Stop slots gracefully: each ends with `SlotFinished`, or with `ExecutorDied` if its
        code does not return in time."""
        for index in ids:
            self._executors[index].stop(reason, grace_s)

    def kill(self, ids: Iterable[int], reason: str) -> None:
        for index in ids:
            self._executors[index].kill(reason)

    def kill_all(self, reason: str) -> None:
        for executor in self._executors:
            executor.kill(reason)

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """Every executor and all it started is gone when this returns."""
        executors = self._executors
        try:
            for executor in executors:
                executor.leave()
            if grace_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await asyncio.gather(*(e.process.wait_gone() for e in executors))
        finally:
            for executor in executors:
                executor.kill("it did not leave when told to")
            # Only the kernel can delay this now.
            await asyncio.gather(*(e.process.wait_gone() for e in executors))
            for executor in executors:
                executor.close_log()


def _raise_refusal(answer: SlotPrepared | SlotRefused) -> None:
    if isinstance(answer, SlotPrepared):
        return
    error: type[HyperscaleError] = InputError if answer.kind is RefusalKind.INPUT else RunError
    raise error(answer.error, hint=answer.hint)
