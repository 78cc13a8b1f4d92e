"""Handlers by message type, and how their results and errors become replies.

A handler is a plain function (replies at once, while the frame is read: for short work), a
coroutine function, or an async generator function (a stream). It gets the call and the message.
It raises `OverloadedError` to refuse the call for now and `RemoteError` to fail with a code; any
other `HyperscaleError` travels as `FAILED`; an unexpected error is logged and travels without its
text.
"""

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from enum import Enum, auto
from typing import Any, TypeVar

from msgspec import Struct

from hyperscale.errors import HyperscaleError, InvariantError
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import OverloadedError, RemoteError, RemoteErrorCode
from hyperscale.wire.registry import REGISTRY

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
