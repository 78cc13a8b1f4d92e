"""Writing protocol buffers, and the Snappy framing that Prometheus wants: no dependency needed.

Only what the messages of Prometheus, OpenTelemetry and Bigtable use. Each function returns one
encoded field; a message is the concatenation of its fields. Fields with their default value are
left out, as the encoding demands of proto3.
"""

import struct
from collections.abc import Iterable

_LITERAL_BYTES_MAX = 65_536


def varint(value: int) -> bytes:
    """Encode an unsigned number, or a negative one as its 64-bit complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def uint_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value) if value else b""


def sint_field(number: int, value: int) -> bytes:
    return uint_field(number, zigzag(value))


def double_field(number: int, value: float, *, is_oneof: bool = False) -> bytes:
    """Encode a double; a member of a oneof is written even if it is 0."""
    if value == 0 and not is_oneof:
        return b""
    return varint(number << 3 | 1) + struct.pack("<d", value)


def fixed64_field(number: int, value: int, *, is_oneof: bool = False) -> bytes:
    if value == 0 and not is_oneof:
        return b""
    return varint(number << 3 | 1) + struct.pack("<Q", value & 0xFFFF_FFFF_FFFF_FFFF)


def bytes_field(number: int, value: bytes, *, is_message: bool = False) -> bytes:
    """Encode bytes, or a message, which is written even if it is empty."""
    if not value and not is_message:
        return b""
    return varint(number << 3 | 2) + varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    return bytes_field(number, value.encode("utf-8", "replace"))


def message_field(number: int, value: bytes) -> bytes:
    return bytes_field(number, value, is_message=True)


def packed_varints(number: int, values: Iterable[int]) -> bytes:
    return bytes_field(number, b"".join(map(varint, values)))


def packed_sints(number: int, values: Iterable[int]) -> bytes:
    return packed_varints(number, map(zigzag, values))


def snappy(payload: bytes) -> bytes:
    """Frame a payload as a Snappy block of literals: valid for every decoder, not smaller."""
    parts = [varint(len(payload))]
    for start in range(0, len(payload), _LITERAL_BYTES_MAX):
        literal = payload[start : start + _LITERAL_BYTES_MAX]
        # Tag 61: a literal whose length less one follows in two bytes.
        parts += [b"\xf4", struct.pack("<H", len(literal) - 1), literal]
    return b"".join(parts)
