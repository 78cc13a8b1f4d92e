"""The registry of message types: number, priority, size class, allowed senders, rate limit.

A message is a `msgspec` Struct, encoded by field name so that unknown fields are ignored and
missing ones take their default: nodes one version apart understand each other. Its number
(`kind`) travels in the header of the frame or at the head of the datagram. This module knows
no socket and no key.

    @message(kind=110, priority=Priority.CRITICAL, size=SizeClass.DATAGRAM)
    class Probe(Struct, frozen=True):
        sequence: int

Numbers: 1-99 wire, 100-199 membership, 200-299 nodes, 300-399 ledger, 400 and up jobs. A number
is never used again for something else.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hyperscale.errors import InvariantError
from hyperscale.wire.client_access import Permission, Principal, least_role
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.roles import NODES, Role

_S = TypeVar("_S", bound=Struct)

KIND_MAX = 0xFFFF
KIND_BYTES = 2
CONTROL_KIND_MAX = 17
"""Kinds up to this one belong to the wire itself: every peer may send them."""


class MessagePriority(IntEnum):
    """Load is shed from LOW to CRITICAL; queues are emptied from CRITICAL to LOW."""

    CRITICAL = 0  # probes, leadership, cancels, final results, leases: never shed
    HIGH = 1  # submit, dispatch, registration, state sync
    NORMAL = 2  # progress, heartbeats, queries
    LOW = 3  # detailed statistics, debugging


class SizeClass(IntEnum):
    """The largest size of an encoded message; a larger one is refused by its header."""

    DATAGRAM = 1_200
    SMALL = 64 * 1024
    MEDIUM = 1024 * 1024
    LARGE = 16 * 1024 * 1024 - 64  # the frame around it is bounded by 16 MiB


UNKNOWN_KIND_BYTES_MAX = int(SizeClass.MEDIUM)
"""The size limit of unknown kinds: a newer peer may send them, and gets an error reply."""

RATE_PER_10S = 100
"""How often one client may send a message in 10 s, unless its registration says otherwise."""


class MessageSpec(Struct, frozen=True):
    """One registered message type."""

    type: type[Struct]
    kind: int
    priority: MessagePriority
    size: SizeClass
    senders: frozenset[Role]
    rate_per_10s: int
    decode: Callable[[bytes], Any]
    permission: Permission | None = None

    @property
    def name(self) -> str:
        return self.type.__name__

    def sending_problem(self, role: Role, principal: Principal | None) -> str:
        """Return why a peer may not send this message; empty if it may.

        A client that has proved its name may send what its role permits; any other peer what the
        role of its connection may."""
        if principal is None:
            return "" if role in self.senders else f"a {role} may not send {self.name}"
        if principal.may(self.permission):
            return ""
        if self.permission is None:
            return f"{principal.name} is a client and may not send {self.name}: only nodes may"
        needed = least_role(self.permission)
        return f"{principal.name} has the role {principal.role}, but {self.name} needs {needed}"


class MessageRegistry:
    """Message types by number and by class. Filled while modules are imported, then only read."""

    def __init__(self) -> None:
        self.by_kind: dict[int, MessageSpec] = {}
        self.by_type: dict[type[Struct], MessageSpec] = {}
        self.limits: dict[int, int] = {}
        self.parts: set[type[Struct]] = set()
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, spec: MessageSpec) -> None:
        if not 0 < spec.kind <= KIND_MAX:
            raise InvariantError(f"{spec.name}: kind {spec.kind} is not within 1..{KIND_MAX}")
        is_of_clients = spec.kind > CONTROL_KIND_MAX and not spec.senders <= NODES
        if is_of_clients is (spec.permission is None):
            raise InvariantError(
                f"{spec.name}: a message needs a permission if clients may send it, and only then"
            )
        taken = self.by_kind.get(spec.kind)
        # A module imported a second time (a reload, a test) brings the same class again.
        if taken is not None and _path(taken.type) != _path(spec.type):
            raise InvariantError(f"{spec.name}: kind {spec.kind} belongs to {taken.name}")
        self.by_kind[spec.kind] = spec
        self.by_type[spec.type] = spec
        self.limits[spec.kind] = int(spec.size)

    def spec_of(self, message: Struct) -> MessageSpec:
        try:
            return self.by_type[type(message)]
        except KeyError:
            raise InvariantError(
                f"{type(message).__name__} is not a registered message",
                hint="decorate it with @message(kind=..., priority=..., size=...)",
            ) from None

    def encode(self, message: Struct) -> bytes:
        """Return the body of a message; raise if it exceeds its size class."""
        return self.encode_as(self.spec_of(message), message)

    def encode_as(self, spec: MessageSpec, message: Struct) -> bytes:
        """Return the body of a message whose spec is known already."""
        body = self._encode(message)
        if len(body) > spec.size:
            raise InvariantError(
                f"{spec.name} of {len(body)} bytes is over its class {spec.size.name} "
                f"({spec.size} bytes)",
                hint="send less, or stream it in chunks",
            )
        return body

    def decode(self, kind: int, body: bytes) -> Any:
        """Return the message in `body`; raise `PeerProtocolError` if it cannot be decoded."""
        spec = self.by_kind.get(kind)
        if spec is None:
            raise PeerProtocolError(f"unknown message kind {kind}", RefusalReason.UNKNOWN)
        try:
            return spec.decode(body)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise PeerProtocolError(
                f"{spec.name} does not decode: {error}", RefusalReason.MALFORMED
            ) from error

    def pack(self, message: Struct) -> bytes:
        """Return a message with its kind in front, for a datagram."""
        return self.spec_of(message).kind.to_bytes(KIND_BYTES, "big") + self.encode(message)

    def unpack(self, data: bytes) -> Any:
        """Return the message that `pack` encoded."""
        if len(data) < KIND_BYTES:
            raise PeerProtocolError(
                f"a datagram of {len(data)} bytes holds no message", RefusalReason.TRUNCATED
            )
        kind = int.from_bytes(data[:KIND_BYTES], "big")
        limit = self.limits.get(kind, int(SizeClass.DATAGRAM))
        if len(data) - KIND_BYTES > limit:
            raise PeerProtocolError(
                f"kind {kind} with {len(data) - KIND_BYTES} bytes, at most {limit}",
                RefusalReason.OVERSIZED,
            )
        return self.decode(kind, data[KIND_BYTES:])


REGISTRY = MessageRegistry()


def message(
    *,
    kind: int,
    priority: MessagePriority,
    size: SizeClass,
    senders: frozenset[Role] = NODES,
    rate_per_10s: int = RATE_PER_10S,
    permission: Permission | None = None,
    registry: MessageRegistry = REGISTRY,
) -> Callable[[type[_S]], type[_S]]:
    """Register a Struct as a message.

    `senders` are the roles that may send it: nodes only, unless clients or operators are named.
    `rate_per_10s` limits one client or operator; nodes are exempt. `permission`: what clients need
    to send it.
    """

    def register(struct: type[_S]) -> type[_S]:
        registry.add(
            MessageSpec(
                type=struct,
                kind=kind,
                priority=priority,
                size=size,
                senders=senders,
                rate_per_10s=rate_per_10s,
                decode=msgspec.msgpack.Decoder(struct).decode,
                permission=permission,
            )
        )
        return struct

    return register


def nested(struct: type[_S]) -> type[_S]:
    """Mark a Struct that is only a field of messages and has no kind of its own."""
    REGISTRY.parts.add(struct)
    return struct


def _path(struct: type[Struct]) -> tuple[str, str]:
    return struct.__module__, struct.__qualname__
