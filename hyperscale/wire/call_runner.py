"""Runs the handlers of one connection's calls, as tasks where they are asynchronous.

A handler that raises fails its own call, with a log line and a `CallFailed` reply. The peer's
cancel, the deadline of the call and the end of the connection cancel the task.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.handlers import HandlerKind, Handlers, fail, finish
from hyperscale.wire.messages import Introduction
from hyperscale.wire.session import Session

STREAM_OUTBOX_BYTES = 1024 * 1024
"""Streams wait while more than this is queued, so that other messages are not held up."""

# Bound once: in Python 3.11 each access through an enum class costs a Python call.
_PLAIN, _ASYNC = HandlerKind.PLAIN, HandlerKind.ASYNC


class RunnerOwner(Protocol):
    """What the runner needs from the server."""

    local: Introduction
    handlers: Handlers

    def handler_cancelled(self, task: asyncio.Task[None]) -> None:
        """A handler task was cancelled and may take a moment to end."""


class CallRunner:
    """Runs handlers; `flush_soon` is called when a handler has queued a reply."""

    def __init__(self, owner: RunnerOwner, flush_soon: Callable[[], None]) -> None:
        self._owner = owner
        self._flush_soon = flush_soon
        self._loop = asyncio.get_running_loop()
        self.room_waiters: list[asyncio.Future[None]] = []
        """Streams that wait for credit or for room in the queue."""

    def run(self, call: InboundCall) -> None:
        """Run the handler of one call."""
        handler = self._owner.handlers.get(call.spec.kind)
        if handler is None:
            text = f"a {self._owner.local.role} does not serve {call.spec.name}"
            call.fail(RemoteError(text, code=RemoteErrorCode.UNHANDLED))
            return
        if handler.kind is _PLAIN:
            try:
                finish(call, handler.function(call, call.message))
            except Exception as error:  # noqa: BLE001  the error of a handler fails its call
                fail(call, error)
            return
        if handler.kind is _ASYNC:
            work = self._serve(call, handler.function)
        else:
            work = self._serve_stream(call, handler.function)
        task = self._loop.create_task(work, name=handler.name)
        call.on_cancel = partial(self._cancel_task, task)

    def _cancel_task(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._owner.handler_cancelled(task)

    async def _serve(self, call: InboundCall, function: Callable[..., Any]) -> None:
        try:
            finish(call, await function(call, call.message))
        except Exception as error:  # noqa: BLE001  the error of a handler fails its call
            fail(call, error)
        except BaseException:  # cancelled: by the peer, by the deadline, or because the node stops
            call.abandon()
            raise
        self._flush_soon()

    async def _serve_stream(self, call: InboundCall, function: Callable[..., Any]) -> None:
        items = function(call, call.message)
        try:
            async for item in items:
                await self._wait_for_room(call)
                call.send_item(item)
                self._flush_soon()
            call.end_stream()
        except Exception as error:  # noqa: BLE001  the error of a handler fails its call
            fail(call, error)
        except BaseException:
            call.abandon()
            raise
        finally:
            await items.aclose()
            self._flush_soon()

    async def _wait_for_room(self, call: InboundCall) -> None:
        """Wait until the reader has granted credit and the outgoing queue is short."""
        session = call.session
        while call.is_open and (
            call.credit_bytes <= 0 or session.outbox.held_bytes >= STREAM_OUTBOX_BYTES
        ):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self.room_waiters.append(waiter)
            call.on_credit = self.wake_waiters
            await waiter

    def wake_if_room(self, session: Session) -> None:
        """Wake the waiting streams if the outgoing queue is short."""
        if session.outbox.held_bytes < STREAM_OUTBOX_BYTES:
            self.wake_waiters()

    def wake_waiters(self) -> None:
        """Let the waiting streams check again."""
        waiters, self.room_waiters = self.room_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
