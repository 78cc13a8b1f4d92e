"""Limits on output: what passes, what is dropped, and the note about dropped bytes."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.execution.capture import LineReader, OutputLimit
from hyperscale.testing.parameters import Mask


def limit(rate: int = 100, burst: int = 100) -> OutputLimit:
    return OutputLimit(rate, burst, now_s=0.0)


def test_output_within_the_limit_passes_unchanged() -> None:
    assert limit().admit(b"hello\n", now_s=0.0) == b"hello\n"


def test_a_write_larger_than_the_bucket_passes_in_part() -> None:
    bucket = limit()
    assert bucket.admit(b"x" * 250, now_s=0.0) == b"x" * 100
    assert bucket.dropped_bytes == 150


def test_after_a_drop_output_resumes_with_one_note_when_the_bucket_is_half_full() -> None:
    bucket = limit()
    bucket.admit(b"x" * 110, now_s=0.0)
    assert bucket.admit(b"lost", now_s=0.4) == b""
    assert bucket.admit(b"back\n", now_s=0.5) == "… 14 bytes dropped\nback\n".encode()
    assert bucket.take_note() == b""


@given(st.lists(st.tuples(st.binary(max_size=300), st.floats(0, 2)), max_size=30))
def test_every_byte_is_passed_or_counted_and_the_rate_is_kept(
    writes: list[tuple[bytes, float]],
) -> None:
    bucket, now_s, passed, dropped = limit(), 0.0, 0, 0
    for payload, pause_s in writes:
        now_s += pause_s
        before = bucket.dropped_bytes
        out = bucket.admit(payload, now_s=now_s)
        note = f"… {before} bytes dropped\n".encode() if before else b""
        if out.startswith(note) and note:
            dropped += before
            out = out[len(note) :]
        passed += len(out)
    dropped += bucket.dropped_bytes
    assert passed + dropped == sum(len(payload) for payload, _ in writes)
    assert passed <= 100 + 100 * now_s + 1


def test_lines_are_delivered_whole_and_the_rest_at_the_end() -> None:
    reader = LineReader(limit())
    assert reader.feed(b"one\ntw", now_s=0.0) == "one\n"
    assert reader.feed(b"o\n", now_s=0.0) == "two\n"
    assert reader.feed(b"thr\xc3", now_s=0.0) == ""
    assert reader.feed(b"\xa9e", now_s=0.0) == ""
    assert reader.finish() == "thrée"
    assert reader.finish() == ""


def test_a_very_long_line_is_delivered_in_parts() -> None:
    reader = LineReader(limit(burst=100_000))
    assert reader.feed(b"x" * 9_000, now_s=0.0) == "x" * 9_000


SECRET = "hunter2-and-more"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(20, 60))
def test_no_half_of_a_secret_is_shown_wherever_output_is_split_or_cut(
    sizes: list[int], burst: int
) -> None:
    """C code writes around the limit of the executor, in pieces of any size."""
    printed = f"token={SECRET} and again {SECRET}\n".encode() * 3
    reader = LineReader(limit(rate=1, burst=burst))
    reader.mask = Mask([SECRET])
    shown, at = "", 0
    while at < len(printed):
        size = sizes[at % len(sizes)]
        shown += reader.feed(printed[at : at + size], now_s=0.0)
        at += size
    shown += reader.finish()
    halves = [SECRET[:length] for length in range(4, len(SECRET))]
    halves += [SECRET[-length:] for length in range(4, len(SECRET))]
    assert not [half for half in halves if half in shown]
