"""What goes over the wire: it fits, it survives, and other versions are understood."""

import msgspec
import pytest
from msgspec import Struct

from hyperscale.membership import messages
from hyperscale.membership.messages import (
    METADATA_BYTES_MAX,
    Ack,
    ClaimedState,
    Gossip,
    IndirectAck,
    MemberSnapshot,
    MemberUpdate,
    Nack,
    Ping,
    PingRequest,
    PushPull,
    Sender,
)
from hyperscale.wire.registry import REGISTRY, SizeClass
from hyperscale.wire.roles import Role
from hyperscale.wire.sealing import DATAGRAM_BYTES_MAX, DATAGRAM_OVERHEAD_MAX

SENDER = Sender("10.0.0.1:9000", Role.MANAGER, 3, 9001)
NEWS = (
    MemberUpdate("worker-7", 1_700_000_000_000, ClaimedState.SUSPECT, 2, "manager-1"),
    MemberUpdate(
        "worker-8", 1_700_000_000_001, ClaimedState.ALIVE, 0, "", Role.WORKER, "10.0.0.2:9000", 0
    ),
)
MESSAGES = (
    Ping(SENDER, 1, "worker-7", 5, NEWS),
    Ack(SENDER, 1, 6, b"metadata", NEWS),
    PingRequest(SENDER, 2, "worker-7", "10.0.0.3:9000", NEWS),
    IndirectAck(SENDER, 2, "worker-7", 1_700_000_000_000, 4, NEWS),
    Nack(SENDER, 2, NEWS),
    Gossip(SENDER, NEWS),
    PushPull(SENDER, tuple(MemberSnapshot(news, 1, b"x") for news in NEWS)),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Struct) -> None:
    assert REGISTRY.unpack(REGISTRY.pack(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_fields_of_a_later_version_are_ignored(message: Struct) -> None:
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    raw["a field of tomorrow"] = [1, 2, 3]
    spec = REGISTRY.spec_of(message)
    assert REGISTRY.decode(spec.kind, msgspec.msgpack.encode(raw)) == message


def test_default_fields_are_not_encoded() -> None:
    small = len(REGISTRY.pack(Ping(Sender("10.0.0.1:9000"), 1, "worker-7")))
    assert small < 50
    assert len(msgspec.msgpack.encode(NEWS[0])) < 50


def test_the_longest_names_and_metadata_fit_a_datagram() -> None:
    node, address = "n" * 64, "[" + "f" * 39 + "]:65535"
    sender = Sender(address, Role.MANAGER, 2**63, 65535)
    widest = MemberUpdate(
        node, 2**63, ClaimedState.SUSPECT, 2**63, node, Role.MANAGER, address, 65535
    )
    largest = (
        Ack(sender, 2**63, 2**63, b"m" * METADATA_BYTES_MAX, (widest,)),
        PingRequest(sender, 2**63, node, address, (widest,)),
        IndirectAck(sender, 2**63, node, 2**63, 2**63, (widest,)),
    )
    for message in largest:
        sealed = len(REGISTRY.pack(message)) + DATAGRAM_OVERHEAD_MAX
        assert len(REGISTRY.encode(message)) <= SizeClass.DATAGRAM
        assert sealed <= DATAGRAM_BYTES_MAX


def test_a_push_pull_of_ten_thousand_members_fits_a_frame() -> None:
    record = MemberSnapshot(
        MemberUpdate("n" * 40, 2**50, ClaimedState.ALIVE, 2, "", Role.MANAGER, "10.0.0.1:9000"), 9
    )
    metadata = msgspec.structs.replace(record, metadata=b"m" * METADATA_BYTES_MAX)
    view = PushPull(SENDER, (metadata,) * 10_000)
    assert len(REGISTRY.encode(view)) <= SizeClass.LARGE


def test_every_struct_here_is_registered_or_a_part() -> None:
    for name, found in vars(messages).items():
        if isinstance(found, type) and issubclass(found, Struct) and found is not Struct:
            assert found in REGISTRY.by_type or found in REGISTRY.parts, name
