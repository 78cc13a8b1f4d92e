"""Carries a run out: executors, signals, time and the live view, around `runner.run.LocalRun`.

Performs what the state machine decides and feeds it what happens; decides nothing itself.
When `drive` returns or raises, no process it started is left.
"""

import asyncio
import contextlib
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from msgspec.structs import replace

from hyperscale.errors import InputError, RunError
from hyperscale.execution.capacity import (
    descriptor_limit,
    memory_limit,
    port_limit,
    refuse_excess,
)
from hyperscale.execution.cores import default_executors
from hyperscale.execution.pool import ExecutorPool
from hyperscale.execution.protocol import (
    ExecutorDied,
    ExecutorEvent,
    ExecutorOutput,
    PrepareSlot,
    SlotRole,
    role_of,
)
from hyperscale.jobs.provisioner import SHARED_PER_WORKER_MAX
from hyperscale.plan import Connections, Plan
from hyperscale.plan.changes import LoadChange
from hyperscale.reporting.build import build_result
from hyperscale.reporting.exit_codes import ExitCode
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.verdict import run_standing
from hyperscale.runner.control import RunControl, control_socket
from hyperscale.runner.events import (
    ChangeAnswered,
    ChangeExecutors,
    ExecutorReported,
    KillExecutors,
    LoadChangeRequested,
    PoolReady,
    PrepareTeardown,
    PrepareWorkflow,
    RunEffect,
    RunInterrupted,
    ShareSetup,
    StartExecutors,
    StopExecutors,
    WeighExecutors,
    WorkflowPrepared,
)
from hyperscale.runner.run import LocalRun
from hyperscale.runner.scratch import scratch_directory
from hyperscale.runner.source import LoadedTest
from hyperscale.sansio.driver import CoreDriver
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.ui.api import Ui

if TYPE_CHECKING:
    from hyperscale.reporting.streams.hub import LiveStream
    from hyperscale.runner.live_streams import RunStreams

VIEW_EVERY_S = 0.1
START_IN_MS = 10.0  # every executor has the message by then, so all slots start together
OUTPUT_BYTES_MAX = 64 * 1024 * 1024
WORKERS_MAX = 1024
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    workers: int | None = None  # None: one executor per core this process may use
    timeout_s: float | None = None
    log_level: str = "info"
    log_dir: Path | None = None  # directory for the output of each executor, one file per executor
    output_file: Path | None = None  # file for the output of all executors
    static: bool = True  # False: static steps run in Python too
    share_cores: bool = True  # False: a workflow for which no core is left waits
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    streams: tuple["LiveStream", ...] = ()  # where live statistics go
    stream_every_s: float = 5.0
    control_dir: Path | None = None  # directory for the socket that changes of the load come over
    control: RunControl | None = None  # keys and Python code change the load through it
    trace: bool = False  # print every request and response as output of its workflow


@dataclass(frozen=True, slots=True)
class RunEnding:
    result: RunResult
    interrupted_by: str | None  # name of the signal
    stream_losses: tuple[str, ...] = ()  # what streams could not send

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.INTERRUPTED if self.interrupted_by else self.result.exit_code


async def drive(test: LoadedTest, options: RunOptions, ui: Ui) -> RunEnding:
    """Run a test to its end. Raises InputError if the test is wrong and nothing ran."""
    await _refuse_excess(test.plan, options.workers or default_executors())
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        bundles = {name: str(code.bundle.write(directory)) for name, code in test.code.items()}
        output = stack.enter_context(
            OutputLog(options.output_file, lambda text: ui.log(text, source="hyperscale"))
        )
        driver = _RunDriver(test, options, ui=ui, output=output, bundles=bundles)
        stack.callback(driver.close_streams)
        stack.enter_context(_signals(driver.interrupt))
        return await driver.run()


async def _refuse_excess(plan: Plan, executors: int) -> None:
    """Raise InputError if a workflow has more users than this machine can run."""
    for workflow in plan.workflows:
        limits = [memory_limit()]
        if workflow.hosts and workflow.connections is not Connections.SHARED:
            limits.append(descriptor_limit(min(workflow.vus, executors)))
            ports = port_limit(dict.fromkeys(workflow.hosts, 1), workflow.sources)
            if ports.users < workflow.vus:  # a host may have more than one address
                counts = {host: await _addresses(host) for host in workflow.hosts}
                ports = port_limit(counts, workflow.sources)
            limits.append(ports)
        refuse_excess(f"{plan.file}: {workflow.name}.vus", workflow.vus, *limits)


async def _addresses(authority: str) -> int:
    """Return how many IP addresses the host of an authority has."""
    host, loop = authority.rpartition(":")[0].strip("[]"), asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # an executor will say so
        return 1
    return len({address[0] for *_, address in found})


def executors_needed(plan: Plan, workers: int) -> int:
    """Return the number of executors that can hold a core at once, `workers` at most.

    It is below `workers` only if every workflow can have its most: then none shares cores.
    """
    most = sum(min(w.vus, workers) if w.is_test else 1 for w in plan.workflows)
    return max(1, min(workers, most))


class _RunDriver:
    """Feeds a `LocalRun` what executors and signals do, and performs its effects."""

    def __init__(
        self,
        test: LoadedTest,
        options: RunOptions,
        *,
        ui: Ui,
        output: "OutputLog",
        bundles: Mapping[str, str],
    ) -> None:
        workers = options.workers or default_executors()
        self._test = test
        self._options = options
        self._ui = ui
        self._output = output
        self._bundles = bundles
        self._plans = {workflow.name: workflow for workflow in test.plan.workflows}
        self._run = LocalRun(
            test.plan,
            cores=workers,
            timeout_s=options.timeout_s,
            shared_max=SHARED_PER_WORKER_MAX if options.share_cores else 0,
        )
        size = executors_needed(test.plan, workers)
        self._pool = ExecutorPool(size, on_event=self._on_executor, log_dir=options.log_dir)
        self._tasks = TaskSupervisor()
        self._driver = CoreDriver(
            self._run,
            self._perform,
            clock=time.monotonic,
            on_failure=self._tasks.fail,
            after_events=self._notice_end,
        )
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._interrupts = 0
        self._streams: RunStreams | None = None
        if options.streams:
            from hyperscale.runner import live_streams  # noqa: PLC0415  few runs need it

            self._streams = live_streams.RunStreams(
                options.streams,
                run_id=options.run_id,
                file=test.plan.file,
                workflows=lambda: self._run.statistics,
                every_s=options.stream_every_s,
            )

    async def run(self) -> RunEnding:
        started_at = datetime.now(UTC)
        began_s = time.monotonic()
        options = self._options
        async with self._pool, control_socket(options.control_dir, self.change):
            try:
                self._driver.feed(PoolReady())
                if options.control is not None:
                    options.control.attach(self.change)
                self._tasks.spawn(self._show_views(), name="views")
                if self._streams is not None:
                    self._tasks.spawn(self._streams.run(), name="streams")
                ends = (self._over, self._tasks.failed)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if self._tasks.failed.done():
                    self._tasks.failed.result()
            finally:
                self._driver.stop()
                await self._tasks.close()
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
            outcomes=run.outcomes(since_s=began_s),
            warnings=run.plan.warnings,
            generator=f"hyperscale {version('hyperscale')}",
            aborted_by=run.aborted_by,
            run_id=self._options.run_id,
            parameters=run.plan.parameters,
        )
        losses: tuple[str, ...] = ()
        if self._streams is not None:
            losses = await self._streams.finish(run_standing(result).value)
        return RunEnding(result, run.interrupted_by, losses)

    async def change(self, change: LoadChange) -> None:
        """Change the load; raise `InputError` if the change does not fit."""
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._driver.feed(LoadChangeRequested(change, made))
        await made
        self._ui.log(f"{change.describe()}\n", source="hyperscale")

    def close_streams(self) -> None:
        """End the streams of a run that did not come to its end."""
        if self._streams is not None:
            self._streams.close()

    def interrupt(self, by: str) -> None:
        """Handle a signal; called on the loop."""
        self._interrupts += 1
        self._driver.feed(RunInterrupted(by))
        if self._interrupts > 1:
            # Also while the run is over and executors take their time to exit.
            self._pool.kill(range(self._pool.size), f"interrupted twice by {by}")

    async def _show_views(self) -> None:
        while True:
            self._ui.update(self._run.view(now_s=time.monotonic()))
            await asyncio.sleep(VIEW_EVERY_S)

    def _notice_end(self) -> None:
        if self._run.is_over and not self._over.done():
            self._over.set_result(None)

    def _on_executor(self, executor: int, event: ExecutorEvent) -> None:
        if isinstance(event, ExecutorOutput):
            source = self._run.workflow_of(executor) or "executor"
            self._output.write(source, executor, event.text)
            self._ui.log(event.text, source=source)
        else:
            if isinstance(event, ExecutorDied) and self._streams is not None:
                workflow = self._run.workflow_of(executor) or ""
                self._streams.annotate("worker_lost", f"executor {executor} died", workflow)
            self._driver.feed(ExecutorReported(executor, event))

    def _perform(self, effect: RunEffect) -> None:
        match effect:
            case PrepareWorkflow():
                self._tasks.spawn(self._prepare(effect), name=f"prepare:{effect.workflow}")
            case PrepareTeardown():
                self._tasks.spawn(self._prepare_teardown(effect), name=f"end:{effect.workflow}")
            case ShareSetup(executors=executors, context=context):
                self._pool.share_context(executors, context)
            case WeighExecutors(executors=executors, nice=nice):
                self._pool.weigh(executors, nice)
            case StartExecutors(executors=executors):
                self._pool.start(executors, START_IN_MS)
            case ChangeExecutors(executors=executors, changes=changes):
                self._pool.change(executors, changes)
            case ChangeAnswered(token=made, error=error):
                if error is not None:
                    made.set_exception(error)
                else:
                    made.set_result(None)
            case StopExecutors(executors=executors, reason=reason, grace_s=grace_s):
                self._pool.stop(executors, reason, grace_s)
            case KillExecutors(executors=executors, reason=reason):
                self._pool.kill(executors, reason)

    async def _prepare(self, effect: PrepareWorkflow) -> None:
        name, slots = effect.workflow, len(effect.executors)
        whole = self._assignment(name, context=effect.received, slots=slots)
        roles = [role_of(whole.plan, slot, b"") for slot in range(slots)]
        assignments = [replace(whole, slot=slot, role=role) for slot, role in enumerate(roles)]
        await self._prepare_slots(name, effect.executors, assignments)

    async def _prepare_teardown(self, effect: PrepareTeardown) -> None:
        assignment = self._assignment(
            effect.workflow,
            role=SlotRole.TEAR_DOWN,
            slot=effect.slots,
            slots=effect.slots,
            set_up=effect.context,
        )
        await self._prepare_slots(effect.workflow, [effect.executor], [assignment])

    def _assignment(self, name: str, **given: Any) -> PrepareSlot:
        return PrepareSlot(
            bundle=self._bundles[name],
            file=self._test.code[name].file,
            workflow=name,
            plan=self._plans[name],
            log_level=self._options.log_level,
            static=self._options.static,
            trace=self._options.trace,
            parameters=self._test.plan.open_parameters,
            secrets=dict(self._test.secrets),
            **given,
        )

    async def _prepare_slots(
        self, name: str, executors: Sequence[int], assignments: list[PrepareSlot]
    ) -> None:
        try:
            while self._pool.size <= max(executors):
                self._pool.grow()
            await self._pool.prepare(executors, assignments, nice=self._run.nice_of(name))
        except (RunError, InputError) as error:
            self._driver.feed(WorkflowPrepared(name, error))
        else:
            self._driver.feed(WorkflowPrepared(name))


class OutputLog:
    """A file of everything user code printed, each line with its workflow and executor.

    The file is created with the first line.
    """

    def __init__(self, path: Path | None, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._file: TextIO | None = None
        self._left_bytes = OUTPUT_BYTES_MAX

    def __enter__(self) -> "OutputLog":
        if self._path is not None:
            with contextlib.suppress(OSError):  # the first write reports the problem
                self._path.unlink(missing_ok=True)  # left by an earlier run
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # `write` has reported the problem
                self._file.close()

    def write(self, source: str, executor: int | str, text: str) -> None:
        if self._path is None or self._left_bytes <= 0:
            return
        try:
            self._write(self._path, source, executor, text)
        except OSError as error:  # the run continues without the file
            self._complain(f"{self._path}: output is no longer saved: {error.strerror}\n")
            self._path = None

    def _write(self, path: Path, source: str, executor: int | str, text: str) -> None:
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", errors="backslashreplace")
        lines = "".join(f"[{source} {executor}] {line}\n" for line in text.rstrip("\n").split("\n"))
        self._left_bytes -= len(lines)
        self._file.write(lines)
        if self._left_bytes <= 0:
            self._file.write(f"… output beyond {OUTPUT_BYTES_MAX // 2**20} MiB is not saved\n")
        self._file.flush()


@contextlib.contextmanager
def _signals(interrupt: Callable[[str], None]) -> Iterator[None]:
    """Pass signals that would end the process to `interrupt` instead.

    Only the main thread can handle signals; on another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
    for one in _SIGNALS:
        previous = signal.getsignal(one)
        if previous is not signal.SIG_IGN:  # as under nohup: stays ignored
            before[one] = previous
            loop.add_signal_handler(one, interrupt, one.name)
    try:
        yield
    finally:
        for one, previous in before.items():
            loop.remove_signal_handler(one)
            signal.signal(one, previous)
