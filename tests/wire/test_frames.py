"""Frames: every parser test runs three ways (whole, byte by byte, with trailing bytes)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.frames import (
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    Frame,
    WireFrameDecoder,
    encode_head,
)

LIMITS = {7: 100, 8: 1_000_000}
LIMIT_OTHER = 300


def decoder() -> WireFrameDecoder:
    return WireFrameDecoder(LIMITS, limit_other=LIMIT_OTHER)


def encode(kind: int, body: bytes, request_id: int = 1, deadline_ms: int = 0) -> bytes:
    return encode_head(kind, request_id, deadline_ms, 2, len(body)) + body


def collect(
    decoder: WireFrameDecoder, pieces: list[bytes]
) -> tuple[list[Frame], RefusalReason | None]:
    """All frames up to the first breach, and its reason."""
    frames: list[Frame] = []
    try:
        for piece in pieces:
            frames.extend(_each(decoder, piece))
    except _Breach as breach:
        return frames + breach.before, breach.reason
    return frames, None


class _Breach(Exception):
    def __init__(self, before: list[Frame], reason: RefusalReason) -> None:
        super().__init__(reason)
        self.before, self.reason = before, reason


def _each(decoder: WireFrameDecoder, piece: bytes) -> list[Frame]:
    frames: list[Frame] = []
    try:
        for frame in decoder.feed(piece):
            frames.append(frame)
    except PeerProtocolError as error:
        raise _Breach(frames, error.reason) from error
    return frames


def single_bytes(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


frames_strategy = st.lists(
    st.tuples(
        st.sampled_from([7, 8, 9]),
        st.binary(max_size=100),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
    ),
    max_size=6,
)


@given(frames_strategy, st.binary(max_size=HEAD_BYTES - 1))
def test_whole_byte_by_byte_and_with_trailing_bytes_give_the_same_frames(
    described: list[tuple[int, bytes, int, int]], trailing: bytes
) -> None:
    stream = b"".join(encode(*each) for each in described)
    if trailing[:4] != b"\0\0\0\x0c"[: len(trailing)]:
        trailing = b"\0\0\0\x0c" + trailing[4:]  # a plausible length, so that it is no breach
    trailing = trailing[: HEAD_BYTES - 1]

    whole, one_by_one, followed = decoder(), decoder(), decoder()
    expected = [
        (kind, request_id, deadline, body) for kind, body, request_id, deadline in described
    ]
    for machine, pieces in (
        (whole, [stream]),
        (one_by_one, single_bytes(stream)),
        (followed, [stream + trailing]),
    ):
        frames, breach = collect(machine, pieces)
        assert breach is None
        assert [(f.kind, f.request_id, f.deadline_ms, f.body) for f in frames] == expected
    assert not whole.is_mid_frame
    assert not one_by_one.is_mid_frame
    assert followed.held_bytes == len(trailing)


@given(frames_strategy, st.lists(st.integers(1, 60), max_size=20))
def test_any_cutting_of_the_stream_gives_the_same_frames(
    described: list[tuple[int, bytes, int, int]], cuts: list[int]
) -> None:
    stream = b"".join(encode(*each) for each in described)
    pieces, rest = [], stream
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    frames, breach = collect(decoder(), [*pieces, rest])
    assert breach is None
    assert [f.body for f in frames] == [body for _, body, _, _ in described]


@given(st.binary(max_size=400), st.lists(st.integers(1, 60), max_size=10))
def test_random_bytes_end_in_the_same_frames_and_reason_however_they_are_cut(
    stream: bytes, cuts: list[int]
) -> None:
    pieces, rest = [], stream
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    whole = collect(decoder(), [stream])
    assert collect(decoder(), [*pieces, rest]) == whole
    assert collect(decoder(), single_bytes(stream)) == whole


BREACHES = {
    "over the limit of its kind": (encode_head(7, 1, 0, 2, 101), RefusalReason.OVERSIZED),
    "over the limit of unknown kinds": (encode_head(9, 1, 0, 2, 301), RefusalReason.OVERSIZED),
    "over every limit": (FRAME_BYTES_MAX.to_bytes(4, "big"), RefusalReason.OVERSIZED),
    "not ours at all": (b"GET / HTTP/1.1\r\n", RefusalReason.OVERSIZED),
    "shorter than its header": (b"\0\0\0\x0b" + bytes(12), RefusalReason.MALFORMED),
    "of another frame version": (
        b"\0\0\0\x0c\x02" + encode_head(7, 1, 0, 2, 0)[5:],
        RefusalReason.VERSION,
    ),
    "of no priority": (encode_head(7, 1, 0, 4, 0), RefusalReason.MALFORMED),
}


@pytest.mark.parametrize("case", BREACHES)
def test_a_breach_is_refused_by_its_header_after_the_frames_before_it(case: str) -> None:
    head, reason = BREACHES[case]
    good = encode(7, b"good")
    for pieces in ([good + head], single_bytes(good + head), [good + head + bytes(500)]):
        frames, breach = collect(decoder(), pieces)
        assert [f.body for f in frames] == [b"good"]
        assert breach is reason


def test_nothing_is_kept_for_a_body_over_the_limit() -> None:
    machine = decoder()
    _, breach = collect(machine, [encode_head(7, 1, 0, 2, 10_000_000) + bytes(1000)])
    assert breach is RefusalReason.OVERSIZED
    assert machine.held_bytes == 0


def test_a_large_body_is_held_only_as_far_as_it_has_arrived() -> None:
    machine = decoder()
    body = bytes(range(256)) * 2000
    stream = encode(8, body)
    frames, breach = collect(machine, [stream[i : i + 1000] for i in range(0, len(stream), 1000)])
    assert breach is None
    assert [f.body for f in frames] == [body]
