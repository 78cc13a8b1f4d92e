"""What an executor does with the messages it gets: one part at a time, until told to leave.

Owns the process-wide things: the loop, signals, logging, captured output. The process ends
in `os._exit`, because threads and tasks of user code must not be able to keep it alive.
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
    ExecutorHello,
    ExitExecutor,
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
    ToExecutor,
    to_executor_decoder,
)
from hyperscale.execution.slot import SlotRun, prepare_slot
from hyperscale.execution.user_errors import describe_error

_CRASHED = 70
_THREADS_S = 0.1


def serve(control_fd: int, mark: ProcessMark) -> None:
    """Runs the executor; does not return."""
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
        code = loop.run_until_complete(_serve(control_fd, mark, capture))
    except BaseException:  # noqa: BLE001 - shown, and told by the exit code
        traceback.print_exc()
    finally:
        capture.flush()
        os._exit(code)


async def _serve(control_fd: int, mark: ProcessMark, capture: Capture) -> int:
    service = ExecutorService(control_fd, mark, capture)
    return await service.left


def _configure_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )


def _has_threads() -> bool:
    """Whether there are some that do not end within a moment."""
    until_s = time.monotonic() + _THREADS_S
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, until_s - time.monotonic()))
    return any(thread.is_alive() for thread in others)


def _has_children() -> bool:
    """Also ended ones that nobody waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class ExecutorService:
    """The executor's side of the conversation in `protocol`."""

    def __init__(self, control_fd: int, mark: ProcessMark, capture: Capture) -> None:
        self._loop = asyncio.get_running_loop()
        self._mark = mark
        self._capture = capture
        self._part: SlotRun | None = None
        # Preparing, running or tearing down. Over before its last message is sent: the
        # answer to that can come before the task itself has ended.
        self._work: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._lease: LeaseWatch | None = None
        self._threads: ThreadPoolExecutor | None = None  # of `to_thread`, one pool for each part
        self.left: asyncio.Future[int] = self._loop.create_future()
        # Never closed: the guard watches its far end for as long as the process lives.
        self._channel: Channel[ToExecutor] = Channel(
            self._loop,
            socket.socket(fileno=control_fd),
            to_executor_decoder(),
            on_message=self._on_message,
            on_closed=self._on_closed,
        )
        self._loop.add_signal_handler(signal.SIGTERM, self._leave)
        self._channel.send(ExecutorHello(pid=os.getpid()))

    def _on_message(self, message: ToExecutor) -> None:
        match message:
            case PrepareSlot():
                self._prepare(message)
            case StartSlot():
                if self._part is not None and self._work is None:
                    self._begin(self._run(self._part, message.start_in_ms / 1000))
            case StopSlot():
                self._stop(message.reason, message.grace_s)
            case RenewLease():
                if self._part is not None and not self._part.is_unloaded:
                    self._renew_lease(self._part, message.deadline_boottime_ns)
            case ExitExecutor():
                self._leave()

    def _on_closed(self, reason: str | None) -> None:
        # The guard is about to end the whole group; there is nobody left to talk to.
        self.left.cancel(reason)

    # --- the lease ------------------------------------------------------------------------

    def _renew_lease(self, part: SlotRun, deadline_boottime_ns: int) -> None:
        if self._lease is None:
            self._lease = LeaseWatch(self._halt)
        self._lease.renew(deadline_boottime_ns)
        part.renew_lease(deadline_boottime_ns)

    def _halt(self) -> None:
        """The lease is over. Comes between any two instructions: only what cannot wait."""
        if self._part is not None:
            self._part.halt()
            self._loop.call_soon(self._cut, self._part)

    def _cut(self, part: SlotRun) -> None:
        if part is self._part:
            part.cut("lease expired")
            self._stop("lease expired", 0.0)

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    # --- the conversation -----------------------------------------------------------------

    def _send(self, message: FromExecutor) -> None:
        is_unloaded = self._part is not None and self._part.is_unloaded
        if isinstance(message, SlotTearingDown) and is_unloaded and self._lease is not None:
            self._lease.end()
        # Reports are cumulative: while an old one waits to be sent, a newer one can too.
        if isinstance(message, SlotReport) and self._channel.unsent_bytes:
            return
        self._channel.send(message)

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        self._work = self._loop.create_task(work, name="part")
        self._work.add_done_callback(self._on_work_done)

    def _on_work_done(self, work: "asyncio.Task[None]") -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            if not self.left.done():
                self.left.set_exception(error)
        elif self._is_leaving:
            self._leave()

    # --- preparing ------------------------------------------------------------------------

    def _prepare(self, assignment: PrepareSlot) -> None:
        if self._part is not None or self._work is not None:
            self.left.set_exception(InvariantError("given a part while holding another"))
            return
        self._begin(self._try_prepare(assignment))

    async def _try_prepare(self, assignment: PrepareSlot) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self._loop.set_default_executor(self._threads)
        try:
            _configure_logging(assignment.log_level)
            part = await prepare_slot(assignment, self._send, on_beat=self._check_lease)
        except InputError as error:
            self._refuse(error.message, RefusalKind.INPUT, error.hint)
        except HyperscaleError as error:
            self._refuse(error.message, RefusalKind.FAILED, error.hint)
        except asyncio.CancelledError:
            self._refuse("stopped while preparing", RefusalKind.STOPPED)
        except Exception as error:  # noqa: BLE001 - a bug of ours: told, not left unanswered
            traceback.print_exc()
            self._refuse(f"internal error: {describe_error(error)}", RefusalKind.FAILED)
        else:
            self._capture.flush()
            self._part, self._work = part, None
            self._send(SlotPrepared())

    def _refuse(self, error: str, kind: RefusalKind, hint: str = "", tainted: bool = False) -> None:
        tainted = self._leaves_something() or tainted
        self._capture.flush()
        self._work = None
        self._send(SlotRefused(error=error, kind=kind, hint=hint, tainted=tainted))

    # --- running --------------------------------------------------------------------------

    async def _run(self, part: SlotRun, start_in_s: float) -> None:
        self._finish(await part.run(start_in_s))

    async def _finish_unstarted(self, part: SlotRun) -> None:
        self._finish(await part.finish_unstarted())

    def _finish(self, finished: SlotFinished) -> None:
        if self._leaves_something():
            finished = msgspec.structs.replace(finished, tainted=True)
        self._capture.flush()
        if self._lease is not None:
            self._lease.end()
        self._part = self._work = None
        self._send(finished)

    def _leaves_something(self) -> bool:
        """Whether threads or processes that code of the part started are still there. They end
        with it, and this process with them."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        has_threads = _has_threads()
        has_processes = self._mark.is_on_others()
        if has_processes:
            complain("processes it had started are ended with it\n")
        return has_threads or has_processes or _has_children()

    # --- ending ---------------------------------------------------------------------------

    def _stop(self, reason: str, grace_s: float) -> None:
        if self._part is not None:
            self._part.stop(reason, grace_s)
            if self._work is None:
                self._begin(self._finish_unstarted(self._part))
        elif self._work is not None and not self._work.cancelling():
            self._work.cancel()
            self._loop.call_later(TEARDOWN_S + 2 * CUT_S, self._give_up, self._work)

    def _give_up(self, work: "asyncio.Task[None]") -> None:
        """Setup hooks that swallow their cancellation."""
        if not work.done():
            self._refuse("setup hooks did not stop", RefusalKind.STOPPED, tainted=True)

    def _leave(self) -> None:
        self._is_leaving = True
        if self._work is None and self._part is None:
            if not self.left.done():
                self._flush_channel()
                self.left.set_result(0)
            return
        self._stop("the executor was told to leave", GRACE_S)

    def _flush_channel(self) -> None:
        """The last words are on their way before the process ends."""
        with contextlib.suppress(OSError):
            self._channel.finish()
