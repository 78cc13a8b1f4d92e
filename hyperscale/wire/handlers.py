"""Handlers by message type, how they are run, and how their results and errors become replies.

A handler is a plain function (replies at once, while the frame is read: for short work), a
coroutine function, or an async generator function (a stream). It gets the call and the message.
It raises `OverloadedError` to refuse the call for now and `RemoteError` to fail with a code; any
other `HyperscaleError` travels as `FAILED`; an unexpected error is logged and travels without its
text. The peer's cancel, the deadline of the call and the end of the connection cancel the handler.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from hyperscale.errors import HyperscaleError, InvariantError
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import OverloadedError, RemoteError, RemoteErrorCode
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.roles import Role
from hyperscale.wire.session import Session

STREAM_OUTBOX_BYTES = 1024 * 1024
"""Streams wait while more than this is queued, so that other messages are not held up."""

_log = logging.getLogger("hyperscale.wire")

_M = TypeVar("_M", bound=Struct)
HandlerFunction = (
    Callable[[InboundCall, _M], Struct | None]
    | Callable[[InboundCall, _M], Awaitable[Struct | None]]
    | Callable[[InboundCall, _M], AsyncGenerator[Struct, None]]
)


class HandlerKind(Enum):
    """How a handler is run."""

    PLAIN = auto()
    ASYNC = auto()
    STREAM = auto()


# Bound once: in Python 3.11 each access through an enum class costs a Python call.
_PLAIN, _ASYNC = HandlerKind.PLAIN, HandlerKind.ASYNC


class Handler(Struct, frozen=True):
    """One registered handler."""

    function: Callable[..., Any]
    kind: HandlerKind
    name: str


class Handlers:
    """The messages a node serves. Complete before the node listens."""

    def __init__(self) -> None:
        self._by_kind: dict[int, Handler] = {}
        self.get = self._by_kind.get

    def add(self, message: type[_M], function: HandlerFunction[_M]) -> None:
        """Register the handler of a message type."""
        spec = REGISTRY.by_type.get(message)
        if spec is None:
            raise InvariantError(f"{message.__name__} is not a registered message")
        if spec.kind in self._by_kind:
            raise InvariantError(f"{spec.name} has a handler already")
        kind = HandlerKind.PLAIN
        if inspect.isasyncgenfunction(function):
            kind = HandlerKind.STREAM
        elif inspect.iscoroutinefunction(function):
            kind = HandlerKind.ASYNC
        self._by_kind[spec.kind] = Handler(function, kind, spec.name)


def finish(call: InboundCall, result: Struct | None) -> None:
    """Reply with the result of a handler, unless the handler has replied by itself."""
    if not call.is_open:
        return
    if not call.request_id:
        call.abandon()
    elif result is None:
        text = f"{call.spec.name} is a one-way message and has no reply"
        call.fail(RemoteError(text, code=RemoteErrorCode.INTERNAL))
    else:
        call.reply(result)


def fail(call: InboundCall, error: Exception) -> None:
    """Reply with the error of a handler; log an unexpected one."""
    if isinstance(error, OverloadedError):
        call.refuse(error.retry_after_s)
    elif isinstance(error, RemoteError):
        call.fail(error)
    elif isinstance(error, HyperscaleError) and not isinstance(error, InvariantError):
        call.fail(RemoteError(error.message, code=RemoteErrorCode.FAILED, hint=error.hint))
    else:
        _log.error(
            "handler.failed: %s",
            call.spec.name,
            exc_info=error,
            extra={"message_type": call.spec.name, "peer": call.peer.node_id},
        )
        text = f"{type(error).__name__} in the handler; the log of the node has the traceback"
        call.fail(RemoteError(text, code=RemoteErrorCode.INTERNAL))


class CallRunner:
    """Runs the handlers of one connection's calls, as tasks where they are asynchronous."""

    def __init__(
        self,
        handlers: Handlers,
        role: Role,
        *,
        flush_soon: Callable[[], None],
        on_cancel: Callable[[asyncio.Task[None]], None],
    ) -> None:
        """`flush_soon` is called when a handler has queued a reply, `on_cancel` with a handler
        task that was cancelled and may take a moment to end."""
        self._handlers = handlers
        self._role = role
        self._flush_soon = flush_soon
        self._on_cancel = on_cancel
        self._loop = asyncio.get_running_loop()
        self.room_waiters: list[asyncio.Future[None]] = []
        """Streams that wait for credit or for room in the queue."""

    def run(self, call: InboundCall) -> None:
        """Run the handler of one call."""
        handler = self._handlers.get(call.spec.kind)
        if handler is None:
            text = f"a {self._role} does not serve {call.spec.name}"
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
        self._on_cancel(task)

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
