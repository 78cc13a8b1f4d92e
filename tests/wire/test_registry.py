"""The registry: every message is in it, once, and decodes back to itself."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import msgspec
import pytest
from msgspec import Struct

import hyperscale
from hyperscale.errors import InvariantError
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.registry import (
    REGISTRY,
    MessagePriority,
    MessageRegistry,
    SizeClass,
    message,
)


def message_modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(hyperscale.__path__, "hyperscale."):
        if found.name.rpartition(".")[2] == "messages":
            yield importlib.import_module(found.name)


def test_every_struct_of_a_messages_module_is_registered_or_marked_as_a_part() -> None:
    modules = list(message_modules())
    missing = [
        f"{module.__name__}.{name}"
        for module in modules
        for name, struct in inspect.getmembers(module, inspect.isclass)
        if issubclass(struct, Struct)
        and struct.__module__ == module.__name__
        and struct not in REGISTRY.by_type
        and struct not in REGISTRY.parts
    ]
    assert modules
    assert not missing, f"decorate with @message(...) or @nested: {missing}"


def test_every_registered_message_has_a_number_of_its_own() -> None:
    list(message_modules())
    for kind, spec in REGISTRY.by_kind.items():
        assert REGISTRY.by_type[spec.type].kind == kind


def fresh() -> tuple[MessageRegistry, type[Struct]]:
    registry = MessageRegistry()

    @message(kind=500, priority=MessagePriority.NORMAL, size=SizeClass.DATAGRAM, registry=registry)
    class Note(Struct):
        text: str
        count: int = 0

    return registry, Note


def test_a_message_survives_packing() -> None:
    registry, note = fresh()
    assert registry.unpack(registry.pack(note(text="hello", count=3))) == note("hello", 3)


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    registry, note = fresh()
    newer = msgspec.msgpack.encode({"text": "a", "count": 2, "colour": {"deep": [1, 2]}})
    older = msgspec.msgpack.encode({"text": "a"})
    assert registry.decode(500, newer) == note("a", 2)
    assert registry.decode(500, older) == note("a", 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", RefusalReason.TRUNCATED),
        (b"\x01", RefusalReason.TRUNCATED),
        (b"\xff\xff\x80", RefusalReason.UNKNOWN),
        (b"\x01\xf4", RefusalReason.MALFORMED),
        (b"\x01\xf4\x80", RefusalReason.MALFORMED),
        (b"\x01\xf4\x81\xa4text\x05", RefusalReason.MALFORMED),
        (b"\x01\xf4\x81\xa1z" + b"\x91" * 1100, RefusalReason.MALFORMED),
        (b"\x01\xf4\xdd\x7f\xff\xff\xff", RefusalReason.MALFORMED),
        (b"\x01\xf4" + bytes(SizeClass.DATAGRAM + 1), RefusalReason.OVERSIZED),
    ],
)
def test_a_mistake_of_a_peer_has_a_refusal_reason(data: bytes, reason: RefusalReason) -> None:
    registry, _ = fresh()
    with pytest.raises(PeerProtocolError) as caught:
        registry.unpack(data)
    assert caught.value.reason is reason


def test_a_malformed_field_is_named() -> None:
    registry, _ = fresh()
    with pytest.raises(PeerProtocolError, match=r"Note does not decode.*\$\.count"):
        registry.decode(500, msgspec.msgpack.encode({"text": "a", "count": "many"}))


def test_a_message_over_its_size_class_is_an_invariant_error() -> None:
    registry, note = fresh()
    with pytest.raises(InvariantError, match="DATAGRAM"):
        registry.encode(note(text="x" * 2000))


def test_two_messages_cannot_share_a_number() -> None:
    registry, _ = fresh()

    class Other(Struct):
        pass

    with pytest.raises(InvariantError, match="500"):
        message(kind=500, priority=MessagePriority.LOW, size=SizeClass.SMALL, registry=registry)(
            Other
        )


def test_an_unregistered_message_is_not_sent() -> None:
    class Stranger(Struct):
        pass

    with pytest.raises(InvariantError, match="Stranger"):
        MessageRegistry().encode(Stranger())
