"""Packed messages for a peer are cut into pieces that fit into a frame."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.ledger.messages import pieces

messages = st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=40))


def packed(given: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack("<QI", group, len(body)) + body for group, body in given)


def unpacked(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        group, length = struct.unpack_from("<QI", data)
        found.append((group, data[12 : 12 + length]))
        assert len(found[-1][1]) == length
        data = data[12 + length :]
    return found


@given(st.lists(messages), st.integers(1, 200))
def test_pieces_hold_whole_messages_in_order(given: list[tuple[int, bytes]], most: int) -> None:
    found = [unpacked(piece) for piece in pieces(packed(given), most)]
    assert [each for piece in found for each in piece] == given
    assert all(len(packed(piece)) <= most or len(piece) == 1 for piece in found)
    assert all(found)
