"""Carries a run out: executors, signals, time and the live view, around `runner.run.Run`.

Performs what the state machine decides and feeds it what happens; decides nothing itself.
When `drive` returns or raises, no process it started is left.
"""

import asyncio
import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TextIO

from hyperscale.errors import InputError, RunError
from hyperscale.execution.protocol import ExecutorEvent, ExecutorOutput, PrepareSlot
from hyperscale.execution.supervisor import ExecutorPool, default_executors
from hyperscale.plan import Plan
from hyperscale.reporting.build import build_result
from hyperscale.reporting.exit_codes import ExitCode, exit_code_of
from hyperscale.reporting.results import RunResult
from hyperscale.runner.run import (
    ExecutorReported,
    KillExecutors,
    LocalRun,
    PoolReady,
    PrepareWorkflow,
    RunEffect,
    RunEvent,
    RunInterrupted,
    StartExecutors,
    StopExecutors,
    Tick,
    WorkflowPrepared,
    WorkflowPrepareFailed,
)
from hyperscale.runner.scratch import scratch_directory
from hyperscale.runner.source import LoadedTest
from hyperscale.ui.api import Ui

VIEW_EVERY_S = 0.1
START_IN_MS = 10.0  # every executor has heard of it by then, so all parts start together
OUTPUT_BYTES_MAX = 64 * 1024 * 1024
WORKERS_MAX = 1024
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    workers: int | None = None  # None: one executor per core this process may use
    timeout_s: float | None = None
    log_level: str = "info"
    log_dir: Path | None = None  # what each executor printed, one file per executor
    output_file: Path | None = None  # what all of them printed
    static: bool = True  # False: every step is run by the interpreter
    trace: bool = False  # every request and response is printed as output of its workflow


@dataclass(frozen=True, slots=True)
class RunEnding:
    result: RunResult
    interrupted_by: str | None  # name of the signal

    @property
    def exit_code(self) -> ExitCode:
        return exit_code_of(self.result, was_interrupted=self.interrupted_by is not None)


async def drive(job: LoadedTest, options: RunOptions, ui: Ui) -> RunEnding:
    """Runs the job to its end. InputError: it is wrong and nothing ran."""
    workers = options.workers or default_executors()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        bundles = {name: str(code.bundle.write(directory)) for name, code in job.code.items()}
        output = stack.enter_context(
            OutputLog(options.output_file, lambda text: ui.log(text, source="hyperscale"))
        )
        driver = _Driver(job, options, ui=ui, output=output, bundles=bundles, workers=workers)
        stack.enter_context(_signals(driver.interrupt))
        return await driver.run()


def executors_needed(plan: Plan, workers: int) -> int:
    """No more executors than could ever be busy at once."""
    most = sum(min(w.vus, workers) if w.is_test else 1 for w in plan.workflows)
    return max(1, min(workers, most))


class _Driver:
    def __init__(
        self,
        job: LoadedTest,
        options: RunOptions,
        *,
        ui: Ui,
        output: "OutputLog",
        bundles: Mapping[str, str],
        workers: int,
    ) -> None:
        self._job = job
        self._options = options
        self._ui = ui
        self._output = output
        self._bundles = bundles
        self._plans = {workflow.name: workflow for workflow in job.plan.workflows}
        self._run = LocalRun(job.plan, cores=workers, timeout_s=options.timeout_s)
        self._size = executors_needed(job.plan, workers)
        self._events: deque[RunEvent] = deque()
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._interrupts = 0
        self._pool: ExecutorPool | None = None

    async def run(self) -> RunEnding:
        started_at = datetime.now(UTC)
        began_s = time.monotonic()
        pool = ExecutorPool(self._size, on_event=self._on_executor, log_dir=self._options.log_dir)
        async with pool:
            self._pool = pool
            async with asyncio.TaskGroup() as tasks:
                self._handle(PoolReady(), pool, tasks)
                await self._until_over(pool, tasks)
            elapsed_s = time.monotonic() - began_s
            self._ui.update(self._run.view(now_s=time.monotonic()))
        run = self._run
        if run.input_error is not None:
            raise run.input_error
        result = build_result(
            file=run.plan.file,
            status=run.status,
            started_at=started_at,
            elapsed_s=elapsed_s,
            outcomes=run.outcomes(),
            warnings=run.plan.warnings,
            generator=f"hyperscale {version('hyperscale')}",
            aborted_by=run.aborted_by,
        )
        return RunEnding(result, run.interrupted_by)

    async def _until_over(self, pool: ExecutorPool, tasks: asyncio.TaskGroup) -> None:
        view_at_s = 0.0
        while not self._run.is_over:
            now_s = time.monotonic()
            if now_s >= view_at_s:
                self._ui.update(self._run.view(now_s=now_s))
                view_at_s = now_s + VIEW_EVERY_S
            wait_s = min(view_at_s, self._run.wake_at_s()) - now_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._news.wait()
            self._news.clear()
            while self._events:
                self._handle(self._events.popleft(), pool, tasks)
            if time.monotonic() >= self._run.wake_at_s():
                self._handle(Tick(), pool, tasks)

    def _post(self, event: RunEvent) -> None:
        self._events.append(event)
        self._news.set()

    def interrupt(self, by: str) -> None:
        """Called on the loop for each signal."""
        self._interrupts += 1
        self._post(RunInterrupted(by))
        if self._interrupts > 1 and self._pool is not None:
            # Also while the run is over and executors are taking their time to leave.
            self._pool.kill(range(self._size), f"interrupted twice by {by}")

    def _on_executor(self, executor: int, event: ExecutorEvent) -> None:
        if isinstance(event, ExecutorOutput):
            source = self._run.workflow_of(executor) or "executor"
            self._output.write(source, executor, event.text)
            self._ui.log(event.text, source=source)
        else:
            self._post(ExecutorReported(executor, event))

    def _handle(self, event: RunEvent, pool: ExecutorPool, tasks: asyncio.TaskGroup) -> None:
        for effect in self._run.handle(event, now_s=time.monotonic()):
            self._perform(effect, pool, tasks)

    def _perform(self, effect: RunEffect, pool: ExecutorPool, tasks: asyncio.TaskGroup) -> None:
        match effect:
            case PrepareWorkflow():
                tasks.create_task(self._prepare(effect, pool), name=f"prepare:{effect.workflow}")
            case StartExecutors(executors=executors):
                pool.start(executors, START_IN_MS)
            case StopExecutors(executors=executors, reason=reason, grace_s=grace_s):
                pool.stop(executors, reason, grace_s)
            case KillExecutors(executors=executors, reason=reason):
                pool.kill(executors, reason)

    async def _prepare(self, effect: PrepareWorkflow, pool: ExecutorPool) -> None:
        name = effect.workflow
        assignments = [
            PrepareSlot(
                bundle=self._bundles[name],
                file=self._job.code[name].file,
                workflow=name,
                plan=self._plans[name],
                slot=slot,
                slots=len(effect.executors),
                context=effect.received,
                log_level=self._options.log_level,
                static=self._options.static,
                trace=self._options.trace,
            )
            for slot in range(len(effect.executors))
        ]
        try:
            await pool.prepare(effect.executors, assignments)
        except (RunError, InputError) as error:
            self._post(WorkflowPrepareFailed(name, error))
        else:
            self._post(WorkflowPrepared(name))


class OutputLog:
    """What user code printed, each line with who printed it. Opened when there is something."""

    def __init__(self, path: Path | None, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._file: TextIO | None = None
        self._left_bytes = OUTPUT_BYTES_MAX

    def __enter__(self) -> "OutputLog":
        if self._path is not None:
            with contextlib.suppress(OSError):  # told when there is something to write
                self._path.unlink(missing_ok=True)  # of an earlier run into the same directory
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # said when it could not be written
                self._file.close()

    def write(self, source: str, executor: int | str, text: str) -> None:
        if self._path is None or self._left_bytes <= 0:
            return
        try:
            self._write(self._path, source, executor, text)
        except OSError as error:  # the run goes on without it
            self._complain(f"{self._path}: not written any more: {error.strerror}\n")
            self._path = None

    def _write(self, path: Path, source: str, executor: int | str, text: str) -> None:
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", errors="backslashreplace")
        lines = "".join(f"[{source} {executor}] {line}\n" for line in text.rstrip("\n").split("\n"))
        self._left_bytes -= len(lines)
        self._file.write(lines)
        if self._left_bytes <= 0:
            self._file.write(f"… the rest is left out: over {OUTPUT_BYTES_MAX // 2**20} MiB\n")
        self._file.flush()


@contextlib.contextmanager
def _signals(interrupt: Callable[[str], None]) -> Iterator[None]:
    """Signals that ask the process to end ask the run to end instead, while this is open.

    Only the main thread can take signals; a run on another thread is left to its owner.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
    for one in _SIGNALS:
        previous = signal.getsignal(one)
        if previous is not signal.SIG_IGN:  # as under nohup: the user's wish
            before[one] = previous
            loop.add_signal_handler(one, interrupt, one.name)
    try:
        yield
    finally:
        for one, previous in before.items():
            loop.remove_signal_handler(one)
            signal.signal(one, previous)
