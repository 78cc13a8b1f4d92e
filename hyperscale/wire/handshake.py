"""The handshake: the first four frames of a connection, as a state machine without a socket.

    dialer    HandshakeHello  version, security, ephemeral key  in the clear
    acceptor  HandshakeHello  the same
    dialer    Introduction    cluster, environment, identity    sealed if there is a secret
    acceptor  Introduction    the same

The ephemeral keys, exchanged under the secret, make the keys of the session. Inside TLS nothing is
sealed again: the certificate names the identity of the peer. A side that does not accept the other
sends `HandshakeRefused` instead, naming both values, and closes. Versions with the same major
number use the older minor; capabilities are the intersection of both lists.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import msgspec
from msgspec import Struct

from hyperscale._native import KeyExchange
from hyperscale.errors import InvariantError
from hyperscale.wire.certificate_identity import CertificateIdentity, check_identity, is_name
from hyperscale.wire.client_access import Principal
from hyperscale.wire.clients_file import NO_CLIENTS, Clients
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.errors import PeerProtocolError, PeerRefusedError, RefusalReason
from hyperscale.wire.frames import Frame, WireFrameDecoder, encode_head
from hyperscale.wire.messages import HandshakeHello, HandshakeRefused, Introduction
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.roles import DATACENTER_ROLES, NODES, check_may_connect
from hyperscale.wire.sealing import (
    TAG_BYTES,
    FrameOpener,
    FrameSealer,
    begin_exchange,
    session_keys,
)
from hyperscale.wire.security import SecurityMode

PROTOCOL = (3, 0)
"""Both sides must have the same major number; the features of the older minor are used."""

HANDSHAKE_BYTES_MAX = 16 * 1024
CAPABILITIES_MAX = 64
_VERSION_CHARS_MAX = 64
_ADDRESS_CHARS_MAX = 300
_REFUSAL_CHARS_MAX = 500
_U64_MAX = 2**64 - 1

_HELLO = REGISTRY.by_type[HandshakeHello].kind
_INTRODUCTION = REGISTRY.by_type[Introduction].kind
_REFUSED = REGISTRY.by_type[HandshakeRefused].kind
_REASONS = {str(reason): reason for reason in RefusalReason}
_MODE_REASON = {
    SecurityMode.SECRET: RefusalReason.UNSEALED,
    SecurityMode.TLS: RefusalReason.CERTIFICATE,
    SecurityMode.NONE: RefusalReason.SEALED,
}
_LIMITS = dict.fromkeys((_HELLO, _INTRODUCTION, _REFUSED), HANDSHAKE_BYTES_MAX)


class HandshakeResult(Struct, frozen=True):
    """What both sides agreed on, and the keys of the session."""

    peer: Introduction
    protocol: tuple[int, int]
    capabilities: frozenset[str]
    sealer: FrameSealer | None
    opener: FrameOpener | None
    principal: Principal | None = None
    """The client that the peer has proved to be; None for nodes and clients without a name."""


class _Isolation(Struct):
    """The two fields that are checked before the rest is decoded."""

    cluster: str
    environment: str


class _Step(Enum):
    HELLO = auto()
    INTRODUCTION = auto()
    DONE = auto()
    REFUSED = auto()


def handshake_decoder() -> WireFrameDecoder:
    """Return a decoder with the limits that hold until the handshake has succeeded."""
    return WireFrameDecoder(_LIMITS, limit_other=0, overhead=TAG_BYTES)


class Handshake:
    """One side of a handshake: frames in, bytes out, and a `result` at the end.

    `check_peer` raises for a peer that the caller does not accept (itself, one too many); it runs
    before this side introduces itself. After an error, send what `refusal()` returns and close.
    """

    def __init__(
        self,
        local: Introduction,
        mode: SecurityMode,
        secrets: Secrets | None,
        *,
        is_dialer: bool,
        certificate: CertificateIdentity | None = None,
        clients: Clients = NO_CLIENTS,
        check_peer: Callable[[Introduction], None] = lambda _: None,
        protocol: tuple[int, int] = PROTOCOL,
    ) -> None:
        if (mode is SecurityMode.SECRET and secrets is None) or (
            mode is SecurityMode.TLS and certificate is None
        ):
            raise InvariantError(f"a handshake in mode {mode} without a secret or certificate")
        self.result: HandshakeResult | None = None
        self._local = local
        self._mode = mode
        self._secrets = secrets
        self._is_dialer = is_dialer
        self._certificate = certificate
        self._clients = clients
        self._principal: Principal | None = None
        self._check_peer = check_peer
        self._protocol = protocol
        self._step = _Step.HELLO
        self._exchange: KeyExchange | None = None
        self._hello = b""  # this side's, once it has been sent
        self._sealer: FrameSealer | None = None
        self._opener: FrameOpener | None = None

    @property
    def _us(self) -> str:
        return "dialer" if self._is_dialer else "acceptor"

    @property
    def _them(self) -> str:
        return "acceptor" if self._is_dialer else "dialer"

    def begin(self) -> bytes:
        """Return the first bytes to send: the dialer's hello; the acceptor waits for it."""
        if not self._is_dialer:
            return b""
        if self._secrets is not None and self._mode is SecurityMode.SECRET:
            self._exchange = begin_exchange(self._secrets.current, is_dialer=True)
        return self._say_hello()

    def receive(self, frame: Frame) -> bytes:
        """Take the peer's next frame; return the bytes to send."""
        if frame.kind == _REFUSED:
            raise self._refused_by_peer(frame)
        match self._step, frame.kind:
            case _Step.HELLO, kind if kind == _HELLO:
                return self._on_hello(frame)
            case _Step.INTRODUCTION, kind if kind == _INTRODUCTION:
                return self._on_introduction(frame)
        raise PeerProtocolError(
            f"kind {frame.kind} during the handshake, step {self._step.name.lower()}",
            RefusalReason.UNEXPECTED,
        )

    def refusal(self, error: PeerProtocolError) -> bytes:
        """Return the frame that refuses the peer; empty if the peer has refused this side."""
        if isinstance(error, PeerRefusedError) or self._step is _Step.REFUSED:
            return b""
        self._step = _Step.REFUSED
        return refusal_frame(error, self._sealer)

    def _on_hello(self, frame: Frame) -> bytes:
        hello: HandshakeHello = _decode(HandshakeHello, frame.body)
        if hello.major != self._protocol[0]:
            raise PeerProtocolError(
                f"the {self._them} speaks protocol {hello.major}.{hello.minor}, "
                f"the {self._us} {self._protocol[0]}.{self._protocol[1]}",
                RefusalReason.VERSION,
                hint="nodes of one cluster must share the major version",
            )
        self._check_mode(hello.security)
        answer = b"" if self._is_dialer else self._accept(hello)
        self._derive_keys(hello, frame.body)
        self._protocol = min(self._protocol, (hello.major, hello.minor))
        self._step = _Step.INTRODUCTION
        return answer or _frame(_INTRODUCTION, REGISTRY.encode(self._local), self._sealer)

    def _accept(self, hello: HandshakeHello) -> bytes:
        """Answer the dialer's hello, under the first secret that reads its key exchange."""
        if self._secrets is not None and self._mode is SecurityMode.SECRET:
            self._exchange, self._principal = self._secret_of(hello, self._secrets)
        return self._say_hello()

    def _secret_of(
        self, hello: HandshakeHello, secrets: Secrets
    ) -> tuple[KeyExchange, Principal | None]:
        """Return the key exchange under the secret of the dialer, and the client whose it is."""
        known: list[tuple[bytes, Principal | None]] = [(each, None) for each in secrets.accepted]
        for secret, principal in [*known, *self._clients.secrets]:
            exchange = begin_exchange(secret, is_dialer=False)
            if _is_read(exchange, hello):
                return exchange, principal
        raise self._wrong_secret()

    def _derive_keys(self, hello: HandshakeHello, body: bytes) -> None:
        """Take the keys of the session from the key exchange and from both hellos."""
        if self._exchange is None:
            return
        if self._is_dialer:
            if not _is_read(self._exchange, hello):
                raise self._wrong_secret()
            own, other = session_keys(self._exchange, transcript=self._hello + body)
        else:
            other, own = session_keys(self._exchange, transcript=body + self._hello)
        self._sealer, self._opener = FrameSealer(own), FrameOpener(other)

    def _say_hello(self) -> bytes:
        message = b"" if self._exchange is None else self._exchange.write()
        hello = HandshakeHello(*self._protocol, security=self._mode, exchange=message)
        self._hello = REGISTRY.encode(hello)
        return _frame(_HELLO, self._hello)

    def _wrong_secret(self) -> PeerProtocolError:
        return PeerProtocolError(
            f"the {self._them} has another secret: none of the {self._us}'s reads its hello",
            RefusalReason.SECRET,
            hint="both nodes need the same secret; during a rotation, one as its previous secret",
        )

    def _on_introduction(self, frame: Frame) -> bytes:
        body = frame.body
        if self._opener is not None:
            body = self._opener.open(frame.head, frame.body)
        isolation: _Isolation = _decode(_Isolation, body)
        for what in (RefusalReason.CLUSTER, RefusalReason.ENVIRONMENT):
            theirs, ours = getattr(isolation, what), getattr(self._local, what)
            if theirs != ours:
                raise PeerProtocolError(
                    f"wrong {what}: the {self._them} is of {_shown(theirs)}, "
                    f"the {self._us} of '{ours}'",
                    what,
                    hint=f"check the {what} in the configuration of both nodes",
                )
        peer: Introduction = _decode(Introduction, body)
        _check_fields(peer)
        if self._certificate is not None:
            check_identity(peer, self._certificate)
            self._principal = self._clients.of_certificate(self._certificate)
        if self._principal is not None and peer.role in NODES:
            raise PeerProtocolError(
                f"{self._principal.name} is a client: its credential is not that of a {peer.role}",
                RefusalReason.ROLE,
                hint="nodes need the cluster secret, or a certificate that names no client",
            )
        self._check_datacenter(peer)
        if self._is_dialer:
            check_may_connect(self._local.role, peer.role)
        else:
            check_may_connect(peer.role, self._local.role)
        self._check_peer(peer)
        self._step = _Step.DONE
        self.result = HandshakeResult(
            peer=peer,
            protocol=self._protocol,
            capabilities=frozenset(self._local.capabilities) & frozenset(peer.capabilities),
            sealer=self._sealer,
            opener=self._opener,
            principal=self._principal,
        )
        if self._is_dialer:
            return b""
        return _frame(_INTRODUCTION, REGISTRY.encode(self._local), self._sealer)

    def _check_datacenter(self, peer: Introduction) -> None:
        """Raise unless managers and workers are of one datacenter: it is part of their tier."""
        local = self._local
        is_tier = {local.role, peer.role} <= DATACENTER_ROLES
        if is_tier and peer.datacenter != local.datacenter:
            raise PeerProtocolError(
                f"wrong datacenter: the {self._them}, {peer.role} {peer.node_id}, is of "
                f"'{peer.datacenter}', the {self._us}, {local.role} {local.node_id}, of "
                f"'{local.datacenter}'",
                RefusalReason.DATACENTER,
                hint="start both with the same --datacenter, or give seeds of its own datacenter",
            )

    def _check_mode(self, theirs: str) -> None:
        if theirs == self._mode:
            return
        raise PeerProtocolError(
            f"the {self._them} secures the connection by {_shown(theirs)}, "
            f"the {self._us} by '{self._mode}'",
            reason=_MODE_REASON[self._mode],
            hint="every node of a cluster needs the secret, or every node certificates",
        )

    def _refused_by_peer(self, frame: Frame) -> PeerRefusedError:
        body, how = frame.body, "refused by the peer"
        if self._opener is not None:
            try:
                body = self._opener.open(frame.head, frame.body)
            except PeerProtocolError:
                how = "refused by the peer (not sealed, so not authenticated)"
        refused: HandshakeRefused = _decode(HandshakeRefused, body)
        reason = _REASONS.get(refused.reason, RefusalReason.UNEXPECTED)
        self._step = _Step.REFUSED
        hint = _shown(refused.hint)[1:-1]  # without quotes
        return PeerRefusedError(f"{how}: {_shown(refused.message)}", reason, hint=hint)


def refusal_frame(error: PeerProtocolError, sealer: FrameSealer | None = None) -> bytes:
    """Return the frame that tells a peer why it is refused."""
    text, hint = error.message[:_REFUSAL_CHARS_MAX], error.hint[:_REFUSAL_CHARS_MAX]
    refused = HandshakeRefused(reason=error.reason, message=text, hint=hint)
    return _frame(_REFUSED, REGISTRY.encode(refused), sealer)


def _frame(kind: int, body: bytes, sealer: FrameSealer | None = None) -> bytes:
    overhead = 0 if sealer is None else TAG_BYTES
    head = encode_head(kind, 0, 0, 0, len(body) + overhead)
    return head + (body if sealer is None else sealer.seal(head, body))


def _is_read(exchange: KeyExchange, hello: HandshakeHello) -> bool:
    """Return True if the peer wrote its message of the key exchange under the same secret."""
    try:
        exchange.read(hello.exchange)
    except ValueError:
        return False
    return True


def _decode(struct: type[Struct], body: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(body, type=struct)
    except (ValueError, RecursionError) as error:
        raise PeerProtocolError(
            f"{struct.__name__.strip('_')} does not decode: {error}", RefusalReason.MALFORMED
        ) from error


def _check_fields(peer: Introduction) -> None:
    """Raise if a field of the introduction, which is kept while connected, is out of bounds."""
    names = (peer.cluster, peer.environment, peer.node_id, peer.datacenter or "none")
    bounded = (peer.version, peer.key, *peer.capabilities)
    if (
        not all(is_name(name) for name in names)
        or not 0 <= peer.incarnation <= _U64_MAX
        or len(peer.capabilities) > CAPABILITIES_MAX
        or any(len(text) > _VERSION_CHARS_MAX for text in bounded)
        or len(peer.address) > _ADDRESS_CHARS_MAX
    ):
        raise PeerProtocolError(
            "an introduction with a name, number or list out of bounds", RefusalReason.MALFORMED
        )


def _shown(text: str) -> str:
    """Return text of an unauthenticated peer, escaped and bounded for a log line."""
    return ascii(text if len(text) <= _REFUSAL_CHARS_MAX else text[:_REFUSAL_CHARS_MAX] + "...")
