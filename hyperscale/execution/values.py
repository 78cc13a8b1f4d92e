"""Encodes the values that one workflow passes to another.

Plain data is sent as msgpack, anything else is pickled. Only executors, which run user code anyway,
decode values. `plan.context` decides which workflow gets which value.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from hyperscale.errors import RunError
from hyperscale.plan.context import (
    CONTEXT_BYTES_MAX,
    SETUP_BYTES_MAX,
    ContextValue,
    ReceivedContext,
    decode_set_up,
    encode_set_up,
)

_PLAIN = b"m"
_PICKLED = b"p"
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def pack_value(value: object, *, where: str) -> bytes:
    """Encode a value. Raises RunError that names `where` the value comes from."""
    if _is_plain(value):
        packed = _PLAIN + msgspec.msgpack.encode(value)
    else:
        import cloudpickle  # noqa: PLC0415 - most runs pass plain data, or none

        try:
            packed = _PICKLED + cloudpickle.dumps(value)
        except Exception as error:  # pickling runs code of the value's own
            raise RunError(
                f"{where}: a {type(value).__name__} cannot be passed on: {error}",
                hint="pass plain data: text, numbers, lists, dicts",
            ) from error
    if len(packed) > CONTEXT_BYTES_MAX:
        raise RunError(
            f"{where}: its value takes {len(packed):,} bytes, more than {CONTEXT_BYTES_MAX:,}",
            hint="pass a key or a path of the data, not the data itself",
        )
    return packed


def unpack_value(packed: bytes, *, where: str) -> Any:
    """Decode a value. Only for executors: this may run code."""
    if packed[:1] == _PLAIN:
        return msgspec.msgpack.decode(packed[1:], strict=False)
    import cloudpickle  # noqa: PLC0415 - as above

    try:
        return cloudpickle.loads(packed[1:])
    except Exception as error:
        raise RunError(f"{where}: the provided value cannot be read: {error}") from error


def unpack_context(received: ReceivedContext) -> dict[str, Any]:
    """Return the initial `self.context`."""
    return {key: _open(value, where=key) for key, value in received.context.items()}


def unpack_uses(received: ReceivedContext) -> dict[str, dict[str, Any]]:
    """Return the values for the `Use` methods, by method and parameter."""
    return {
        method: {key: _open(value, where=f"{method}({key})") for key, value in given.items()}
        for method, given in received.uses.items()
    }


def pack_set_up(context: Mapping[Any, object], *, workflow: str) -> bytes:
    """Encode the `self.context` that setup left. Raises RunError that names the key at fault."""
    packed: dict[str, bytes] = {}
    for key, value in context.items():
        where = f"{workflow}: self.context[{key!r}]"
        if not isinstance(key, str):
            raise RunError(f"{where}: a key must be text", hint=f"write self.context[{str(key)!r}]")
        try:
            packed[key] = pack_value(value, where=where)
        except RunError as error:
            raise RunError(
                error.message,
                hint="setup runs once and its context is sent to all others: put plain data "
                'there, and what cannot be sent on self, with @setup(per="executor")',
            ) from error
    payload = encode_set_up(packed)
    if len(payload) > SETUP_BYTES_MAX:
        largest = max(packed, key=lambda key: len(packed[key]))
        raise RunError(
            f"{workflow}: setup leaves {len(payload):,} bytes in self.context, more than "
            f"{SETUP_BYTES_MAX:,}; the largest is {largest!r} with {len(packed[largest]):,}",
            hint='put a key or a path there, and load the data with @setup(per="executor")',
        )
    return payload


def unpack_set_up(payload: bytes) -> dict[str, Any]:
    """Return the `self.context` that setup left."""
    return {key: unpack_value(value, where=key) for key, value in decode_set_up(payload).items()}


def _open(value: ContextValue, *, where: str) -> Any:
    parts = [unpack_value(chunk, where=where) for chunk in value.chunks]
    if not value.is_list:
        return parts[0]
    # A provider annotated as a list may still have returned something else: it becomes one item.
    return [item for part in parts for item in (part if isinstance(part, list) else [part])]


def _is_plain(value: object) -> bool:
    """Return True if msgpack decodes the same value: no tuples, no objects, no huge numbers."""
    kind = type(value)
    if value is None or kind in (bool, str, bytes, float):
        return True
    if kind is int:
        return _INT_MIN <= value <= _INT_MAX  # type: ignore[operator]  # it is an int
    if kind is list:
        return all(map(_is_plain, value))  # type: ignore[call-overload]  # it is a list
    if kind is dict:
        return all(
            type(key) in (str, int) and _is_plain(key) and _is_plain(item)
            for key, item in value.items()  # type: ignore[attr-defined]  # it is a dict
        )
    return False
