"""Sealing with the cluster secret: AES-256-GCM under keys derived by HKDF-SHA256.

TCP: the keys, one per direction, come from an exchange of ephemeral keys under the secret (Noise
`NNpsk0`) and from both hellos. A recorded session can be neither replayed nor, if the secret leaks
later, opened. The nonce is the number of the frame, which is not sent: a frame that is repeated,
dropped, reordered or altered does not open. The header of the frame is authenticated with the body.

UDP: the key is derived from the secret, the node id and the incarnation of the sender; the nonce
contains a counter that is sent, and a window per sender refuses counters it has seen. A restarted
node gets what its former process had seen (`remembered`), so that nothing can be replayed to it
either. Two sealers
of the same node and incarnation would repeat nonces; four random bytes per sealer in each nonce
protect the key even then.

    version u8 | id length u8 | id | incarnation u64 | random 4 | counter u64 | group 4 | sealed

`group` is a hash of the cluster and the environment, so that two clusters that share a secret by
mistake do not accept each other's datagrams. Everything before `sealed` is authenticated. A
datagram is not bound to its receiver: a message for one node must name that node.
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

from hyperscale._native import KeyExchange
from hyperscale.errors import InvariantError
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.errors import PeerProtocolError, RefusalReason

KEY_BYTES = 32
TAG_BYTES = 16
NONCE_BYTES = 12
WINDOW = 2048
"""How far behind the highest counter of a sender a datagram is still accepted."""
_WINDOW_MASK = (1 << WINDOW) - 1

NODE_ID_BYTES_MAX = 64
DATAGRAM_BYTES_MAX = 1400
SENDERS_MAX = 65_536
"""Authenticated senders whose windows are kept; beyond it the longest silent one is forgotten."""

_VERSION_SEALED = 0x01
_VERSION_UNSEALED = 0x81  # loopback without a secret; no node with a secret accepts it
_FIXED = Layout(">Q4sQ4s")
_PREFIX_BYTES = 2
DATAGRAM_OVERHEAD_MAX = _PREFIX_BYTES + NODE_ID_BYTES_MAX + _FIXED.size + TAG_BYTES


class SessionKeys(NamedTuple):
    """The two keys of a TCP session."""

    from_dialer: bytes
    from_acceptor: bytes


def begin_exchange(secret: bytes, *, is_dialer: bool) -> KeyExchange:
    """Begin one side of the key exchange of a TCP session, which needs the secret on both."""
    psk = _derive(secret, b"", b"hyperscale tcp psk")
    return KeyExchange(psk, b"hyperscale", is_dialer=is_dialer)


def session_keys(exchange: KeyExchange, *, transcript: bytes) -> SessionKeys:
    """Derive the keys from a completed exchange, and from both hellos in `transcript`."""
    from_dialer, from_acceptor = exchange.keys()
    said = hashlib.sha256(transcript).digest()
    return SessionKeys(
        _derive(from_dialer, said, b"hyperscale tcp dialer"),
        _derive(from_acceptor, said, b"hyperscale tcp acceptor"),
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
                RefusalReason.TAMPERED,
                hint="a frame was altered, repeated, dropped or reordered on the way",
            ) from None
        self._received = received + 1
        return plain


class ReplayWindow:
    """The counters seen from one sender, against replays, as in IPsec (RFC 6479).

    Datagrams may be reordered, so a counter need not be the highest so far; but each is accepted
    once, and a counter more than `WINDOW` below the highest is refused.
    """

    __slots__ = ("_highest", "_seen")

    def __init__(self, highest: int = -1) -> None:
        """Begin a window in which every counter up to `highest` counts as seen."""
        self._highest = highest
        self._seen = 0 if highest < 0 else _WINDOW_MASK  # bit n: counter highest - n

    @property
    def highest(self) -> int:
        """The highest counter seen; -1: none."""
        return self._highest

    def is_fresh(self, counter: int) -> bool:
        """Return True if `counter` may still be accepted; record nothing."""
        behind = self._highest - counter
        if behind < 0:
            return True
        return behind < WINDOW and not self._seen >> behind & 1

    def mark(self, counter: int) -> None:
        """Record a counter. Call it only after its datagram has been authenticated."""
        ahead = counter - self._highest
        if ahead > 0:
            # A huge jump would shift by as many bits; beyond the window nothing remains anyway.
            self._seen = (self._seen << ahead | 1) & _WINDOW_MASK if ahead < WINDOW else 1
            self._highest = counter
        else:
            self._seen |= 1 << -ahead


class OpenedDatagram(NamedTuple):
    """The authenticated sender of a datagram, and its content."""

    node_id: str
    incarnation: int
    plain: bytes


class _Envelope(NamedTuple):
    """The parts of a datagram, not authenticated yet."""

    node_id: str
    raw_id: bytes
    incarnation: int
    counter: int
    nonce: bytes
    head: bytes
    sealed: bytes


class _Sender:
    """An authenticated sender: its incarnation, the secret it uses, and the counters seen."""

    __slots__ = ("cipher", "incarnation", "secret", "window")

    def __init__(
        self, incarnation: int, secret: bytes, cipher: AESGCM | None, highest: int = -1
    ) -> None:
        self.incarnation = incarnation
        self.secret = secret
        self.cipher = cipher
        self.window = ReplayWindow(highest)


SeenSenders = dict[str, tuple[int, int]]
"""Of each sender its incarnation and the highest counter seen, least recently heard first."""


class DatagramSealer:
    """Seals the datagrams of this node and opens those of others.

    Without secrets (a node on loopback only) datagrams are sent in the clear, with the same
    windows.
    """

    def __init__(
        self,
        secrets: Secrets | None,
        node_id: str,
        incarnation: int,
        *,
        cluster: str = "",
        environment: str = "",
        remembered: SeenSenders | None = None,
    ) -> None:
        """`remembered`: what the sealer of this node's former process had seen."""
        self._raw_id = node_id.encode()
        if not 0 < len(self._raw_id) <= NODE_ID_BYTES_MAX:
            raise InvariantError(
                f"node id {node_id!r} has {len(self._raw_id)} bytes, 1 to {NODE_ID_BYTES_MAX} are "
                "allowed"
            )
        self._secrets = secrets
        self._node_id = node_id
        self._incarnation = incarnation
        named = f"{len(cluster)}:{cluster}{environment}".encode()
        self._group = hashlib.sha256(named).digest()[:4]
        self._random = os.urandom(4)
        self._sent = 0
        version = _VERSION_UNSEALED if secrets is None else _VERSION_SEALED
        self._prefix = bytes((version, len(self._raw_id))) + self._raw_id
        self._cipher = self._own_cipher()
        self._senders: OrderedDict[str, _Sender] = OrderedDict(
            (name, _Sender(incarnation_seen, b"", None, highest))
            for name, (incarnation_seen, highest) in (remembered or {}).items()
        )

    @property
    def incarnation(self) -> int:
        return self._incarnation

    def seen(self) -> SeenSenders:
        """Return what a later process of this node must not accept again."""
        return {
            name: (sender.incarnation, sender.window.highest)
            for name, sender in self._senders.items()
        }

    def renew(self, incarnation: int) -> None:
        """Seal as a later incarnation of this node; the windows of other senders stay."""
        if incarnation <= self._incarnation:
            raise InvariantError(
                f"incarnation {incarnation} does not follow {self._incarnation}",
                hint="under the same key nonces would repeat",
            )
        self._incarnation = incarnation
        self._cipher = self._own_cipher()

    def use(self, secrets: Secrets) -> None:
        """Seal with other secrets from now on; the windows of other senders stay."""
        if self._secrets is None:
            raise InvariantError("datagrams in the clear cannot be sealed while a node runs")
        self._secrets = secrets
        self._cipher = self._own_cipher()
        for sender in self._senders.values():
            if sender.secret not in secrets.accepted:
                sender.cipher = None

    def seal(self, plain: bytes) -> bytes:
        self._sent += 1
        counter = self._sent
        head = self._prefix + _FIXED.pack(self._incarnation, self._random, counter, self._group)
        if self._cipher is None:
            return head + plain
        return head + self._cipher.encrypt(_nonce(self._random, counter), plain, head)

    def open(self, datagram: bytes) -> OpenedDatagram:
        """Authenticate a datagram; raise `PeerProtocolError` if it must be refused."""
        envelope = self._read(datagram)
        node_id, incarnation = envelope.node_id, envelope.incarnation
        if node_id == self._node_id and incarnation == self._incarnation:
            raise PeerProtocolError("a datagram of this node itself", RefusalReason.LOOPED)
        known = self._senders.get(node_id)
        if known is not None and incarnation < known.incarnation:
            raise PeerProtocolError(
                f"{node_id}: incarnation {incarnation}, but {known.incarnation} is known",
                RefusalReason.INCARNATION,
            )
        if known is not None and incarnation > known.incarnation:
            known = None  # a new incarnation, if the datagram opens
        if known is not None and not known.window.is_fresh(envelope.counter):
            raise PeerProtocolError(
                f"{node_id}: datagram {envelope.counter} again", RefusalReason.REPLAYED
            )
        sender, plain = self._decrypt(known, envelope)
        self._senders[node_id] = sender
        self._senders.move_to_end(node_id)
        if len(self._senders) > SENDERS_MAX:
            self._senders.popitem(last=False)
        sender.window.mark(envelope.counter)
        return OpenedDatagram(node_id, incarnation, plain)

    def _read(self, datagram: bytes) -> _Envelope:
        """Split a datagram and check its form."""
        size = len(datagram)
        if size > DATAGRAM_BYTES_MAX:
            raise PeerProtocolError(
                f"a datagram of {size} bytes, at most {DATAGRAM_BYTES_MAX} are allowed",
                RefusalReason.OVERSIZED,
            )
        if size < _PREFIX_BYTES:
            raise PeerProtocolError(f"a datagram of {size} bytes", RefusalReason.TRUNCATED)
        version, id_bytes = datagram[0], datagram[1]
        if version not in (_VERSION_SEALED, _VERSION_UNSEALED):
            raise PeerProtocolError(
                f"datagram version {version}, this node uses {_VERSION_SEALED}",
                RefusalReason.VERSION,
            )
        if version == _VERSION_UNSEALED and self._secrets is not None:
            raise PeerProtocolError("an unsealed datagram", RefusalReason.UNSEALED)
        if version == _VERSION_SEALED and self._secrets is None:
            raise PeerProtocolError(
                "a sealed datagram, but this node has no secret", RefusalReason.SEALED
            )
        if not 0 < id_bytes <= NODE_ID_BYTES_MAX:
            raise PeerProtocolError(f"a node id of {id_bytes} bytes", RefusalReason.MALFORMED)
        id_end = _PREFIX_BYTES + id_bytes
        body_at = id_end + _FIXED.size
        if size < body_at + (0 if self._secrets is None else TAG_BYTES):
            raise PeerProtocolError(
                f"a datagram of {size} bytes ends within its header", RefusalReason.TRUNCATED
            )
        raw_id = datagram[_PREFIX_BYTES:id_end]
        incarnation, random, counter, group = _FIXED.unpack_from(datagram, id_end)
        if group != self._group:
            raise PeerProtocolError(
                "a datagram of another cluster or environment", RefusalReason.CLUSTER
            )
        try:
            node_id = raw_id.decode()
        except UnicodeDecodeError:
            raise PeerProtocolError("the node id is not text", RefusalReason.MALFORMED) from None
        nonce = _nonce(random, counter)
        head, sealed = datagram[:body_at], datagram[body_at:]
        return _Envelope(node_id, raw_id, incarnation, counter, nonce, head, sealed)

    def _decrypt(self, known: _Sender | None, envelope: _Envelope) -> tuple[_Sender, bytes]:
        """Return the sender and the content. `known` is the sender in the same incarnation."""
        nonce, head, sealed = envelope.nonce, envelope.head, envelope.sealed
        if self._secrets is None:
            return known or _Sender(envelope.incarnation, b"", None), sealed
        if known is not None and known.cipher is not None:
            try:
                return known, known.cipher.decrypt(nonce, sealed, head)
            except InvalidTag:
                pass  # altered, or sealed with the other secret of a rotation: tried below
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
            known.secret, known.cipher = secret, cipher  # the window stays
            return known, plain
        raise PeerProtocolError(
            "a datagram that opens with none of this node's secrets", RefusalReason.SECRET
        )

    def _own_cipher(self) -> AESGCM | None:
        if self._secrets is None:
            return None
        return self._cipher_of(self._secrets.current, self._raw_id, self._incarnation)

    def _cipher_of(self, secret: bytes, raw_id: bytes, incarnation: int) -> AESGCM:
        sender = bytes((len(raw_id),)) + raw_id + incarnation.to_bytes(8, "big")
        return AESGCM(_derive(secret, self._group, b"hyperscale udp " + sender))


def _derive(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


def _nonce(random: bytes, counter: int) -> bytes:
    return random + counter.to_bytes(8, "big")
