"""One part of a workflow on one executor, from its assignment to its last report.

`prepare_slot` does everything that must not cost time once the clock runs: importing,
resolving, encoding, Use and setup hooks, making the virtual users. `SlotRun.run` loops them
until the deadline, then tears down; it always ends in one `SlotFinished`. This module owns the
order of things; how users loop is for `vu` and `static`, hooks around the loop for `host`.
"""

import asyncio
import gc
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hyperscale._native import Exchange, Recorder
from hyperscale.clients import ClientHub
from hyperscale.config import GRACE_S, format_duration
from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.execution.bundle import mount, mounted_files
from hyperscale.execution.capture import complain
from hyperscale.execution.hook_calls import compile_calls, is_once
from hyperscale.execution.lifecycle_hooks import LifecycleHooks
from hyperscale.execution.limits import CUT_S
from hyperscale.execution.outcomes import StepOutcomes
from hyperscale.execution.protocol import (
    FRAME_BYTES_MAX,
    FrameError,
    FromExecutor,
    PrepareSlot,
    SlotFinished,
    SlotReport,
    SlotTearingDown,
    encode_frame,
)
from hyperscale.execution.report_timer import ReportTimer, ResidentMemory
from hyperscale.execution.static import NativeCrew, compile_static
from hyperscale.execution.tally import CheckTally, MetricTally
from hyperscale.execution.user_errors import HOOK_ERRORS, UserErrorLog, describe_error, format_error
from hyperscale.execution.values import unpack_context, unpack_uses
from hyperscale.execution.virtual_users import UserCrew, VirtualUser
from hyperscale.graph import Blueprint, Hook, Workflow, attach, blueprint, find, load_module
from hyperscale.graph.reading import display_path
from hyperscale.plan import Connections, MetricKind, share
from hyperscale.plan.context import Provided, decode_received, encode_provided
from hyperscale.plan.status import PartStatus
from hyperscale.stats.report import Report
from hyperscale.testing import OptimizedArg

Send = Callable[[FromExecutor], None]

SERIES_S = 15
"""The newest seconds that go with a report that has histograms: enough for a receiver that missed
several reports."""


async def prepare_slot(
    assignment: PrepareSlot, send: Send, *, on_beat: Callable[[], None] = lambda: None
) -> "SlotRun":
    """The part, ready to run. InputError: the user's file; RunError: code of theirs failed.

    When it raises, teardown hooks have run if setup hooks had begun, and what those sent has
    been reported.
    """
    design = load_blueprint(assignment)
    recorder = Recorder(len(design.recorded))
    outcomes = StepOutcomes(recorder, UserErrorLog(complain))
    trace = _print_exchange if assignment.trace else None
    hub = ClientHub(assignment.plan, recorder, trace=trace)
    hub.open(asyncio.get_running_loop())
    host: LifecycleHooks | None = None
    try:
        await _prepare_arguments(assignment, design, hub)
        received = decode_received(assignment.context)
        uses = unpack_uses(received)
        program = compile_calls(design)
        instance = _make_instance(design, hub, 0, unpack_context(received), uses)
        host = LifecycleHooks(design, program, outcomes, instance, uses)
        await host.use()
        await host.set_up()
        crew = _make_crew(assignment, design, hub=hub, host=host, outcomes=outcomes, uses=uses)
    except BaseException:
        if host is not None and host.is_set_up:
            send(SlotTearingDown())
            await host.tear_down()
            send(SlotReport(report=_report_of_hooks(assignment, design, recorder)))
        hub.close()
        raise
    # What lives as long as the part need not be walked by every collection: with thousands
    # of users that would be a pause in everyone's latencies.
    gc.collect()
    gc.freeze()
    return SlotRun(
        assignment,
        design,
        hub=hub,
        host=host,
        crew=crew,
        outcomes=outcomes,
        send=send,
        on_beat=on_beat,
    )


def load_blueprint(assignment: PrepareSlot) -> Blueprint:
    """Imports the user's code and reads the workflow out of it."""
    try:
        if assignment.bundle:
            module = mount(Path(assignment.bundle), assignment.file, job=assignment.job)
        else:
            module = load_module(assignment.file)
    except HyperscaleError:
        raise
    except BaseException as error:  # whatever user code raises while being imported
        raise InputError(
            f"{assignment.file}: cannot be imported in an executor: {describe_error(error)}"
        ) from error
    cls = find(module, assignment.workflow)
    return blueprint(cls, assignment.plan, files=mounted_files())


def _report_of_hooks(assignment: PrepareSlot, design: Blueprint, recorder: Recorder) -> Report:
    """What setup and teardown hooks did in a part that never came to be."""
    return recorder.report(
        design.recorded,
        workflow=assignment.workflow,
        slot=assignment.slot,
        sequence=1,
        elapsed_s=0.0,
        histograms=True,
    )


async def _prepare_arguments(assignment: PrepareSlot, design: Blueprint, hub: ClientHub) -> None:
    """Each request part is resolved and encoded once, before anything is measured."""

    async def prepare(hook: Hook, parameter: str, argument: OptimizedArg) -> None:
        try:
            await hub.prepare(hook.name, argument, hook.protocol or "http")
        except InputError as error:
            where = f"{display_path(assignment.file)}: {design.plan.name}.{hook.name}: {parameter}"
            reason = error.message.removeprefix(f"{hook.name}: ")
            raise InputError(f"{where}: {reason}", hint=error.hint) from error

    hooks = [hook for layer in design.layers for hook in layer]
    hooks += [*design.setups, *design.teardowns, *design.checks, *design.metrics]
    try:
        async with asyncio.TaskGroup() as tasks:
            for hook in hooks:
                for parameter, argument in hook.optimized.items():
                    work = prepare(hook, parameter, argument)
                    tasks.create_task(work, name=f"prepare {hook.name}")
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _make_instance(
    design: Blueprint,
    hub: ClientHub,
    number: int,
    context: dict[str, Any],
    uses: dict[str, dict[str, Any]],
) -> Workflow:
    try:
        instance = design.workflow()
    except HOOK_ERRORS as error:
        raise RunError(f"{design.plan.name}() failed: {describe_error(error)}") from error
    attach(instance, client=hub.client(number), context=dict(context), received=uses)
    return instance


def _make_crew(
    assignment: PrepareSlot,
    design: Blueprint,
    *,
    hub: ClientHub,
    host: LifecycleHooks,
    outcomes: StepOutcomes,
    uses: dict[str, dict[str, Any]],
) -> UserCrew | NativeCrew:
    plan, slots, slot = assignment.plan, assignment.slots, assignment.slot
    vus = share(plan.vus, slots, slot)
    if any(hook.protocol is not None for layer in design.layers for hook in layer):
        _warn_of_descriptors(assignment, vus)
    iterations = assignment.iterations
    if iterations is None and plan.iterations is not None:
        iterations = share(plan.iterations, slots, slot)
    if assignment.static and not assignment.trace:
        static = compile_static(
            design, hub, vus=vus, iterations=iterations, duration_s=assignment.run_s
        )
        if static is not None:
            return static
    program = compile_calls(design)
    context = host.instance.context
    # A slot without users still sets up and tears down.
    instances = [host.instance] if vus else []
    instances += [_make_instance(design, hub, number, context, uses) for number in range(1, vus)]
    return UserCrew(
        program,
        outcomes,
        checks=[CheckTally(hook.name) for hook in design.checks],
        metrics=[
            MetricTally(hook.name, hook.metric_kind or MetricKind.COUNT) for hook in design.metrics
        ],
        users=[
            VirtualUser(instance, remembers=program.remembers or instance is host.instance)
            for instance in instances
        ],
        interval_s=plan.interval_s,
        iterations=iterations,
        is_once=is_once(design),
    )


def _warn_of_descriptors(assignment: PrepareSlot, vus: int) -> None:
    """Connections that cannot be opened look like a target that cannot be reached."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = allowed - len(os.listdir("/proc/self/fd"))
    if assignment.plan.connections is not Connections.SHARED and vus > spare:
        complain(
            f"{assignment.workflow}: {vus:,} virtual users here, each with a connection, but "
            f"only {spare:,} may be open at once (ulimit -n): the others will fail to connect\n"
        )


class SlotRun:
    """A prepared part. Made by `prepare_slot`; ends with `run` or `finish_unstarted`."""

    def __init__(
        self,
        assignment: PrepareSlot,
        design: Blueprint,
        *,
        hub: ClientHub,
        host: LifecycleHooks,
        crew: UserCrew | NativeCrew,
        outcomes: StepOutcomes,
        send: Send,
        on_beat: Callable[[], None],
    ) -> None:
        self._assignment = assignment
        self._design = design
        self._hub = hub
        self._host = host
        self._crew = crew
        self._outcomes = outcomes
        self._send = send
        self._pulse = ReportTimer(
            asyncio.get_running_loop(), on_report=self._report, on_beat=on_beat
        )
        self._memory = ResidentMemory()
        self._sequence = 0
        self._began_s: float | None = None
        self._ended_s: float | None = None
        self._cpu_began_s = time.process_time()
        self._stop: tuple[str, float] | None = None  # reason, instant of the cut
        self._stop_came = asyncio.Event()
        self._is_halted = False
        self.is_tainted = False  # code of the part runs on after it was cancelled
        self.is_unloaded = False  # hooks that tear down have a time of their own, and no lease

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
        self._crew.renew_lease(deadline_boottime_ns)
        self._hub.guard()

    def halt(self) -> None:
        """Nothing more is sent. May be called at any instant; `cut` has to follow."""
        self._is_halted = True
        self._crew.halt()
        self._hub.halt()

    def cut(self, reason: str) -> None:
        """Ends the users now: whoever holds the lease may already be loading the target."""
        self.stop(reason, 0.0)
        if self._began_s is not None and self._ended_s is None:
            self._crew.cut()
            self._hub.cut()

    # --- the run --------------------------------------------------------------------------

    async def run(self, start_in_s: float) -> SlotFinished:
        """Runs the part to its end; never raises for what user code does."""
        self._pulse.start()
        try:
            await self._wait_for_start(start_in_s)
            if self._stop is None:
                await self._run_users()
            return await self._finish()
        finally:
            self._close()

    async def finish_unstarted(self) -> SlotFinished:
        """The end of a part that was prepared and is not to run."""
        self._pulse.start()
        try:
            return await self._finish()
        finally:
            self._close()

    def _close(self) -> None:
        self._pulse.stop()
        self._memory.close()
        self._hub.close()
        gc.unfreeze()

    async def _wait_for_start(self, start_in_s: float) -> None:
        if start_in_s > 0 and self._stop is None:
            try:
                async with asyncio.timeout(start_in_s):
                    await self._stop_came.wait()
            except TimeoutError:
                return

    async def _run_users(self) -> None:
        crew = self._crew
        self._outcomes.recorder.begin()
        self._began_s = time.monotonic()
        self._cpu_began_s = time.process_time()
        deadline_s = self._began_s + self._assignment.run_s
        crew.start()
        await asyncio.sleep(0)  # every user is in its first step now,
        gc.freeze()  # and no collection needs to walk their tasks and frames
        over = asyncio.ensure_future(crew.wait())
        try:
            await self._either(over, until_s=deadline_s)
            crew.stop()
            while not over.done():
                cut_s = deadline_s + GRACE_S
                if self._stop is not None:
                    cut_s = min(cut_s, self._stop[1])
                if time.monotonic() >= cut_s:
                    await self._cut_users(over)
                    break
                await self._either(over, until_s=cut_s)
            if self._is_halted:  # they may have ended without their last calls being counted
                crew.cut()
                self._hub.cut()
        finally:
            over.cancel()
            self._ended_s = time.monotonic()
            crew.close()

    async def _either(self, over: "asyncio.Future[None]", *, until_s: float) -> None:
        """Waits for the users, for a (new) stop or for the instant, whichever is first."""
        self._stop_came.clear()
        came = asyncio.ensure_future(self._stop_came.wait())
        try:
            timeout_s = max(0.0, until_s - time.monotonic())
            await asyncio.wait((over, came), timeout=timeout_s, return_when="FIRST_COMPLETED")
        finally:
            came.cancel()

    async def _cut_users(self, over: "asyncio.Future[None]") -> None:
        give_up_s = time.monotonic() + CUT_S
        while not over.done():
            if time.monotonic() >= give_up_s:
                self.is_tainted = True
                complain(
                    f"{self._crew.looping} virtual users ignore their cancellation and are left "
                    "behind\n"
                )
                return
            # More than once: code may swallow the first and wait for something else.
            self._crew.cut()
            self._hub.cut()
            await asyncio.wait((over,), timeout=CUT_S / 5)

    # --- after the clock ------------------------------------------------------------------

    async def _finish(self) -> SlotFinished:
        if not self.is_tainted:
            self._hub.resume()
            self.is_unloaded = True
        self._send(SlotTearingDown())
        self._report(histograms=True)  # hooks may hang, and be killed: what was measured stays
        status, error = self._outcome()
        provided = Provided(slot=self._assignment.slot)
        if status is PartStatus.COMPLETED:
            try:
                provided = await self._host.provide(self._assignment.slot)
            except RunError as failure:
                status, error = PartStatus.FAILED, str(failure)
        await self._host.tear_down()
        self._outcomes.faults.summarise()
        finished = SlotFinished(
            status=status,
            error=error,
            report=self._make_report(histograms=True, series_from=0),
            provided=encode_provided(provided),
            tainted=self.is_tainted or self._host.is_tainted,
        )
        return _within_frame(finished)

    def _outcome(self) -> tuple[PartStatus, str | None]:
        plan, breakage = self._assignment.plan, self._crew.breakage
        if breakage is not None:
            complain(format_error(breakage))
            return PartStatus.FAILED, f"internal error: {describe_error(breakage)}"
        if self._stop is not None:
            return PartStatus.STOPPED, self._stop[0]
        if not plan.is_test and self._outcomes.first_fault is not None:
            return PartStatus.FAILED, f"{plan.name}.{self._outcomes.first_fault}"
        if is_once(self._design) and self._crew.iterations < self._crew.size:
            return PartStatus.FAILED, (
                f"{plan.name}: not done within its duration of {format_duration(plan.duration_s)}"
            )
        return PartStatus.COMPLETED, None

    # --- reports --------------------------------------------------------------------------

    def _report(self, histograms: bool) -> None:
        series_from = max(0, int(self._ran_s()) - SERIES_S)
        self._send(
            SlotReport(report=self._make_report(histograms=histograms, series_from=series_from))
        )

    def _ran_s(self) -> float:
        if self._began_s is None:
            return 0.0
        return (self._ended_s or time.monotonic()) - self._began_s

    def _make_report(self, *, histograms: bool, series_from: int) -> Report:
        self._sequence += 1
        crew = self._crew
        return self._outcomes.recorder.report(
            self._design.recorded,
            workflow=self._assignment.workflow,
            slot=self._assignment.slot,
            sequence=self._sequence,
            elapsed_s=self._assignment.offset_s + self._ran_s(),
            vus=crew.looping,
            iterations=crew.iterations,
            histograms=histograms,
            series_from=series_from,
            offset_s=int(self._assignment.offset_s),
            checks=[tally.report() for tally in crew.checks],
            metrics=[tally.report(histograms=histograms) for tally in crew.metrics],
            cpu_s=time.process_time() - self._cpu_began_s,
            loop_lag_s=self._pulse.take_lag_s(),
            rss_bytes=self._memory.resident_bytes(),
        )


def _within_frame(finished: SlotFinished) -> SlotFinished:
    """Return the last message of a slot with less detail if it would not fit into a frame."""
    try:
        encode_frame(finished)
    except FrameError:
        empty = msgspec.structs.replace(finished, report=finished.report.shed(0))
        room = FRAME_BYTES_MAX - len(encode_frame(empty))
        return msgspec.structs.replace(finished, report=finished.report.shed(room))
    return finished


def _print_exchange(exchange: Exchange) -> None:
    from hyperscale.clients.trace import format_exchange  # noqa: PLC0415 - only when asked for

    sys.stdout.write(f"{format_exchange(exchange)}\n\n")
