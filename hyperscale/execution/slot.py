"""One slot of a workflow on one executor, from its assignment to its last report.

`prepare_slot` does everything that must not cost time during the load: it imports the code, encodes
request parts, runs Use and setup hooks and makes the virtual users. `SlotRun.run` loops the users
until the deadline, then runs Provide and teardown hooks.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec

from hyperscale._native import Exchange, Recorder
from hyperscale.clients import ClientHub
from hyperscale.config import format_duration
from hyperscale.errors import HyperscaleError, InputError, InvariantError, RunError
from hyperscale.execution.bundle import mount, mounted_files
from hyperscale.execution.capture import complain
from hyperscale.execution.crews import CrewMaker, make_instance
from hyperscale.execution.hook_calls import compile_calls, is_once
from hyperscale.execution.lifecycle_hooks import LifecycleHooks
from hyperscale.execution.limits import CUT_S
from hyperscale.execution.loop_holds import LoopHolds
from hyperscale.execution.outcomes import StepOutcomes
from hyperscale.execution.protocol import (
    FRAME_BYTES_MAX,
    FrameError,
    PrepareSlot,
    SlotFinished,
    SlotReport,
    SlotRole,
    SlotSetUp,
    SlotTearingDown,
    StartSlot,
    encode_frame,
)
from hyperscale.execution.slot_clock import SlotClock
from hyperscale.execution.slot_reports import Send, SlotReports
from hyperscale.execution.static import NativeCrew
from hyperscale.execution.user_errors import (
    UserErrorLog,
    describe_error,
    failure,
    format_error,
)
from hyperscale.execution.values import (
    pack_set_up,
    unpack_context,
    unpack_set_up,
    unpack_uses,
)
from hyperscale.execution.virtual_users import UserCrew
from hyperscale.graph import Blueprint, Hook, blueprint, load_module
from hyperscale.graph.loading import find, import_error
from hyperscale.graph.reading import display_path
from hyperscale.graph.workflow import set_attribute
from hyperscale.plan import Per
from hyperscale.plan.changes import AppliedChange
from hyperscale.plan.context import Provided, decode_received, encode_provided
from hyperscale.plan.status import PartStatus
from hyperscale.testing.parameters import (
    GivenParameters,
    Mask,
    ParameterScope,
    install_mask,
    install_scope,
    masked,
)


async def prepare_slot(
    assignment: PrepareSlot,
    send: Send,
    *,
    shared: Awaitable[bytes],
    on_beat: Callable[[], None] = lambda: None,
) -> "SlotRun":
    """Prepare a slot. Raises InputError if the user's file is wrong, RunError if user code failed.

    `shared` is the context that setup left, for slots that run setup or await it.

    Before it raises, teardown hooks run if setup hooks have begun, and the requests of both are
    reported.
    """
    design = _load_blueprint(assignment)
    recorder = Recorder(len(design.recorded))
    recorder.set_secrets(Mask(assignment.secrets.values()).forms)  # in samples of failures
    outcomes = StepOutcomes(recorder, UserErrorLog(complain), is_open=assignment.plan.is_open)
    trace = _tracer(design) if assignment.trace else None
    show = _shower(design) if assignment.trace else None
    hub = ClientHub(assignment.plan, recorder, network=design.network, trace=trace, show=show)
    hooks: LifecycleHooks | None = None
    try:
        _check_network(assignment, hub)
        await _prepare_clients(assignment, design, hub)
        await _prepare_arguments(assignment, design, hub)
        received = decode_received(assignment.context)
        uses = unpack_uses(received)
        instance = make_instance(
            assignment, design, hub, number=0, context=unpack_context(received), uses=uses
        )
        hooks = LifecycleHooks(design, compile_calls(design), outcomes, instance, uses)
        await _set_up_workflow(assignment, hooks, send, shared)
        if assignment.role is not SlotRole.TEAR_DOWN:
            await hooks.set_up(Per.EXECUTOR, [instance])
        clock = SlotClock(assignment)
        maker = CrewMaker(assignment, clock, hub, hooks)
        crew = maker.crew()
        if isinstance(crew, UserCrew):  # hooks of users keep a workflow from being static
            await hooks.set_up(Per.VU, [user.instance for user in crew.users])
    except BaseException:
        if hooks is not None and hooks.has_begun:
            send(SlotTearingDown())
            await hooks.tear_down()
            report = recorder.report(
                design.recorded,
                workflow=assignment.workflow,
                slot=assignment.slot,
                sequence=1,
                elapsed_s=0.0,
                histograms=True,
            )
            send(SlotReport(report=report))
        await hub.drain()
        hub.close()
        raise
    # Objects that live as long as the slot are exempt from garbage collection: walking thousands
    # of users would be a pause in every latency.
    gc.collect()
    gc.freeze()
    reports = SlotReports(
        assignment, clock, recorder, design.recorded, crew, send=send, on_beat=on_beat
    )
    return SlotRun(
        assignment, clock, hub, hooks, reports=reports, maker=maker, crew=crew, send=send
    )


async def _set_up_workflow(
    assignment: PrepareSlot, hooks: LifecycleHooks, send: Send, shared: Awaitable[bytes]
) -> None:
    """Give the first virtual user the context that setup left: of this slot, or of another."""
    role, set_up, first = assignment.role, assignment.set_up, hooks.instance
    if role is SlotRole.TEAR_DOWN:
        hooks.take_over()
    else:
        await hooks.use()
    if role in (SlotRole.SET_UP, SlotRole.AWAIT_SETUP):
        left = b""
        if role is SlotRole.SET_UP:
            await hooks.set_up(Per.WORKFLOW, [first])
            left = pack_set_up(first.context, workflow=assignment.workflow)
        send(SlotSetUp(context=left))
        hooks.hand_over()
        set_up = await shared
    if set_up:
        set_attribute(first, "context", unpack_set_up(set_up))


def _load_blueprint(assignment: PrepareSlot) -> Blueprint:
    """Import the user's code and make the blueprint of the workflow."""
    values = {**assignment.parameters, **assignment.secrets}
    install_scope(ParameterScope(GivenParameters(values)))
    install_mask(Mask(assignment.secrets.values()))
    try:
        if assignment.bundle:
            module = mount(Path(assignment.bundle), assignment.file, job=assignment.job)
        else:
            module = load_module(assignment.file)
    except HyperscaleError:
        raise
    except ModuleNotFoundError as error:
        raise import_error(error, Path(assignment.file)) from error
    except BaseException as error:  # user code may raise anything while it is imported
        what = f"{assignment.file}: cannot be imported in an executor"
        raise failure(InputError, what, error) from error
    cls = find(module, assignment.workflow)
    return blueprint(cls, assignment.plan, files=mounted_files())


def _check_network(assignment: PrepareSlot, hub: ClientHub) -> None:
    try:
        hub.check_network()
    except InputError as error:
        where = f"{display_path(assignment.file)}: {assignment.plan.name}"
        raise InputError(f"{where}.{error.message}", hint=error.hint) from error


async def _prepare_clients(assignment: PrepareSlot, design: Blueprint, hub: ClientHub) -> None:
    """Import the libraries of the clients that the steps return results of, and have servers
    describe their services."""
    for url in design.reflect:
        try:
            await hub.reflect(url)
        except InputError as error:
            where = f"{display_path(assignment.file)}: {design.plan.name}"
            raise InputError(f"{where}: {error.message}", hint=error.hint) from error
    for where, method in design.methods if design.reflect else ():
        try:
            hub.check_method(method)
        except InputError as error:
            raise InputError(f"{where}: {error.message}", hint=error.hint) from error
    for hook in (hook for layer in design.layers for hook in layer):
        if hook.protocol is not None:
            try:
                await hub.require(hook.protocol)
            except InputError as error:
                where = f"{display_path(assignment.file)}: {design.plan.name}.{hook.name}"
                raise InputError(f"{where}: {error.message}", hint=error.hint) from error


async def _prepare_arguments(assignment: PrepareSlot, design: Blueprint, hub: ClientHub) -> None:
    """Resolve and encode every request part once, before anything is measured."""

    async def prepare(hook: Hook, parameter: str, work: Awaitable[None]) -> None:
        try:
            await work
        except InputError as error:
            where = f"{display_path(assignment.file)}: {design.plan.name}.{hook.name}: {parameter}"
            raise InputError(f"{where}: {error.message}", hint=error.hint) from error

    hooks = [hook for layer in design.layers for hook in layer]
    hooks += [*design.setups, *design.teardowns, *design.checks, *design.metrics]
    try:
        async with asyncio.TaskGroup() as tasks:
            for hook in hooks:
                parts = {name: hub.prepare(part) for name, part in hook.optimized.items()}
                parts |= {name: hub.prepare_rows(c.parts) for name, c in hook.columns.items()}
                for parameter, work in parts.items():
                    task = prepare(hook, parameter, work)
                    tasks.create_task(task, name=f"prepare {hook.name}")
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


class SlotPhase(Enum):
    PREPARED = "prepared"
    RUNNING = "running"  # the virtual users loop
    TEARING_DOWN = "tearing_down"
    FINISHED = "finished"


SLOT_MOVES = {
    SlotPhase.PREPARED: {SlotPhase.RUNNING, SlotPhase.TEARING_DOWN},
    SlotPhase.RUNNING: {SlotPhase.TEARING_DOWN},
    SlotPhase.TEARING_DOWN: {SlotPhase.FINISHED},
    SlotPhase.FINISHED: set[SlotPhase](),
}

_HAS_LOAD = (SlotPhase.PREPARED, SlotPhase.RUNNING)


class _SlotStop(NamedTuple):
    reason: str
    cut_at_s: float  # when steps in flight are cut


class SlotRun:
    """A prepared slot. `prepare_slot` makes it; `run` ends it."""

    def __init__(
        self,
        assignment: PrepareSlot,
        clock: SlotClock,
        hub: ClientHub,
        hooks: LifecycleHooks,
        *,
        reports: SlotReports,
        maker: CrewMaker,
        crew: UserCrew | NativeCrew,
        send: Send,
    ) -> None:
        self._assignment = assignment
        self._clock = clock
        self._maker = maker
        self._growing: asyncio.Task[None] | None = None  # makes more users
        self._hub = hub
        self._hooks = hooks
        self._reports = reports
        self._crew = crew
        self._send = send
        self._phase = SlotPhase.PREPARED
        self._stop: _SlotStop | None = None
        self._news = asyncio.Event()  # a stop or a change came
        self._is_halted = False
        self._is_tainted = False  # virtual users ignored their cancellation and still run

    def _become(self, phase: SlotPhase) -> None:
        """The only writer of the phase."""
        if phase not in SLOT_MOVES[self._phase]:
            raise InvariantError(f"slot: {self._phase.name} -> {phase.name}")
        self._phase = phase

    # --- called by the service ------------------------------------------------------------

    @property
    def is_unloaded(self) -> bool:
        """True if the load has ended: teardown hooks need no lease."""
        is_over = self._phase in (SlotPhase.TEARING_DOWN, SlotPhase.FINISHED)
        return is_over and not self._is_tainted

    def stop(self, reason: str, grace_s: float) -> None:
        """Start no more steps; cut those in flight after `grace_s`."""
        cut_at_s = time.monotonic() + grace_s
        # Of several stops the first reason and the earliest cut count.
        if self._stop is not None:
            reason, cut_at_s = self._stop.reason, min(self._stop.cut_at_s, cut_at_s)
        self._stop = _SlotStop(reason, cut_at_s)
        self._crew.stop()
        self._news.set()

    def change(self, changes: Sequence[AppliedChange]) -> None:
        """Follow all changes of the load so far."""
        is_over = self._stop is not None or self._phase not in _HAS_LOAD
        if is_over or not self._assignment.plan.is_timed or not self._clock.change(changes):
            return
        try:
            vus = self._maker.vus
        except InputError as error:
            complain(f"the load is not raised: {error}\n")
            vus = self._crew.size
        if isinstance(self._crew, NativeCrew):
            self._crew.change(vus)
        elif vus > self._crew.size and self._growing is None:
            self._growing = asyncio.create_task(self._grow(self._crew), name="more users")
        else:
            self._crew.change([], self._maker.closed_pacing)
        self._news.set()

    async def _grow(self, crew: UserCrew) -> None:
        """Add the users that the slot lacks, after their setup hooks."""
        try:
            while (vus := self._maker.vus) > crew.size and self._stop is None:
                users = self._maker.users(range(crew.size, vus))
                await self._hooks.set_up_more([user.instance for user in users])
                crew.change(users, self._maker.closed_pacing)
        except HyperscaleError as error:
            complain(f"the load is not raised: {error}\n")
            crew.change([], self._maker.closed_pacing)
        finally:
            self._growing = None

    def grant_rows(self, limit: int) -> None:
        """Let the slot use more rows of feeds that are dealt once."""
        self._crew.grant_rows(limit)

    def renew_lease(self, deadline_boottime_ns: int) -> None:
        self._crew.renew_lease(deadline_boottime_ns)
        self._hub.guard()

    def halt(self) -> None:
        """Send nothing more. A signal handler may call this; `cut` has to follow."""
        self._is_halted = True
        self._crew.halt()
        self._hub.halt()

    def cut(self, reason: str) -> None:
        """End the users at once: another worker may already run this slot's load."""
        self.stop(reason, 0.0)
        if self._phase is SlotPhase.RUNNING:
            self._cut_load()

    # --- the load -------------------------------------------------------------------------

    async def run(self, start: StartSlot | None) -> SlotFinished:
        """Run the slot to its end, or only end it if there is no start.

        Errors of user code are reported, not raised.
        """
        self._reports.start()
        try:
            if start is not None and self._stop is None:
                self._clock.start(start.since_s)
                start_at_s = time.monotonic() + start.start_in_ms / 1000
                while self._stop is None and time.monotonic() < start_at_s:
                    await self._wait_for(None, until_s=start_at_s)
                if self._stop is None:
                    await self._run_users()
            if self._phase is SlotPhase.PREPARED:
                self._hooks.hand_over()  # the teardown of a workflow runs if it was started, once
            return await self._finish()
        finally:
            self._reports.close()
            await self._hub.drain()
            self._hub.close()
            gc.unfreeze()

    async def _run_users(self) -> None:
        crew = self._crew
        self._become(SlotPhase.RUNNING)
        self._hooks.outcomes.recorder.begin(self._clock.warmup_s)
        self._reports.begin_load()
        holds = None
        if isinstance(crew, UserCrew):  # a native program runs no code of the user
            try:
                holds = LoopHolds(self._hooks.program, self._hooks.outcomes.recorder)
            except OSError as error:  # no descriptor left for it: the load runs all the same
                complain(f"code that holds the event loop is not watched: {error}\n")
        crew.start()
        over = asyncio.ensure_future(crew.wait())
        try:
            await asyncio.sleep(0)  # every user is in its first step now,
            gc.freeze()  # and no collection needs to walk their tasks and frames
            while not over.done() and self._stop is None:
                left_s = self._clock.left_s
                if left_s is not None and left_s <= 0:
                    break
                until_s = None if left_s is None else time.monotonic() + left_s
                await self._wait_for(over, until_s=until_s)
            left_s = self._clock.left_s
            now_s = time.monotonic()
            deadline_s = None if left_s is None else now_s + left_s
            crew.stop()
            longest_ns = self._hooks.outcomes.recorder.longest_ns
            longest_s = None if longest_ns is None else longest_ns / 1e9
            grace_s = self._assignment.plan.grace_s_after(longest_s)
            while not over.done():
                cuts_s = [] if deadline_s is None else [deadline_s + grace_s]
                if self._stop is not None:
                    cuts_s.append(self._stop.cut_at_s)
                cut_at_s = min(cuts_s)  # a paused slot ends only by a stop
                if time.monotonic() >= cut_at_s:
                    await self._cut_users(over)
                    break
                await self._wait_for(over, until_s=cut_at_s)
            if self._is_halted:  # users may have ended before their last calls were counted
                self._cut_load()
        finally:
            over.cancel()
            if self._growing is not None:
                self._growing.cancel()
            if holds is not None:
                holds.stop()
            self._reports.end_load()
            crew.close()

    async def _wait_for(
        self, over: "asyncio.Future[None] | None", *, until_s: float | None
    ) -> None:
        """Wait until the users have ended, a stop or a change arrives, or `until_s` has come."""
        self._news.clear()
        came = asyncio.ensure_future(self._news.wait())
        try:
            timeout_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            awaited = (came,) if over is None else (over, came)
            await asyncio.wait(awaited, timeout=timeout_s, return_when="FIRST_COMPLETED")
        finally:
            came.cancel()

    async def _cut_users(self, over: "asyncio.Future[None]") -> None:
        give_up_s = time.monotonic() + CUT_S
        while not over.done():
            if time.monotonic() >= give_up_s:
                self._is_tainted = True
                complain(
                    f"{self._crew.looping} virtual users ignored their cancellation and are "
                    "abandoned\n"
                )
                return
            # More than once: code may ignore the first cancellation and await something else.
            self._cut_load()
            await asyncio.wait((over,), timeout=CUT_S / 5)

    def _cut_load(self) -> None:
        self._hub.cut()  # first: it notes how long the requests of the users have taken
        self._crew.cut()

    # --- after the load -------------------------------------------------------------------

    async def _finish(self) -> SlotFinished:
        self._become(SlotPhase.TEARING_DOWN)
        if not self._is_tainted:
            self._hub.resume()
        self._send(SlotTearingDown())
        self._reports.send(histograms=True)  # if hooks hang and are killed, the statistics are sent
        status, error = self._outcome()
        provided = Provided(slot=self._assignment.slot)
        if status is PartStatus.COMPLETED and self._assignment.role is not SlotRole.TEAR_DOWN:
            try:
                provided = await self._hooks.provide(self._assignment.slot)
            except RunError as raised:
                status, error = PartStatus.FAILED, raised
        await self._hooks.tear_down()
        self._hooks.outcomes.faults.summarise()
        finished = SlotFinished(
            status=status,
            error=None if error is None else masked(error.message),
            hint="" if error is None else masked(error.hint),
            report=self._reports.make(histograms=True, whole_series=True),
            provided=encode_provided(provided),
            tainted=self._is_tainted or self._hooks.is_tainted,
            drawn=self._crew.drawn,
        )
        self._become(SlotPhase.FINISHED)
        return _within_frame(finished)

    def _outcome(self) -> tuple[PartStatus, RunError | None]:
        plan, breakage = self._assignment.plan, self._crew.breakage
        if breakage is not None:
            complain(format_error(breakage))
            return PartStatus.FAILED, RunError(f"internal error: {describe_error(breakage)}")
        if self._stop is not None:
            return PartStatus.STOPPED, RunError(self._stop.reason)
        fault = self._hooks.outcomes.first_fault
        if not plan.is_test and fault is not None:
            return PartStatus.FAILED, RunError(f"{plan.name}.{fault.message}", hint=fault.hint)
        ended = self._hooks.outcomes.recorder.ended_iterations
        if is_once(self._hooks.design) and ended < self._crew.size:
            limit = format_duration(plan.duration_s)
            late = RunError(f"{plan.name}: not done within its duration of {limit}")
            return PartStatus.FAILED, late
        return PartStatus.COMPLETED, None


def _within_frame(finished: SlotFinished) -> SlotFinished:
    """Return the last message of a slot with less detail if it would not fit into a frame."""
    try:
        encode_frame(finished)
    except FrameError:
        empty = msgspec.structs.replace(finished, report=finished.report.shed(0))
        room = FRAME_BYTES_MAX - len(encode_frame(empty))
        return msgspec.structs.replace(finished, report=finished.report.shed(room))
    return finished


def _tracer(design: Blueprint) -> Callable[[Exchange], None]:
    """Return a function that prints an exchange with the name of the step that made it."""
    from hyperscale.clients.trace import format_exchange  # noqa: PLC0415 - only when asked for

    write = _shower(design)

    def show(exchange: Exchange) -> None:
        write(exchange.step, format_exchange(exchange))

    return show


def _shower(design: Blueprint) -> Callable[[int, str], None]:
    """Return a function that prints a finished call with the name of the step that made it."""

    def show(step: int, text: str) -> None:
        names = design.recorded
        name = names[step] if step < len(names) else "no step"
        sys.stdout.write(f"-- {name}\n{text}\n\n")

    return show
