"""Sessions without sockets: two of them, and a clock that is an argument."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from hyperscale.wire.admission import Admission, AdmissionWatermarks
from hyperscale.wire.calls import (
    InboundCall,
    PendingCall,
    PendingCalls,
)
from hyperscale.wire.errors import (
    ConnectionLostError,
    DeadlineError,
    PeerProtocolError,
    RefusalReason,
    RemoteError,
    RemoteErrorCode,
    UnreachableError,
)
from hyperscale.wire.frames import REQUEST_ID_MAX, Frame, WireFrameDecoder, encode_head
from hyperscale.wire.handshake import PROTOCOL, HandshakeResult
from hyperscale.wire.messages import (
    CancelCall,
    Chunk,
    GoAway,
    KeepAlive,
    KeepAliveReply,
    StreamCredit,
)
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.registry import REGISTRY, UNKNOWN_KIND_BYTES_MAX
from hyperscale.wire.roles import Role
from hyperscale.wire.sealing import FrameOpener, FrameSealer, SessionKeys
from hyperscale.wire.session import LOST_AFTER_S, PING_AFTER_S, Session
from hyperscale.wire.streams import STREAM_WINDOW_BYTES, StreamBuffer
from tests.lab.peers import Answer, Bulk, Fetch, Final, Note, Question, introduction


class Box:
    """A waiter that remembers."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.count = 0

    def done(self) -> bool:
        return self.count > 0

    def set_result(self, result: Any, /) -> None:
        self.result, self.count = result, self.count + 1

    def set_exception(self, exception: BaseException, /) -> None:
        self.error, self.count = exception, self.count + 1


class End:
    """One end of a connection: a session, its decoder, and the calls it was given."""

    def __init__(self, node_id: str, *, is_dialer: bool, role: Role = Role.MANAGER) -> None:
        keys = SessionKeys(bytes(32), b"a" * 32)
        own, other = keys if is_dialer else (keys.from_acceptor, keys.from_dialer)
        agreement = HandshakeResult(
            peer=introduction(node_id, role),
            protocol=PROTOCOL,
            capabilities=frozenset(),
            sealer=FrameSealer(own),
            opener=FrameOpener(other),
        )
        self.calls: list[InboundCall] = []
        self.refused: list[RefusalReason] = []
        self.admission = Admission(AdmissionWatermarks(), Random(1))
        self.session = Session(
            agreement,
            is_dialer=is_dialer,
            admission=self.admission,
            on_call=self.calls.append,
            on_refused=lambda error: self.refused.append(error.reason),
            now_s=0.0,
        )
        self.decoder = WireFrameDecoder(
            REGISTRY.limits, limit_other=UNKNOWN_KIND_BYTES_MAX, overhead=16
        )

    def out(self, now_s: float = 0.0) -> bytes:
        return self.session.outgoing(now_s=now_s, bytes_max=10**9)

    def take(self, data: bytes, now_s: float = 0.0) -> None:
        for frame in self.decoder.feed(data):
            self.session.take(frame, now_s=now_s)

    def sealed(self, message: Struct, request_id: int) -> bytes:
        """A frame this end sends, whatever its session thinks of it."""
        spec = REGISTRY.by_type[type(message)]
        body = REGISTRY.encode(message)
        head = encode_head(spec.kind, request_id, 0, 0, len(body) + 16)
        sealer = self.session.agreement.sealer
        assert sealer is not None
        return head + sealer.seal(head, body)


def pair(role: Role = Role.MANAGER) -> tuple[End, End]:
    """A dialer and an acceptor; the acceptor sees the dialer in `role`."""
    return End("acceptor", is_dialer=True), End("dialer", is_dialer=False, role=role)


def exchange(one: End, two: End, now_s: float = 0.0) -> None:
    """Until neither has anything to say."""
    while (from_one := one.out(now_s)) or (from_two := two.out(now_s)):
        two.take(from_one, now_s)
        one.take(two.out(now_s) if from_one else from_two, now_s)


def ask(end: End, text: str = "hi", deadline_s: float = 0.0, reply: type[Struct] = Answer) -> Box:
    box = Box()
    end.session.request(Question(text), reply, box, deadline_s=deadline_s)
    return box


def test_requests_of_both_sides_have_distinct_ids() -> None:
    one, two = pair()
    box_one, box_two = ask(one, "one"), ask(two, "two")
    exchange(one, two)
    assert [call.message.text for call in two.calls] == ["one"]
    assert [call.message.text for call in one.calls] == ["two"]
    two.calls[0].reply(Answer("to one"))
    one.calls[0].reply(Answer("to two"))
    exchange(one, two)
    assert (box_one.result, box_two.result) == (Answer("to one"), Answer("to two"))
    assert not one.session.pending.by_id
    assert not two.session.pending.by_id
    assert one.admission.in_flight == two.admission.in_flight == [0, 0, 0, 0]


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_answers_in_any_order_and_cancels_find_their_request(
    order: list[int], cancelled: set[int]
) -> None:
    one, two = pair()
    boxes = {n: ask(one, str(n)) for n in range(12)}
    exchange(one, two)
    for number in cancelled:
        one.session.cancel(2 * number + 1)
    exchange(one, two)
    for number in order:
        two.calls[number].reply(Answer(two.calls[number].message.text))
    exchange(one, two)
    for number, box in boxes.items():
        assert box.count == (number not in cancelled)
        assert box.result == (None if number in cancelled else Answer(str(number)))
    assert two.admission.in_flight == [0, 0, 0, 0]
    assert not two.session.inbound


def test_the_deadline_on_the_wire_is_the_time_remaining_when_sent() -> None:
    one, two = pair()
    ask(one, deadline_s=10.0)
    two.take(one.out(now_s=7.0), now_s=107.0)
    assert two.calls[0].deadline_s == pytest.approx(110.0, abs=0.002)


def test_a_request_past_its_deadline_fails_and_is_cancelled_at_the_peer() -> None:
    one, two = pair()
    box = ask(one, deadline_s=1.0)
    exchange(one, two)
    cancelled: list[bool] = []
    two.calls[0].on_cancel = lambda: cancelled.append(True)
    assert one.session.wake_at_s() == pytest.approx(1.0, abs=0.05)
    one.session.tick(now_s=1.05)
    assert isinstance(box.error, DeadlineError)
    exchange(one, two, now_s=1.05)
    assert cancelled == [True]
    two.calls[0].reply(Answer("too late"))
    assert not two.session.outbox


def test_a_request_not_sent_in_time_was_certainly_not_executed() -> None:
    one, _ = pair()
    box = ask(one, deadline_s=1.0)
    one.session.wake_at_s()
    one.session.tick(now_s=1.05)
    assert isinstance(box.error, UnreachableError)
    assert one.out(now_s=1.05) == b""


def test_a_closed_session_tells_sent_requests_from_unsent_ones() -> None:
    one, two = pair()
    sent = ask(one, "sent")
    exchange(one, two)
    unsent = ask(one, "unsent")
    one.session.send(Note("note"))
    left = one.session.close("pulled")
    assert isinstance(sent.error, ConnectionLostError)
    assert isinstance(unsent.error, UnreachableError)
    assert [entry.kind for entry in left] == [REGISTRY.by_type[Note].kind]


def test_request_ids_wrap_around_and_skip_pending_calls() -> None:
    calls = PendingCalls(is_dialer=True, first_id=REQUEST_ID_MAX)
    frame = QueuedFrame(1, 1, 0, 0.0, b"")
    spec = REGISTRY.by_type[Answer]
    calls.add(1, PendingCall("Question", frame, spec, future=None, buffer=None), 0.0)
    assert [calls.take_id() for _ in range(3)] == [REQUEST_ID_MAX, 3, 5]


def test_urgent_messages_overtake_waiting_ones() -> None:
    one, two = pair()
    for text in ("a", "b"):
        one.session.send(Note(text))
    one.session.send(Final("now"))
    exchange(one, two)
    assert [call.message.text for call in two.calls] == ["now", "a", "b"]


class TestProtocolBreaches:
    def test_a_malformed_message_fails_and_the_session_goes_on(self) -> None:
        one, two = pair()
        body = msgspec.msgpack.encode({"text": 5})
        box = Box()
        request_id = one.session.request(Question("x"), Answer, box, deadline_s=0.0)
        one.session.pending.by_id[request_id].frame.body = body
        exchange(one, two)
        assert isinstance(box.error, RemoteError)
        assert box.error.code is RemoteErrorCode.MALFORMED
        assert two.refused == [RefusalReason.MALFORMED]
        assert two.admission.in_flight == [0, 0, 0, 0]

    def test_an_answer_of_another_kind_or_shape_fails_the_call(self) -> None:
        one, two = pair()
        box = ask(one)
        exchange(one, two)
        two.calls[0].reply(Note("not an answer"))
        exchange(one, two)
        assert isinstance(box.error, RemoteError)
        assert box.error.code is RemoteErrorCode.UNEXPECTED

    def test_a_client_may_not_send_messages_of_nodes(self) -> None:
        one, two = pair(role=Role.CLIENT)
        box = Box()
        one.session.request(Fetch(1), Chunk, box, deadline_s=0.0)
        one.session.send(Note("psst"))
        exchange(one, two)
        assert isinstance(box.error, RemoteError)
        assert box.error.code is RemoteErrorCode.ROLE
        assert two.calls == []
        assert two.refused == [RefusalReason.ROLE, RefusalReason.ROLE]

    def test_a_reply_without_a_pending_call_is_ignored(self) -> None:
        one, two = pair()
        one.take(two.sealed(Answer("?"), 77))
        assert not one.session.outbox

    def test_a_request_id_in_use_ends_the_session(self) -> None:
        one, two = pair()
        two.take(one.sealed(Question("a"), 9))
        with pytest.raises(PeerProtocolError) as caught:
            two.take(one.sealed(Question("b"), 9))
        assert caught.value.reason is RefusalReason.UNEXPECTED

    def test_cancels_and_credits_of_unknown_calls_are_ignored(self) -> None:
        one, two = pair()
        two.take(one.sealed(CancelCall(), 9) + one.sealed(StreamCredit(5), 9))
        assert two.calls == []

    @given(st.integers(0, 100), st.integers(0, 9), st.binary(max_size=60))
    def test_any_authentic_frame_is_answered_refused_or_ignored(
        self, kind: int, request_id: int, body: bytes
    ) -> None:
        one, two = pair()
        ask(two)
        two.out()
        sealer = one.session.agreement.sealer
        assert sealer is not None
        head = encode_head(kind, request_id, 0, 0, len(body) + 16)
        frame = Frame(kind, request_id, 0, 0, head, sealer.seal(head, body))
        try:
            two.session.take(frame, now_s=0.0)
        except PeerProtocolError:
            return
        two.session.close("done")
        assert two.admission.in_flight == [0, 0, 0, 0]


class TestStreams:
    def opened(self) -> tuple[End, End, StreamBuffer, int]:
        one, two = pair()
        inflow = StreamBuffer(lambda: None)
        number = one.session.request(Fetch(1), Chunk, None, deadline_s=0.0, buffer=inflow)
        exchange(one, two)
        return one, two, inflow, number

    def test_the_end_follows_the_items_whatever_their_lane(self) -> None:
        one, two, inflow, _ = self.opened()
        for byte in b"abc":
            two.calls[0].send_item(Chunk(bytes([byte])))
        two.calls[0].end_stream()
        exchange(one, two)
        assert [item.data for item, _ in inflow.items] == [b"a", b"b", b"c"]  # type: ignore[attr-defined]
        assert inflow.is_ended

    def test_credit_comes_back_as_the_reader_takes_items(self) -> None:
        one, two, inflow, number = self.opened()
        call = two.calls[0]
        item = Chunk(bytes(500_000))
        while call.credit_bytes > 0:
            call.send_item(item)
        exchange(one, two)
        credited = 0
        while inflow.items:
            _, credit = inflow.take()
            if credit:
                credited += credit
                one.session.grant(number, credit)
        exchange(one, two)
        assert credited > STREAM_WINDOW_BYTES // 2
        assert 0 < call.credit_bytes <= STREAM_WINDOW_BYTES

    def test_a_sender_that_ignores_the_window_is_cut_off(self) -> None:
        one, two = pair()
        inflow = StreamBuffer(lambda: None)
        one.session.request(Fetch(1), Bulk, None, deadline_s=0.0, buffer=inflow)
        exchange(one, two)
        flood = b"".join(two.sealed(Bulk(bytes(3_000_000)), 1) for _ in range(20))
        with pytest.raises(PeerProtocolError) as caught:
            one.take(flood)
        assert caught.value.reason is RefusalReason.UNEXPECTED

    def test_credit_cannot_be_forged_beyond_the_window(self) -> None:
        one, two, _, number = self.opened()
        two.take(one.sealed(StreamCredit(10**12), number))
        assert two.calls[0].credit_bytes == STREAM_WINDOW_BYTES


class TestKeepAlive:
    def test_a_silent_peer_is_pinged_and_then_lost(self) -> None:
        one, _ = pair()
        assert one.session.wake_at_s() == PING_AFTER_S
        assert one.session.tick(now_s=PING_AFTER_S)
        assert one.session.outbox
        assert one.session.wake_at_s() == LOST_AFTER_S
        assert not one.session.tick(now_s=LOST_AFTER_S)

    def test_a_keep_alive_is_answered_and_any_frame_counts(self) -> None:
        one, two = pair()
        one.session.wake_at_s()
        one.session.tick(now_s=PING_AFTER_S)
        exchange(one, two, now_s=PING_AFTER_S)
        assert one.session.wake_at_s() == 2 * PING_AFTER_S

    def test_a_stall_of_this_node_is_not_silence_of_the_peer(self) -> None:
        one, two = pair()
        one.session.wake_at_s()
        late_s = PING_AFTER_S + 60.0
        assert one.session.tick(now_s=late_s)  # nobody is judged by what we could not hear
        exchange(one, two, now_s=late_s)
        assert one.session.wake_at_s() == late_s + PING_AFTER_S

    def test_a_dead_peer_is_still_found_after_a_stall(self) -> None:
        one, _ = pair()
        one.session.wake_at_s()
        now_s, alive = PING_AFTER_S + 60.0, True
        for _ in range(4):
            alive = one.session.tick(now_s=now_s)
            now_s = one.session.wake_at_s()
            if not alive:
                break
        assert not alive

    def test_keep_alives_of_both_sides_do_not_trigger_each_other(self) -> None:
        one, two = pair()
        two.take(one.sealed(KeepAlive(), 0) + one.sealed(KeepAliveReply(), 0))
        one.take(two.out())
        assert not one.session.outbox
        assert not two.session.outbox


class TestGoodbye:
    def test_both_sides_finish_calls_in_flight_before_they_are_drained(self) -> None:
        one, two = pair()
        box = ask(one)
        exchange(one, two)
        two.session.send_go_away("stopping")
        exchange(one, two)
        assert one.session.is_leaving
        assert not one.session.is_drained
        assert not two.session.is_drained
        two.calls[0].reply(Answer("x"))
        exchange(one, two)
        assert box.result == Answer("x")
        assert one.session.is_drained
        assert two.session.is_drained

    def test_go_away_is_sent_after_the_requests_before_it(self) -> None:
        one, two = pair()
        ask(one)
        one.session.send(Note("low"))
        one.session.send_go_away("")
        two.take(one.out())
        assert [type(call.message) for call in two.calls] == [Question, Note]

    def test_repeated_or_unsolicited_go_aways_do_no_harm(self) -> None:
        one, two = pair()
        two.take(one.sealed(GoAway("a"), 0) + one.sealed(GoAway("b"), 0))
        assert two.session.is_leaving
        two.take(one.sealed(Question("still"), 1))
        assert two.calls[0].message.text == "still"
