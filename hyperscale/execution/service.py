"""The executor's side of the protocol: it runs one slot at a time, until it is asked to exit.

Owns what is process-wide: the loop, signals, logging, captured output. The process ends with
`os._exit`, so that threads and tasks of user code cannot keep it alive.
"""

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

import msgspec
import uvloop

from hyperscale.config import GRACE_S
from hyperscale.errors import HyperscaleError, InputError, InvariantError
from hyperscale.execution.capture import Capture, complain
from hyperscale.execution.channel import Channel
from hyperscale.execution.lease import LeaseWatch
from hyperscale.execution.limits import CUT_S, TEARDOWN_S
from hyperscale.execution.orphans import ProcessMark
from hyperscale.execution.protocol import (
    ChangeSlot,
    ExecutorHello,
    FromExecutor,
    GrantSlotRows,
    PrepareSlot,
    RefusalKind,
    RenewLease,
    ShareContext,
    SlotPrepared,
    SlotRefused,
    SlotReport,
    SlotTearingDown,
    StartSlot,
    StopSlot,
    ToExecutor,
    to_executor_decoder,
)
from hyperscale.execution.slot import SlotRun, prepare_slot
from hyperscale.execution.user_errors import describe_error
from hyperscale.testing.parameters import masked

_CRASHED = 70
_THREADS_S = 0.1


def serve(control_fd: int, mark: ProcessMark, boxed: str) -> None:
    """Run the executor; does not return. `boxed`: what is in force of its box, if it has one."""
    # A handler rather than SIG_IGN, which programs started by user code would inherit. The
    # parent decides what an interrupt means.
    signal.signal(signal.SIGINT, lambda *_: None)
    capture = Capture()
    capture.install()
    faulthandler.enable(file=2)
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    code = _CRASHED
    try:
        code = loop.run_until_complete(_serve(control_fd, mark, capture, boxed))
    except BaseException:  # noqa: BLE001 - printed, and shown by the exit code
        traceback.print_exc()
    finally:
        capture.flush()
        os._exit(code)


async def _serve(control_fd: int, mark: ProcessMark, capture: Capture, boxed: str) -> int:
    service = ExecutorService(control_fd, mark, capture, boxed)
    return await service.left


def _has_threads() -> bool:
    """Return True if threads are left that do not end within a moment."""
    until_s = time.monotonic() + _THREADS_S
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, until_s - time.monotonic()))
    return any(thread.is_alive() for thread in others)


def _has_children() -> bool:
    """Return True if there are child processes, also ended ones that were not reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class ExecutorService:
    """Handles the messages of the pool, and reports to it."""

    def __init__(
        self, control_fd: int, mark: ProcessMark, capture: Capture, boxed: str = ""
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._mark = mark
        self._capture = capture
        self._slot: SlotRun | None = None
        # Prepares, runs or tears down the slot. None before its last message is sent: the
        # pool's answer can arrive before the task itself has ended.
        self._work: asyncio.Task[None] | None = None
        self._shared: asyncio.Future[bytes] | None = None  # the context that setup left
        self._is_leaving = False
        self._lease: LeaseWatch | None = None
        self._threads: ThreadPoolExecutor | None = None  # of `to_thread`, one pool for each slot
        self.left: asyncio.Future[int] = self._loop.create_future()
        # Never closed: the guard of this process watches the other end of the socket.
        self._channel: Channel[ToExecutor] = Channel(
            self._loop,
            socket.socket(fileno=control_fd),
            to_executor_decoder(),
            on_message=self._on_message,
            on_closed=self._on_closed,
        )
        self._loop.add_signal_handler(signal.SIGTERM, self._leave)
        self._channel.send(ExecutorHello(boxed=boxed))

    def _on_message(self, message: ToExecutor) -> None:
        match message:
            case PrepareSlot() if self._slot is not None or self._work is not None:
                self.left.set_exception(InvariantError("given a slot while holding another"))
            case PrepareSlot():
                self._begin(self._prepare(message))
            case ShareContext():
                if self._shared is not None and not self._shared.done():
                    self._shared.set_result(message.context)
            case StartSlot():
                if self._slot is not None and self._work is None:
                    self._begin(self._run(self._slot, message))
            case ChangeSlot() if self._slot is not None:
                self._slot.change(message.changes)
            case GrantSlotRows() if self._slot is not None:
                self._slot.grant_rows(message.limit)
            case StopSlot():
                self._stop(message.reason, message.grace_s)
            case RenewLease():
                if self._slot is not None and not self._slot.is_unloaded:
                    self._renew_lease(self._slot, message.deadline_boottime_ns)

    def _on_closed(self, reason: str | None) -> None:
        # The parent is gone, and the guard is about to end the whole process group.
        self.left.cancel(reason)

    # --- the lease ------------------------------------------------------------------------

    def _renew_lease(self, slot: SlotRun, deadline_boottime_ns: int) -> None:
        if self._lease is None:
            self._lease = LeaseWatch(self._halt)
        self._lease.renew(deadline_boottime_ns)
        slot.renew_lease(deadline_boottime_ns)

    def _halt(self) -> None:
        """Stop sending: the lease has expired. Called between any two instructions of user code."""
        if self._slot is not None:
            self._slot.halt()
            self._loop.call_soon(self._cut, self._slot)

    def _cut(self, slot: SlotRun) -> None:
        if slot is self._slot:
            slot.cut("lease expired")
            self._stop("lease expired", 0.0)

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    # --- messages ------------------------------------------------------------------------

    def _send(self, message: FromExecutor) -> None:
        is_unloaded = self._slot is not None and self._slot.is_unloaded
        if isinstance(message, SlotTearingDown) and is_unloaded and self._lease is not None:
            self._lease.end()
        # Reports are cumulative: a new one is dropped while an old one waits to be sent.
        if isinstance(message, SlotReport) and self._channel.unsent_bytes:
            return
        self._channel.send(message)

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        self._work = self._loop.create_task(work, name="slot")
        self._work.add_done_callback(self._on_work_done)

    def _on_work_done(self, work: "asyncio.Task[None]") -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            if not self.left.done():
                self.left.set_exception(error)
        elif self._is_leaving:
            self._leave()

    # --- preparing ------------------------------------------------------------------------

    async def _prepare(self, assignment: PrepareSlot) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self._loop.set_default_executor(self._threads)
        try:
            logging.basicConfig(
                level=assignment.log_level.upper(),
                stream=sys.stderr,
                format="%(asctime)s %(levelname)s %(name)s: %(message)s",
                force=True,
            )
            self._shared = self._loop.create_future()
            slot = await prepare_slot(
                assignment, self._send, shared=self._shared, on_beat=self._check_lease
            )
        except InputError as error:
            self._refuse(error.message, RefusalKind.INPUT, error.hint)
        except HyperscaleError as error:
            self._refuse(error.message, RefusalKind.FAILED, error.hint)
        except asyncio.CancelledError:
            self._refuse("stopped while preparing", RefusalKind.STOPPED)
        except Exception as error:  # noqa: BLE001 - a bug: the pool still gets an answer
            traceback.print_exc()
            self._refuse(f"internal error: {describe_error(error)}", RefusalKind.FAILED)
        else:
            self._capture.flush()
            self._slot, self._work = slot, None
            self._send(SlotPrepared())

    def _refuse(self, error: str, kind: RefusalKind, hint: str = "", tainted: bool = False) -> None:
        tainted = self._leaves_something() or tainted
        self._capture.flush()
        self._work = None
        error, hint = masked(error), masked(hint)
        self._send(SlotRefused(error=error, kind=kind, hint=hint, tainted=tainted))

    # --- running --------------------------------------------------------------------------

    async def _run(self, slot: SlotRun, start: StartSlot | None) -> None:
        finished = await slot.run(start)
        if self._leaves_something():
            finished = msgspec.structs.replace(finished, tainted=True)
        self._capture.flush()
        if self._lease is not None:
            self._lease.end()
        self._slot = self._work = None
        self._send(finished)

    def _leaves_something(self) -> bool:
        """Return True if threads or processes that user code started are left.

        The pool then ends this process, and they end with it.
        """
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        has_threads = _has_threads()
        has_processes = self._mark.is_on_others()
        if has_processes:
            complain("the processes that the slot started are killed now\n")
        return has_threads or has_processes or _has_children()

    # --- ending ---------------------------------------------------------------------------

    def _stop(self, reason: str, grace_s: float) -> None:
        if self._slot is not None:
            self._slot.stop(reason, grace_s)
            if self._work is None:
                self._begin(self._run(self._slot, None))
        elif self._work is not None and not self._work.cancelling():
            self._work.cancel()
            self._loop.call_later(TEARDOWN_S + 2 * CUT_S, self._give_up, self._work)

    def _give_up(self, work: "asyncio.Task[None]") -> None:
        """Refuse the slot although setup hooks, which ignored their cancellation, still run."""
        if not work.done():
            self._refuse("setup hooks did not stop", RefusalKind.STOPPED, tainted=True)

    def _leave(self) -> None:
        self._is_leaving = True
        if self._work is None and self._slot is None:
            if not self.left.done():
                with contextlib.suppress(OSError):  # the pool is gone
                    self._channel.finish()
                self.left.set_result(0)
            return
        self._stop("the executor was asked to exit", GRACE_S)
