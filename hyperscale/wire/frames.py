"""Frames on a byte stream: a 4-byte length, a fixed header, a body.

    length u32 | version u8 | priority u8 | kind u16 | request id u32 | deadline ms u32 | body

All big-endian; the length counts everything after itself. The header stays readable when the
body is sealed (it is authenticated with it), so a frame over the limit of its kind is refused
when its header has arrived, before anything is kept for its body. Request id 0 asks for no
answer; the side that dialled numbers its requests odd, the other even, so an id says whose it
is. Deadline 0 is none. This module knows no socket, no key and no message.
"""

from collections.abc import Iterator, Mapping
from struct import Struct as Layout

from msgspec import Struct

from hyperscale.wire.errors import PeerProtocolError, RefusalReason

FRAME_VERSION = 1
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Largest frame, length field included, whatever its kind."""

_LAYOUT = Layout(">IBBHII")
HEAD_BYTES = _LAYOUT.size
LENGTH_BYTES = 4
DEADLINE_MS_MAX = 0xFFFFFFFF
REQUEST_ID_MAX = 0xFFFFFFFF
PRIORITY_MAX = 3

_pack = _LAYOUT.pack
_unpack_from = _LAYOUT.unpack_from


class Frame(Struct, gc=False):
    """One frame as it came; `head` is what authenticates a sealed body."""

    kind: int
    request_id: int
    deadline_ms: int
    priority: int
    head: bytes
    body: bytes


def encode_head(
    kind: int, request_id: int, deadline_ms: int, priority: int, body_bytes: int
) -> bytes:
    """The 16 bytes in front of a body of that many bytes (its seal included)."""
    return _pack(
        body_bytes + HEAD_BYTES - LENGTH_BYTES,
        FRAME_VERSION,
        priority,
        kind,
        request_id,
        deadline_ms,
    )


class WireFrameDecoder:
    """Bytes in, frames out. A peer's breach is raised where it stands: after the frames before it.

    `limits` bounds the body by kind; other kinds by `limit_other`; `overhead` is what a seal
    adds. All three may be replaced between calls (a handshake has its own, smaller ones).
    """

    def __init__(self, limits: Mapping[int, int], *, limit_other: int, overhead: int = 0) -> None:
        self.limits = limits
        self.limit_other = limit_other
        self.overhead = overhead
        self._held = bytearray()
        self._need = HEAD_BYTES  # how much must be held before there is anything to decide

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._held)

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame that is complete with `data`. Exhaust it before feeding again."""
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
        """Four bytes are enough to see that this is no frame of ours."""
        if len(held) >= LENGTH_BYTES:
            length = int.from_bytes(held[:LENGTH_BYTES], "big")
            if length + LENGTH_BYTES > FRAME_BYTES_MAX:
                raise _oversized(f"a frame of {length} bytes", FRAME_BYTES_MAX)
            if length + LENGTH_BYTES < HEAD_BYTES:
                raise _too_short(length)


def _breach(length: int, version: int, priority: int, kind: int, limit: int) -> PeerProtocolError:
    """The first thing wrong with a header, in the order a reader would want to know."""
    if length + LENGTH_BYTES > FRAME_BYTES_MAX:
        return _oversized(f"a frame of {length} bytes", FRAME_BYTES_MAX)
    if length + LENGTH_BYTES < HEAD_BYTES:
        return _too_short(length)
    if version != FRAME_VERSION:
        return PeerProtocolError(
            f"frame version {version}, this node speaks {FRAME_VERSION}", RefusalReason.VERSION
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
