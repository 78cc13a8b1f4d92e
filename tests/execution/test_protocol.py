"""The executor protocol: messages are the same however the byte stream is cut."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.execution.protocol import (
    FRAME_BYTES_MAX,
    ExecutorHello,
    FrameError,
    PrepareSlot,
    RefusalKind,
    RenewLease,
    SlotFinished,
    SlotPrepared,
    SlotRefused,
    SlotReport,
    SlotTearingDown,
    StartSlot,
    StopSlot,
    encode_frame,
    from_executor_decoder,
    to_executor_decoder,
)
from hyperscale.plan import MetricKind, MetricPlan, StepKind, StepPlan, WorkflowPlan
from hyperscale.plan.status import PartStatus
from tests.lab.reports import PartReport, SeriesPoint, StepCounts, StepReport, native

PLAN = WorkflowPlan(
    name="Shop",
    vus=11,
    duration_s=2.5,
    timeout_s=30.0,
    steps=(
        StepPlan(name="login", kind=StepKind.TEST),
        StepPlan(name="cart", kind=StepKind.TEST, after=("login",), layer=1),
    ),
    metrics=(MetricPlan(name="sizes", kind=MetricKind.DISTRIBUTION),),
)
REPORT = native(
    PartReport(
        workflow="Shop",
        slot=1,
        sequence=7,
        elapsed_s=1.5,
        vus=11,
        iterations=40,
        steps=[
            StepReport(
                name="login",
                counts=StepCounts(
                    total=3, ok=2, failed=1, status_codes={200: 2}, errors={"reset": 1}
                ),
                latency=b"\x00\x01",
                phases={"tls": b"\x02"},
                series=[SeriesPoint(second=0, total=3, failed=1, latency=b"\x03")],
            )
        ],
    )
)
TO_EXECUTOR = [
    PrepareSlot(bundle="/b.zip", file="shop.py", workflow="Shop", plan=PLAN, slot=1, slots=2),
    StartSlot(start_in_ms=12.5),
    RenewLease(deadline_boottime_ns=2**62),
    StopSlot(reason="interrupted", grace_s=1.0),
]
FROM_EXECUTOR = [
    ExecutorHello(),
    SlotPrepared(),
    SlotRefused(error="no such host", kind=RefusalKind.INPUT, hint="look again"),
    SlotReport(report=REPORT),
    SlotTearingDown(),
    SlotFinished(status=PartStatus.FAILED, report=REPORT, error="boom", provided=b"\xff"),
]


@pytest.mark.parametrize("message", TO_EXECUTOR, ids=lambda m: type(m).__name__)
def test_every_message_to_an_executor_arrives_as_it_was_sent(message) -> None:
    assert to_executor_decoder().feed(encode_frame(message)) == [message]


@pytest.mark.parametrize("message", FROM_EXECUTOR, ids=lambda m: type(m).__name__)
def test_every_message_of_an_executor_arrives_as_it_was_sent(message) -> None:
    assert from_executor_decoder().feed(encode_frame(message)) == [message]


def test_a_stream_fed_byte_by_byte_gives_the_same_messages() -> None:
    decoder = to_executor_decoder()
    got = []
    for byte in b"".join(map(encode_frame, TO_EXECUTOR)):
        got += decoder.feed(bytes([byte]))
    assert got == TO_EXECUTOR
    assert not decoder.is_mid_frame


def test_trailing_bytes_wait_for_the_rest_of_their_frame() -> None:
    decoder = to_executor_decoder()
    second = encode_frame(StartSlot(start_in_ms=3.0))
    first = RenewLease(deadline_boottime_ns=1)
    assert decoder.feed(encode_frame(first) + second[:6]) == [first]
    assert decoder.is_mid_frame
    assert decoder.feed(second[6:]) == [StartSlot(start_in_ms=3.0)]


@given(st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, FROM_EXECUTOR))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    edges = [0, *sorted(cuts), len(stream)]
    decoder = from_executor_decoder()
    got = []
    for start, end in itertools.pairwise(edges):
        got += decoder.feed(stream[start:end])
    assert got == FROM_EXECUTOR


def test_an_oversized_frame_is_refused_by_its_header_alone() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        to_executor_decoder().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


def test_an_oversized_message_is_never_sent() -> None:
    message = PrepareSlot(
        bundle="", file="a.py", workflow="A", plan=PLAN, context=bytes(FRAME_BYTES_MAX)
    )
    with pytest.raises(FrameError, match="PrepareSlot message of"):
        encode_frame(message)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(FrameError, match="no message"):
        to_executor_decoder().feed(encode_frame(ExecutorHello()))


def test_unknown_fields_are_ignored() -> None:
    payload = msgspec.msgpack.encode({"type": "start", "start_in_ms": 5.0, "colour": "blue"})
    frame = len(payload).to_bytes(4, "big") + payload
    assert to_executor_decoder().feed(frame) == [StartSlot(start_in_ms=5.0)]


@given(st.binary(max_size=64))
def test_garbage_gives_messages_or_a_frame_error_and_nothing_else(garbage: bytes) -> None:
    framed = len(garbage).to_bytes(4, "big") + garbage
    for stream in (garbage, framed):
        try:
            to_executor_decoder().feed(stream)
        except FrameError:
            continue
