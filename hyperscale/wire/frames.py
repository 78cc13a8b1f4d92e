"""Frames on a byte stream: a 4-byte length, a fixed header, a body.

    length u32 | version u8 | priority u8 | kind u16 | request id u32 | deadline ms u32 | body

All numbers are big-endian; the length counts everything after itself. The header is not encrypted
when the body is sealed, only authenticated, so a frame over the limit of its kind is refused when
its header has arrived, before memory is used for its body. Request id 0 means a one-way message;
the ids of the dialer are odd, those of the acceptor even. Deadline 0 means none. This module knows
no socket, no key and no message.
"""

from collections.abc import Iterator, Mapping
from struct import Struct as Layout

from msgspec import Struct

from hyperscale.wire.errors import PeerProtocolError, RefusalReason

FRAME_VERSION = 1
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""The largest frame of any kind, length field included."""

_LAYOUT = Layout(">IBBHII")
HEAD_BYTES = _LAYOUT.size
LENGTH_BYTES = 4
DEADLINE_MS_MAX = 0xFFFFFFFF
REQUEST_ID_MAX = 0xFFFFFFFF
PRIORITY_MAX = 3

_pack = _LAYOUT.pack
_unpack_from = _LAYOUT.unpack_from


class Frame(Struct, gc=False):
    """One received frame; `head` is authenticated with a sealed body."""

    kind: int
    request_id: int
    deadline_ms: int
    priority: int
    head: bytes
    body: bytes


def encode_head(
    kind: int, request_id: int, deadline_ms: int, priority: int, body_bytes: int
) -> bytes:
    """Return the header of a frame with a body of `body_bytes`, the tag of its seal included."""
    return _pack(
        body_bytes + HEAD_BYTES - LENGTH_BYTES,
        FRAME_VERSION,
        priority,
        kind,
        request_id,
        deadline_ms,
    )


class WireFrameDecoder:
    """Splits a byte stream into frames. A breach is raised after the frames before it.

    `limits` bounds the body by kind, `limit_other` that of other kinds; `overhead` is the size of
    a seal. All three may be replaced between calls: a handshake has its own, smaller limits.
    """

    def __init__(self, limits: Mapping[int, int], *, limit_other: int, overhead: int = 0) -> None:
        self.limits = limits
        self.limit_other = limit_other
        self.overhead = overhead
        self._held = bytearray()
        self._need = HEAD_BYTES  # bytes to hold before the next decision

    @property
    def is_mid_frame(self) -> bool:
        """True if a part of a frame has arrived."""
        return bool(self._held)

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that is complete with `data`. Exhaust it before feeding again."""
        held = self._held
        if held:
            held += data
            if len(held) < self._need:
                self._check_length(held)
                return
            data = bytes(held)
            held.clear()
        offset = 0
        have = len(data)
        while have - offset >= HEAD_BYTES:
            length, version, priority, kind, request_id, deadline_ms = _unpack_from(data, offset)
            limit = self.limits.get(kind, self.limit_other) + self.overhead
            if (
                version != FRAME_VERSION
                or length + LENGTH_BYTES - HEAD_BYTES > limit
                or length + LENGTH_BYTES < HEAD_BYTES
                or priority > PRIORITY_MAX
            ):
                raise _breach(length, version, priority, kind, limit)
            end = offset + LENGTH_BYTES + length
            if end > have:
                self._need = LENGTH_BYTES + length
                held += data[offset:]
                return
            middle = offset + HEAD_BYTES
            yield Frame(
                kind, request_id, deadline_ms, priority, data[offset:middle], data[middle:end]
            )
            offset = end
        self._need = HEAD_BYTES
        if offset < have:
            held += data[offset:]
            self._check_length(held)

    def _check_length(self, held: bytearray) -> None:
        """Raise if the length, which comes first, is already impossible."""
        if len(held) >= LENGTH_BYTES:
            length = int.from_bytes(held[:LENGTH_BYTES], "big")
            if length + LENGTH_BYTES > FRAME_BYTES_MAX:
                raise _oversized(f"a frame of {length} bytes", FRAME_BYTES_MAX)
            if length + LENGTH_BYTES < HEAD_BYTES:
                raise _too_short(length)


def _breach(length: int, version: int, priority: int, kind: int, limit: int) -> PeerProtocolError:
    """Return the error for an invalid header, the most telling one first."""
    if length + LENGTH_BYTES > FRAME_BYTES_MAX:
        return _oversized(f"a frame of {length} bytes", FRAME_BYTES_MAX)
    if length + LENGTH_BYTES < HEAD_BYTES:
        return _too_short(length)
    if version != FRAME_VERSION:
        return PeerProtocolError(
            f"frame version {version}, this node uses {FRAME_VERSION}", RefusalReason.VERSION
        )
    if priority > PRIORITY_MAX:
        return PeerProtocolError(
            f"priority {priority} is not within 0..{PRIORITY_MAX}", RefusalReason.MALFORMED
        )
    return _oversized(f"kind {kind} with {length + LENGTH_BYTES - HEAD_BYTES} bytes", limit)


def _oversized(what: str, limit: int) -> PeerProtocolError:
    return PeerProtocolError(f"{what}, at most {limit}", RefusalReason.OVERSIZED)


def _too_short(length: int) -> PeerProtocolError:
    return PeerProtocolError(
        f"a frame of {length} bytes is shorter than its header", RefusalReason.MALFORMED
    )
