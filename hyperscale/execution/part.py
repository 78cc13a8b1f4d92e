"""One part of a workflow on one executor, from its assignment to its last report.

`prepare_part` does everything that must not cost time once the clock runs: importing,
resolving, encoding, Use and setup hooks, making the virtual users. `Part.run` loops them
until the deadline, then tears down; it always ends in one `Finished`. This module owns the
order of things; how a step is called is `calls`' and how users loop is `vu`'s business.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hyperscale._native import Exchange, Recorder
from hyperscale.clients import ClientHub
from hyperscale.clients.scope import current_step
from hyperscale.config import GRACE_S, format_duration
from hyperscale.errors import HyperscaleError, InputError, InvariantError, RunError
from hyperscale.execution.bundle import mount, mounted_files
from hyperscale.execution.calls import Call, Program, compile_calls, is_once
from hyperscale.execution.faults import FaultLog, describe_fault, format_fault
from hyperscale.execution.limits import CUT_S, TEARDOWN_S
from hyperscale.execution.protocol import (
    Finished,
    FrameError,
    FromExecutor,
    PartStatus,
    Prepare,
    Report,
    TearingDown,
    encode_frame,
)
from hyperscale.execution.pulse import Pulse, resident_bytes
from hyperscale.execution.reports import SERIES_POINTS, step_reports
from hyperscale.execution.tally import CheckTally, MetricTally
from hyperscale.execution.values import pack_value, unpack_context, unpack_uses
from hyperscale.execution.vu import Crew, VirtualUser
from hyperscale.graph import Blueprint, Workflow, attach, blueprint, collect, load_module
from hyperscale.plan import MetricKind, StateKind, share
from hyperscale.plan.context import (
    CONTEXT_BYTES_MAX,
    Provided,
    decode_received,
    encode_provided,
)
from hyperscale.stats.report import PartReport

Send = Callable[[FromExecutor], None]


async def prepare_part(assignment: Prepare, send: Send) -> "Part":
    """The part, ready to run. InputError: the user's file; RunError: code of theirs failed.

    Teardown hooks have run if setup hooks had begun.
    """
    design = load_blueprint(assignment)
    part = Part(assignment, design, send)
    try:
        await part.prepare()
    except BaseException:
        await part.abandon()
        raise
    return part


def load_blueprint(assignment: Prepare) -> Blueprint:
    """Imports the user's code and reads the workflow out of it."""
    try:
        if assignment.bundle:
            module = mount(Path(assignment.bundle), assignment.file)
        else:
            module = load_module(assignment.file)
    except HyperscaleError:
        raise
    except BaseException as error:  # whatever user code raises while being imported
        raise InputError(
            f"{assignment.file}: cannot be imported in an executor: {describe_fault(error)}"
        ) from error
    for cls in collect(module):
        if cls.__name__ == assignment.workflow:
            return blueprint(cls, assignment.plan, files=mounted_files())
    raise InputError(f"{assignment.file}: has no workflow {assignment.workflow!r}")


class Part:
    """The state of a part. Made by `prepare_part`."""

    def __init__(self, assignment: Prepare, design: Blueprint, send: Send) -> None:
        plan = assignment.plan
        self._assignment = assignment
        self._design = design
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._faults = FaultLog(sys.stderr.write)
        self._program: Program = compile_calls(design)
        self._names = design.recorded
        self._recorder = Recorder(len(self._names))
        self._hub = ClientHub(
            plan, self._recorder, trace=_print_exchange if assignment.trace else None
        )
        self._hub.open(self._loop)
        received = decode_received(assignment.context)
        self._context = unpack_context(received)
        self._inherited = dict(self._context)
        self._received = unpack_uses(received)
        self._users: list[VirtualUser] = []
        self._crew = self._make_crew()
        self._pulse = Pulse(
            self._loop, on_report=self._report, on_lease_over=lambda: self._cut("lease expired")
        )
        self._sequence = 0
        self._began_s: float | None = None
        self._ended_s: float | None = None
        self._cpu_began_s = time.process_time()
        self._has_set_up = False
        self._is_ending = False
        self._stop: tuple[str, float] | None = None  # reason, instant of the cut
        self._stop_came = asyncio.Event()
        self.is_tainted = False  # code of the part runs on after it was cancelled

    def _make_crew(self) -> Crew:
        plan, slots, slot = self._assignment.plan, self._assignment.slots, self._assignment.slot
        return Crew(
            self._program,
            self._recorder,
            self._faults,
            checks=[CheckTally(hook.name) for hook in self._design.checks],
            metrics=[
                MetricTally(hook.name, hook.metric_kind or MetricKind.COUNT)
                for hook in self._design.metrics
            ],
            users=self._users,
            interval_s=plan.interval_s,
            iterations=None if plan.iterations is None else share(plan.iterations, slots, slot),
            is_once=is_once(self._design),
        )

    # --- before the clock -----------------------------------------------------------------

    async def prepare(self) -> None:
        await self._prepare_arguments()
        # Hooks around the loop run on the first user, and what they leave in its context
        # every user begins with. A slot without users still sets up and tears down.
        host = self._make_user(0)
        self._host = host.instance
        await self._use()
        await self._set_up()
        self._context = host.instance.context
        count = share(self._assignment.plan.vus, self._assignment.slots, self._assignment.slot)
        self._users += [host] if count else []
        self._users += [self._make_user(number) for number in range(1, count)]
        # What lives as long as the part need not be walked by every collection: with
        # thousands of users that would be a pause in everyone's latencies.
        gc.collect()
        gc.freeze()

    async def _prepare_arguments(self) -> None:
        """Each request part is resolved and encoded once, before anything is measured."""
        design = self._design
        hooks = [hook for layer in design.layers for hook in layer]
        hooks += [*design.setups, *design.teardowns, *design.checks, *design.metrics]
        try:
            async with asyncio.TaskGroup() as tasks:
                for hook in hooks:
                    for argument in hook.optimized.values():
                        work = self._hub.prepare(hook.name, argument, hook.protocol or "http")
                        tasks.create_task(work, name=f"prepare {hook.name}")
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def _make_user(self, number: int) -> VirtualUser:
        instance = self._design.workflow()
        attach(
            instance,
            client=self._hub.client(number),
            context=dict(self._context),
            received=self._received,
        )
        return VirtualUser(instance, remembers=number == 0 or self._program.remembers)

    async def _use(self) -> None:
        for hook in self._design.states:
            if hook.kind is StateKind.USE:
                given = self._received.get(hook.name, {})
                try:
                    value = hook.function(self._host, **given)
                    if hook.is_async:
                        await value
                except Exception as error:
                    raise self._blame(hook.name, error) from error

    async def _set_up(self) -> None:
        self._has_set_up = True
        for call in self._program.setups:
            self._recorder.begin()  # what comes before the clock is its second 0
            error = await self._run_lone(call)
            if error is not None:
                raise self._blame(call.name, error) from error

    def _blame(self, hook: str, error: BaseException) -> RunError:
        sys.stderr.write(f"{hook} raised:\n{format_fault(error)}")
        return RunError(f"{self._design.plan.name}.{hook} failed: {describe_fault(error)}")

    async def _run_lone(self, call: Call) -> Exception | None:
        """Runs a setup or teardown hook and records it; what it raised, if it did."""
        current_step.set(call.scope)
        began_ns = time.perf_counter_ns()
        try:
            result = call.function(self._host, **call.arguments(self._host, []))
            if call.is_async:
                result = await result
        except Exception as error:  # noqa: BLE001 - recorded, and handed to the caller
            self._crew.fail(call, error)
            return error
        self._crew.settle(call, result, time.perf_counter_ns() - began_ns)
        return None

    # --- from outside ---------------------------------------------------------------------

    def stop(self, reason: str, grace_s: float) -> None:
        """No new step starts; those in flight are cut when the grace is over."""
        cut_s = time.monotonic() + grace_s
        # Told twice, the first reason and the earlier cut count.
        if self._stop is not None:
            reason, cut_s = self._stop[0], min(self._stop[1], cut_s)
        self._stop = (reason, cut_s)
        self._crew.stop()
        self._stop_came.set()

    def renew_lease(self, deadline_boottime_ns: int) -> None:
        self._pulse.renew_lease(deadline_boottime_ns)

    def _cut(self, reason: str) -> None:
        # At once: whoever holds the lease now may already be loading the target.
        self.stop(reason, 0.0)
        self._crew.cut()
        self._hub.cut()

    # --- the run --------------------------------------------------------------------------

    async def run(self, start_in_s: float) -> Finished:
        """Runs the part to its end; never raises for what user code does."""
        self._pulse.start()
        try:
            await self._wait_for_stop(start_in_s)
            if self._stop is None:
                await self._run_users()
            return await self._finish()
        finally:
            await self.abandon()

    async def finish_unstarted(self) -> Finished:
        """The end of a part that was prepared and is not to run."""
        self._pulse.start()
        try:
            return await self._finish()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Lets go of everything. Teardown hooks run if they are still due."""
        try:
            await self._tear_down()
        finally:
            self._pulse.stop()
            self._hub.close()
            gc.unfreeze()

    async def _run_users(self) -> None:
        crew = self._crew
        self._recorder.begin()
        self._began_s = time.monotonic()
        self._cpu_began_s = time.process_time()
        deadline_s = self._began_s + self._assignment.plan.duration_s
        crew.start()
        over = asyncio.ensure_future(crew.wait(None))
        try:
            if await self._either(over, until_s=deadline_s):
                return
            crew.stop()
            while not over.done():
                cut_s = min(
                    deadline_s + GRACE_S, self._stop[1] if self._stop else deadline_s + GRACE_S
                )
                if time.monotonic() >= cut_s:
                    break
                await self._either(over, until_s=cut_s)
            if not over.done():
                await self._cut_users(over)
        finally:
            over.cancel()
            self._ended_s = time.monotonic()

    async def _either(self, over: "asyncio.Future[bool]", *, until_s: float) -> bool:
        """Waits for the users, for a (new) stop or for the instant; whether users are done."""
        self._stop_came.clear()
        came = asyncio.ensure_future(self._stop_came.wait())
        try:
            timeout_s = max(0.0, until_s - time.monotonic())
            await asyncio.wait((over, came), timeout=timeout_s, return_when="FIRST_COMPLETED")
        finally:
            came.cancel()
        return over.done()

    async def _cut_users(self, over: "asyncio.Future[bool]") -> None:
        give_up_s = time.monotonic() + CUT_S
        while not over.done():
            if time.monotonic() >= give_up_s:
                self.is_tainted = True
                sys.stderr.write(
                    f"{self._crew.looping} virtual users ignore their cancellation and are left "
                    "behind\n"
                )
                return
            # More than once: code may swallow the first and wait for something else.
            self._crew.cut()
            self._hub.cut()
            await asyncio.wait((over,), timeout=CUT_S / 5)

    async def _wait_for_stop(self, timeout_s: float) -> None:
        if timeout_s > 0 and self._stop is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._stop_came.wait()
            except TimeoutError:
                return

    # --- after the clock ------------------------------------------------------------------

    async def _finish(self) -> Finished:
        self._announce_end()
        status, error = self._outcome()
        provided = Provided(slot=self._assignment.slot)
        if status is PartStatus.COMPLETED:
            try:
                provided = await self._bounded(self._provide(), "its Provide hooks")
            except HyperscaleError as failure:
                status, error = PartStatus.FAILED, str(failure)
        await self._tear_down()
        self._faults.summarise()
        finished = Finished(
            status=status,
            error=error,
            report=self._make_report(histograms=True, series_from=None),
            provided=encode_provided(provided),
            tainted=self.is_tainted,
        )
        return self._within_frame(finished)

    def _announce_end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._send(TearingDown())

    def _outcome(self) -> tuple[PartStatus, str | None]:
        crew, plan = self._crew, self._assignment.plan
        if crew.breakage is not None:
            sys.stderr.write(format_fault(crew.breakage))
            return PartStatus.FAILED, f"internal error: {describe_fault(crew.breakage)}"
        if self._stop is not None:
            return PartStatus.STOPPED, self._stop[0]
        if not plan.is_test and crew.first_fault is not None:
            return PartStatus.FAILED, f"{plan.name}.{crew.first_fault}"
        if crew.is_once and crew.iterations < len(self._users):
            return PartStatus.FAILED, (
                f"{plan.name}: not done within its duration of {format_duration(plan.duration_s)}"
            )
        return PartStatus.COMPLETED, None

    async def _provide(self) -> Provided:
        plan = self._assignment.plan
        states: dict[str, bytes] = {}
        for hook in self._design.states:
            if hook.kind is not StateKind.PROVIDE:
                continue
            where = f"{plan.name}.{hook.name}"
            try:
                value = hook.function(self._host)
                if hook.is_async:
                    value = await value
            except Exception as error:
                raise self._blame(hook.name, error) from error
            if value is not None:
                states[hook.name] = pack_value(value, where=where)
        context = {} if plan.is_test else self._own_context(self._host)
        return Provided(slot=self._assignment.slot, states=states, context=context)

    def _own_context(self, host: Workflow) -> dict[str, bytes]:
        """What this workflow itself put into `self.context`, as far as it can travel.

        It is offered to dependents unasked, so what cannot travel is left out with a note.
        """
        packed: dict[str, bytes] = {}
        room = CONTEXT_BYTES_MAX // 2  # the rest is for what is provided on purpose
        for key, value in host.context.items():
            if not isinstance(key, str) or self._inherited.get(key, _ABSENT) is value:
                continue
            try:
                one = pack_value(value, where=f"self.context[{key!r}]")
            except RunError as error:
                sys.stderr.write(f"not passed on: {error}\n")
                continue
            room -= len(one)
            if room < 0:
                sys.stderr.write(f"not passed on: self.context[{key!r}]: too much context\n")
                break
            packed[key] = one
        return packed

    async def _tear_down(self) -> None:
        """Runs teardown hooks, once, if setup hooks had begun."""
        if not self._has_set_up:
            return
        self._has_set_up = False
        self._announce_end()
        try:
            await self._bounded(self._run_teardowns(), "its teardown hooks")
        except RunError as error:
            sys.stderr.write(f"{error}\n")

    async def _run_teardowns(self) -> None:
        for call in self._program.teardowns:
            await self._run_lone(call)

    async def _bounded(self, work: Coroutine[Any, Any, Any], what: str) -> Any:
        """The result of user hooks that get TEARDOWN_S and are left behind after it."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task,), timeout=TEARDOWN_S)
            if not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=CUT_S)
                self.is_tainted = self.is_tainted or not task.done()
                raise RunError(
                    f"{self._assignment.workflow}: {what} took longer than "
                    f"{format_duration(TEARDOWN_S)}"
                )
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    # --- reports --------------------------------------------------------------------------

    def _report(self, histograms: bool) -> None:
        series_from = max(0, int(self._elapsed_s()) - SERIES_POINTS)
        self._send(Report(report=self._make_report(histograms=histograms, series_from=series_from)))

    def _elapsed_s(self) -> float:
        if self._began_s is None:
            return 0.0
        return (self._ended_s or time.monotonic()) - self._began_s

    def _make_report(self, *, histograms: bool, series_from: int | None) -> PartReport:
        self._sequence += 1
        crew = self._crew
        return PartReport(
            workflow=self._assignment.workflow,
            slot=self._assignment.slot,
            sequence=self._sequence,
            elapsed_s=self._elapsed_s(),
            vus=crew.looping,
            iterations=crew.iterations,
            steps=step_reports(
                self._names, self._recorder, histograms=histograms, series_from=series_from
            ),
            checks=[tally.report() for tally in crew.checks],
            metrics=[tally.report(histograms=histograms) for tally in crew.metrics],
            cpu_s=time.process_time() - self._cpu_began_s,
            loop_lag_s=self._pulse.take_lag_s(),
            rss_bytes=resident_bytes(),
        )

    def _within_frame(self, finished: Finished) -> Finished:
        """The last message must arrive: sheds old seconds, which were reported before."""
        for points in (300, 60, SERIES_POINTS, 0):
            try:
                encode_frame(finished)
            except FrameError:
                for step in finished.report.steps:
                    step.series = step.series[-points:] if points else []
            else:
                return finished
        raise InvariantError("a final report without a series does not fit into a frame")


_ABSENT = object()


def _print_exchange(exchange: Exchange) -> None:
    from hyperscale.clients.trace import format_exchange  # noqa: PLC0415 - only when asked for

    sys.stdout.write(f"{format_exchange(exchange)}\n\n")
