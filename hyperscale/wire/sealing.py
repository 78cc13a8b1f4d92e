"""Sealing with the cluster secret: AES-256-GCM under keys derived by HKDF-SHA256.

TCP: both sides bring a fresh salt; the keys (one per direction) come from the secret, the
salts and all that was said in the clear, so a recorded session opens nothing. The nonce is the
frame's number, which never travels: a frame that is repeated, dropped, reordered or altered
does not open. The frame's header is authenticated with the body.

UDP: the key comes from the secret and from who seals (node id, incarnation); the nonce holds a
counter that travels, and a window per (node, incarnation) refuses what came before. A sealer
made twice for the same node and incarnation would repeat nonces; four random bytes of each
nonce are drawn per sealer so that even this slip does not give the key away.

    version u8 | id length u8 | node id | incarnation u64 | draw 4 | counter u64 | group 4 | sealed

`group` names the cluster and environment, so that two clusters that share a secret by mistake
do not hear each other. Everything before `sealed` is authenticated. A datagram is not bound to
whom it was sent: a message for one node alone must name it.
"""

import hashlib
import os
from collections import OrderedDict
from struct import Struct as Layout
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hyperscale.errors import InvariantError
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.replay_window import ReplayWindow

KEY_BYTES = 32
TAG_BYTES = 16
SALT_BYTES = 32
NONCE_BYTES = 12

NODE_ID_BYTES_MAX = 64
DATAGRAM_BYTES_MAX = 1400
SENDERS_MAX = 65_536
"""Authenticated senders whose windows are kept; beyond it the longest silent one is forgotten."""

_VERSION_SEALED = 0x01
_VERSION_OPEN = 0x81  # loopback without a secret; no node with a secret accepts it
_DRAW_BYTES = 4
_FIXED = Layout(">Q4sQ4s")
_PREFIX_BYTES = 2
DATAGRAM_OVERHEAD_MAX = _PREFIX_BYTES + NODE_ID_BYTES_MAX + _FIXED.size + TAG_BYTES


class SessionKeys(NamedTuple):
    """The two keys of a TCP session."""

    from_dialer: bytes
    from_acceptor: bytes


def session_keys(secret: bytes, *, salts: bytes, transcript: bytes) -> SessionKeys:
    """Keys from the secret, both salts, and everything said in the clear before."""
    digest = hashlib.sha256(transcript).digest()
    return SessionKeys(
        _derive(secret, salts, b"hyperscale tcp dialer " + digest),
        _derive(secret, salts, b"hyperscale tcp acceptor " + digest),
    )


class FrameSealer:
    """Seals the frames of one direction of one session, in order."""

    __slots__ = ("_encrypt", "_sent")

    def __init__(self, key: bytes) -> None:
        self._encrypt = AESGCM(key).encrypt
        self._sent = 0

    def seal(self, head: bytes, body: bytes) -> bytes:
        sent = self._sent
        self._sent = sent + 1
        return self._encrypt(sent.to_bytes(NONCE_BYTES, "big"), body, head)


class FrameOpener:
    """Opens the frames of one direction of one session, in order."""

    __slots__ = ("_decrypt", "_received")

    def __init__(self, key: bytes) -> None:
        self._decrypt = AESGCM(key).decrypt
        self._received = 0

    def open(self, head: bytes, body: bytes) -> bytes:
        received = self._received
        try:
            plain = self._decrypt(received.to_bytes(NONCE_BYTES, "big"), body, head)
        except InvalidTag:
            raise PeerProtocolError(
                f"sealed frame {received} does not open",
                reason=RefusalReason.TAMPERED,
                hint="it was altered, repeated, dropped or reordered on the way",
            ) from None
        self._received = received + 1
        return plain


class OpenedDatagram(NamedTuple):
    """A datagram that is what it says it is."""

    node_id: str
    incarnation: int
    plain: bytes


class _Envelope(NamedTuple):
    """A datagram taken apart."""

    node_id: str
    raw_id: bytes
    incarnation: int
    counter: int
    nonce: bytes
    head: bytes
    sealed: bytes


class _Sender:
    """What is known of an authenticated sender."""

    __slots__ = ("cipher", "incarnation", "secret", "window")

    def __init__(self, incarnation: int, secret: bytes, cipher: AESGCM | None) -> None:
        self.incarnation = incarnation
        self.secret = secret
        self.cipher = cipher
        self.window = ReplayWindow()


class DatagramSealer:
    """Seals this node's datagrams and opens those of the others.

    Without secrets (a node on loopback only) datagrams go in the clear, with the same windows.
    """

    def __init__(
        self,
        secrets: Secrets | None,
        node_id: str,
        incarnation: int,
        *,
        cluster: str = "",
        environment: str = "",
    ) -> None:
        raw_id = node_id.encode()
        if not 0 < len(raw_id) <= NODE_ID_BYTES_MAX:
            raise InvariantError(
                f"node id {node_id!r} has {len(raw_id)} bytes, 1 to {NODE_ID_BYTES_MAX} are allowed"
            )
        self._secrets = secrets
        self._node_id = node_id
        self._incarnation = incarnation
        self._group = _group(cluster, environment)
        self._draw = os.urandom(_DRAW_BYTES)
        self._sent = 0
        version = _VERSION_OPEN if secrets is None else _VERSION_SEALED
        self._prefix = bytes((version, len(raw_id))) + raw_id
        self._cipher = (
            None if secrets is None else self._cipher_of(secrets.current, raw_id, incarnation)
        )
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    def renew(self, incarnation: int) -> None:
        """This node goes on as a later incarnation; what it knows of the others stays."""
        if incarnation <= self._incarnation:
            raise InvariantError(
                f"incarnation {incarnation} does not follow {self._incarnation}",
                hint="under the same key nonces would repeat",
            )
        self._incarnation = incarnation
        if self._secrets is not None:
            raw_id = self._node_id.encode()
            self._cipher = self._cipher_of(self._secrets.current, raw_id, incarnation)

    def seal(self, plain: bytes) -> bytes:
        self._sent += 1
        counter = self._sent
        head = self._prefix + _FIXED.pack(self._incarnation, self._draw, counter, self._group)
        if self._cipher is None:
            return head + plain
        return head + self._cipher.encrypt(_nonce(self._draw, counter), plain, head)

    def open(self, datagram: bytes) -> OpenedDatagram:
        """Who sent it and what it says; `PeerProtocolError` for everything else."""
        envelope = self._read(datagram)
        node_id, incarnation = envelope.node_id, envelope.incarnation
        if node_id == self._node_id and incarnation == self._incarnation:
            raise PeerProtocolError("a datagram of this node itself", reason=RefusalReason.LOOPED)
        known = self._senders.get(node_id)
        if known is not None and incarnation < known.incarnation:
            raise PeerProtocolError(
                f"{node_id}: incarnation {incarnation}, known is {known.incarnation}",
                reason=RefusalReason.INCARNATION,
            )
        if known is not None and incarnation > known.incarnation:
            known = None  # a new life, if it proves to be one
        if known is not None and not known.window.is_fresh(envelope.counter):
            raise PeerProtocolError(
                f"{node_id}: datagram {envelope.counter} again", reason=RefusalReason.REPLAYED
            )
        sender, plain = self._decrypt(known, envelope)
        self._senders[node_id] = sender
        self._senders.move_to_end(node_id)
        if len(self._senders) > SENDERS_MAX:
            self._senders.popitem(last=False)
        sender.window.mark(envelope.counter)
        return OpenedDatagram(node_id, incarnation, plain)

    def _read(self, datagram: bytes) -> _Envelope:
        """The parts of a datagram, none of them to be trusted yet."""
        raw_id, body_at = self._check_shape(datagram)
        incarnation, draw, counter, group = _FIXED.unpack_from(
            datagram, _PREFIX_BYTES + len(raw_id)
        )
        if group != self._group:
            raise PeerProtocolError(
                "a datagram of another cluster or environment", reason=RefusalReason.CLUSTER
            )
        try:
            node_id = raw_id.decode()
        except UnicodeDecodeError:
            raise PeerProtocolError(
                "the node id is not text", reason=RefusalReason.MALFORMED
            ) from None
        nonce = _nonce(draw, counter)
        head, sealed = datagram[:body_at], datagram[body_at:]
        return _Envelope(node_id, raw_id, incarnation, counter, nonce, head, sealed)

    def _check_shape(self, datagram: bytes) -> tuple[bytes, int]:
        """The sender's id as it came, and where the body begins."""
        if len(datagram) > DATAGRAM_BYTES_MAX:
            raise PeerProtocolError(
                f"a datagram of {len(datagram)} bytes, at most {DATAGRAM_BYTES_MAX}",
                reason=RefusalReason.OVERSIZED,
            )
        if len(datagram) < _PREFIX_BYTES:
            raise PeerProtocolError(
                f"a datagram of {len(datagram)} bytes", reason=RefusalReason.TRUNCATED
            )
        version, id_bytes = datagram[0], datagram[1]
        if version not in (_VERSION_SEALED, _VERSION_OPEN):
            raise PeerProtocolError(
                f"datagram version {version}, this node speaks {_VERSION_SEALED}",
                reason=RefusalReason.VERSION,
            )
        if version == _VERSION_OPEN and self._secrets is not None:
            raise PeerProtocolError("an unsealed datagram", reason=RefusalReason.UNSEALED)
        if version == _VERSION_SEALED and self._secrets is None:
            raise PeerProtocolError(
                "a sealed datagram, but this node has no secret", reason=RefusalReason.SEALED
            )
        if not 0 < id_bytes <= NODE_ID_BYTES_MAX:
            raise PeerProtocolError(
                f"a node id of {id_bytes} bytes", reason=RefusalReason.MALFORMED
            )
        body_at = _PREFIX_BYTES + id_bytes + _FIXED.size
        tag_bytes = 0 if self._secrets is None else TAG_BYTES
        if len(datagram) < body_at + tag_bytes:
            raise PeerProtocolError(
                f"a datagram of {len(datagram)} bytes ends within its header",
                reason=RefusalReason.TRUNCATED,
            )
        return datagram[_PREFIX_BYTES : _PREFIX_BYTES + id_bytes], body_at

    def _decrypt(self, known: _Sender | None, envelope: _Envelope) -> tuple[_Sender, bytes]:
        """The sender in this life and what it said. `known` only if it is of this life."""
        nonce, head, sealed = envelope.nonce, envelope.head, envelope.sealed
        if self._secrets is None:
            return known or _Sender(envelope.incarnation, b"", None), sealed
        if known is not None and known.cipher is not None:
            try:
                return known, known.cipher.decrypt(nonce, sealed, head)
            except InvalidTag:
                pass  # altered, or sealed with the other secret: both are decided below
        for secret in self._secrets.accepted:
            if known is not None and secret == known.secret:
                continue
            cipher = self._cipher_of(secret, envelope.raw_id, envelope.incarnation)
            try:
                plain = cipher.decrypt(nonce, sealed, head)
            except InvalidTag:
                continue
            if known is None:
                return _Sender(envelope.incarnation, secret, cipher), plain
            known.secret, known.cipher = secret, cipher  # the window goes on
            return known, plain
        raise PeerProtocolError(
            "a datagram that opens with none of this node's secrets", reason=RefusalReason.SECRET
        )

    def _cipher_of(self, secret: bytes, raw_id: bytes, incarnation: int) -> AESGCM:
        who = bytes((len(raw_id),)) + raw_id + incarnation.to_bytes(8, "big")
        return AESGCM(_derive(secret, self._group, b"hyperscale udp " + who))


def _derive(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


def _nonce(draw: bytes, counter: int) -> bytes:
    return draw + counter.to_bytes(8, "big")


def _group(cluster: str, environment: str) -> bytes:
    named = f"{len(cluster)}:{cluster}{environment}".encode()
    return hashlib.sha256(named).digest()[:4]
