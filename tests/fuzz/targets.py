"""Every decoder that faces the network, as functions from bytes to nothing.

A target raises only if something is wrong: an exception that is not a refusal, or an oracle
that does not hold (two ways of reading the same bytes differ, a forgery is accepted, something
is left behind). `seeds` gives each fuzzer valid input to start from.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from enum import Enum
from http import HTTPStatus
from random import Random
from types import UnionType
from typing import Any, Union, get_args, get_origin
from unittest.mock import patch

import msgspec

import hyperscale
from hyperscale._native import (
    CheckReport,
    MetricReport,
    Recorder,
    Report,
    ReportMerge,
    replay_http2,
    replay_websocket,
)
from hyperscale.clients.auth import Challenge, SignedRequest
from hyperscale.membership.core import Membership
from hyperscale.membership.events import DatagramReceived, PushPullCompleted, PushPullRequested
from hyperscale.membership.local_node import LocalIdentity
from hyperscale.membership.messages import PushPull, PushPullReply
from hyperscale.membership.settings import MembershipConfig
from hyperscale.plan import StepKind, StepPlan, WorkflowPlan
from hyperscale.sansio.core import Tick
from hyperscale.stats.workflow import WorkflowStats
from hyperscale.telemetry.http import Response, plain, respond
from hyperscale.testing import Digest
from hyperscale.testing.streams import Event
from hyperscale.wire.admission import Admission, AdmissionWatermarks
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.certificate_identity import identity_from_uris
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.errors import PeerProtocolError, QueueFullError, RefusalReason
from hyperscale.wire.frames import Frame, WireFrameDecoder, encode_head
from hyperscale.wire.handshake import PROTOCOL, Handshake, HandshakeResult, handshake_decoder
from hyperscale.wire.messages import (
    Chunk,
    Introduction,
    KeepAlive,
    KeepAliveReply,
)
from hyperscale.wire.registry import REGISTRY, UNKNOWN_KIND_BYTES_MAX
from hyperscale.wire.roles import Role
from hyperscale.wire.sealing import (
    DATAGRAM_BYTES_MAX,
    DatagramSealer,
    FrameOpener,
    FrameSealer,
    SessionKeys,
)
from hyperscale.wire.security import SecurityMode
from hyperscale.wire.session import Session
from hyperscale.wire.streams import StreamBuffer

Target = Callable[[bytes], None]

SECRETS = Secrets("a secret for fuzzing", "and the one before it")
LOCAL = Introduction(
    cluster="acme",
    environment="test",
    role=Role.MANAGER,
    node_id="local",
    incarnation=5,
    version="0",
    capabilities=["a"],
)
REMOTE = msgspec.structs.replace(LOCAL, node_id="remote")

for _found in pkgutil.walk_packages(hyperscale.__path__, "hyperscale."):
    if _found.name.rpartition(".")[2] == "messages":
        importlib.import_module(_found.name)
KINDS = sorted(kind for kind in REGISTRY.by_kind if kind < 50_000)
MEMBERSHIP_KINDS = [kind for kind in KINDS if 100 <= kind < 200]


class Broken(AssertionError):
    """An oracle did not hold."""


def check(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


class Reader:
    """Takes choices off the front of the fuzzer's bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, below: int) -> int:
        size = 1 if below <= 256 else 2
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "big") % below if taken else 0

    def piece(self) -> bytes:
        return self.take(self.number(65_536))

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def rest(self) -> bytes:
        return self._data[self._at :]

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)


# -- frames ---------------------------------------------------------------------------------


def frames(data: bytes) -> None:
    """However a stream is cut, it yields the same frames and the same breach."""
    reader = Reader(data)
    cuts = [reader.number(40) + 1 for _ in range(reader.number(12))]
    stream = reader.rest()
    pieces, rest = [], stream
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    whole = _collect([stream])
    check(whole == _collect([*pieces, rest]), "cut in pieces it reads differently")
    single = [stream[i : i + 1] for i in range(min(len(stream), 300))]
    check(whole == _collect([*single, stream[300:]]), "byte by byte it reads differently")


def _collect(pieces: list[bytes]) -> tuple[list[tuple[int, int, int, bytes]], RefusalReason | None]:
    decoder = WireFrameDecoder({1: 100, 2: 5000}, limit_other=300)
    found = []
    for piece in pieces:
        try:
            for frame in decoder.feed(piece):
                found.append((frame.kind, frame.request_id, frame.deadline_ms, frame.body))
                check(len(frame.body) <= 5000, "over every limit")
        except PeerProtocolError as error:
            return found, error.reason
        check(decoder.held_bytes <= 5000 + 16, "more is held than one frame")
    return found, None


# -- handshake ------------------------------------------------------------------------------


def _side(*, is_dialer: bool, secrets: Secrets = SECRETS) -> Handshake:
    local = LOCAL if is_dialer else REMOTE
    return Handshake(local, SecurityMode.SECRET, secrets, is_dialer=is_dialer)


def handshake(data: bytes) -> None:
    """Nobody without the secret gets through, whatever is said and whenever."""
    reader = Reader(data)
    is_dialer, is_late = reader.number(2) == 1, reader.number(2) == 1
    machine, other = _side(is_dialer=is_dialer), _side(is_dialer=not is_dialer)
    try:
        if is_late:  # past an honest hello
            said = machine.begin()
            hello = other.begin() or other.receive(_one(said))
            machine.receive(_one(hello))
        for frame in handshake_decoder().feed(reader.rest()):
            machine.receive(frame)
    except PeerProtocolError as error:
        machine.refusal(error)
    check(machine.result is None, "an agreement without the secret")


def introduction(data: bytes) -> None:
    """What a peer with the secret may say about itself: agreed within bounds, or refused."""
    machine = Handshake(LOCAL, SecurityMode.NONE, None, is_dialer=False)
    stranger = Handshake(REMOTE, SecurityMode.NONE, None, is_dialer=True)
    machine.receive(_one(stranger.begin()))
    try:
        machine.receive(Frame(2, 0, 0, 0, bytes(16), data))
    except PeerProtocolError as error:
        machine.refusal(error)
        return
    agreement = machine.result
    check(agreement is not None, "neither agreed nor refused")
    if agreement is not None:
        check(agreement.peer.cluster == "acme", "another cluster")
        check(len(agreement.peer.node_id) <= 64, "a long node id")


def _one(data: bytes) -> Frame:
    return next(iter(handshake_decoder().feed(data)))


# -- sessions -------------------------------------------------------------------------------


def session(data: bytes) -> None:
    """A peer with the right key that says anything at all: nothing is left behind."""
    reader = Reader(data)
    is_dialer = reader.number(2) == 1
    role = (Role.MANAGER, Role.WORKER, Role.CLIENT)[reader.number(3)]
    keys = SessionKeys(bytes(32), b"a" * 32)
    own, theirs = keys if is_dialer else (keys.from_acceptor, keys.from_dialer)
    sealer = FrameSealer(theirs)
    admission = Admission(AdmissionWatermarks(total=20, normal=6, low=4), Random(1))
    calls: list[InboundCall] = []
    machine = Session(
        HandshakeResult(
            peer=msgspec.structs.replace(REMOTE, role=role),
            protocol=PROTOCOL,
            capabilities=frozenset(),
            sealer=FrameSealer(own),
            opener=FrameOpener(theirs),
        ),
        is_dialer=is_dialer,
        admission=admission,
        on_call=calls.append,
        on_refused=lambda _: None,
        now_s=0.0,
    )
    inflow = StreamBuffer(lambda: None)
    machine.request(KeepAlive(), KeepAliveReply, None, deadline_s=3.0, buffer=None)
    machine.request(KeepAlive(), Chunk, None, deadline_s=0.0, buffer=inflow)
    now_s = 0.0
    decoder = WireFrameDecoder(REGISTRY.limits, limit_other=UNKNOWN_KIND_BYTES_MAX, overhead=16)
    try:
        while reader.has_more:
            now_s += reader.number(4)
            action = reader.number(8)
            if action == 0:
                machine.wake_at_s()
                if not machine.tick(now_s=now_s):
                    break
            elif action == 1:
                machine.outgoing(now_s=now_s, bytes_max=2000)
            elif action == 2 and calls:
                calls.pop().reply(KeepAliveReply())
            elif action == 3 and inflow.items:
                inflow.take()
            else:
                kind = (*KINDS, 777)[reader.number(len(KINDS) + 1)]
                request_id, body = reader.number(8), reader.piece()
                head = encode_head(kind, request_id, reader.number(100), 0, len(body) + 16)
                for frame in decoder.feed(head + sealer.seal(head, body)):
                    machine.take(frame, now_s=now_s)
    except (PeerProtocolError, QueueFullError):
        pass  # the connection ends, which is an answer
    machine.close("done")
    check(admission.in_flight == [0, 0, 0, 0], f"in flight after the end: {admission.in_flight}")
    check(not machine.inbound, "calls after the end")
    check(not machine.pending.by_id, "pending after the end")


# -- messages -------------------------------------------------------------------------------


def messages(data: bytes) -> None:
    """Every registered message: what decodes encodes again to the same message."""
    try:
        message = REGISTRY.unpack(data)
    except PeerProtocolError:
        return
    again = REGISTRY.by_type[type(message)].decode(msgspec.msgpack.encode(message))
    # NaN is not equal to itself, so equality is asked of the bytes.
    same = msgspec.msgpack.encode(again) == msgspec.msgpack.encode(message)
    check(same, f"{message} is not {again}")


# -- datagrams ------------------------------------------------------------------------------

# The same datagrams in every process, so that findings can be replayed.
with patch("hyperscale.wire.sealing.os.urandom", lambda size: b"fuzz"[:size]):
    _SENDER = DatagramSealer(SECRETS, "sender", 7, cluster="acme", environment="test")
_GENUINE = [_SENDER.seal(bytes([n]) * n) for n in range(20)]


def datagrams(data: bytes) -> None:
    """Altered or invented datagrams do not open; genuine ones open once."""
    reader = Reader(data)
    receiver = DatagramSealer(SECRETS, "receiver", 9, cluster="acme", environment="test")
    heard: set[bytes] = set()
    while reader.has_more:
        choice = reader.number(3)
        datagram = _GENUINE[reader.number(len(_GENUINE))]
        if choice == 1:
            altered = bytearray(datagram)
            for _ in range(reader.number(5) + 1):
                altered[reader.number(len(altered))] = reader.number(256)
            datagram = bytes(altered)
        elif choice == 2:
            datagram = reader.piece()[: DATAGRAM_BYTES_MAX + 5]
        try:
            opened = receiver.open(datagram)
        except PeerProtocolError as error:
            if error.reason is RefusalReason.REPLAYED:
                check(datagram in heard or datagram not in _GENUINE, "refused the first time")
            continue
        check(datagram in _GENUINE, "a forgery was opened")
        check(datagram not in heard, "a replay was opened")
        check(opened.node_id == "sender", "of somebody else")
        heard.add(datagram)


def open_datagrams(data: bytes) -> None:
    """Without a secret anything well formed may be heard; nothing may go wrong."""
    receiver = DatagramSealer(None, "receiver", 9, cluster="acme", environment="test")
    reader = Reader(data)
    while reader.has_more:
        try:
            opened = receiver.open(reader.piece())
            REGISTRY.unpack(opened.plain)
        except PeerProtocolError:
            continue


# -- the rest -------------------------------------------------------------------------------


def certificates(data: bytes) -> None:
    """The names in a certificate someone else signed for."""
    try:
        vouched = identity_from_uris(data.decode("latin-1").split("\n"))
    except PeerProtocolError:
        return
    check(vouched.roles and vouched.cluster and vouched.environment, "vouched for nothing")


def membership(data: bytes) -> None:
    """A member with the secret that says anything at all: the core stands it."""
    reader = Reader(data)
    identity = LocalIdentity(node="local", incarnation=5, role=Role.MANAGER, address="127.0.0.1:1")
    core = Membership(identity, MembershipConfig(), rng=Random(1), now_s=0.0)
    now_s = 0.0
    while reader.has_more:
        now_s += reader.number(64) / 8
        sender, incarnation = f"n{reader.number(4)}", reader.number(8)
        kind = MEMBERSHIP_KINDS[reader.number(len(MEMBERSHIP_KINDS))]
        try:
            message = REGISTRY.unpack(kind.to_bytes(2, "big") + reader.piece())
        except PeerProtocolError:
            core.handle(Tick(), now_s=now_s)
            continue
        if isinstance(message, PushPull):
            core.handle(PushPullRequested(sender, incarnation, message, 0), now_s=now_s)
        elif isinstance(message, PushPullReply):
            core.handle(PushPullCompleted(sender, incarnation, message), now_s=now_s)
        else:
            core.handle(DatagramReceived("127.0.0.1:2", sender, incarnation, message), now_s=now_s)
    check((core.wake_at_s() or -1.0) >= 0, "no time to wake at")


def _nothing() -> Response:
    return plain(HTTPStatus.OK, "fine")


_ROUTES = {"/metrics": _nothing, "/healthz": _nothing}


def http(data: bytes) -> None:
    """The head of a request to a node's HTTP endpoint."""
    response, _ = respond(data, _ROUTES)
    check(100 <= response.status < 600, "no status")


_PLAN = WorkflowPlan(
    name="Load",
    vus=1,
    duration_s=60.0,
    timeout_s=30.0,
    steps=(StepPlan(name="hit", kind=StepKind.TEST),),
)


def reports(data: bytes) -> None:
    """A worker that sends any statistics at all: each report is merged or refused."""
    reader = Reader(data)
    stats = WorkflowStats(_PLAN)
    merge = ReportMerge.of_part("Load", recent_s=20, histograms_max=10)
    while reader.has_more:
        piece = reader.piece()
        try:
            report = Report.decode(piece)
        except ValueError:
            continue
        again = report.encode()
        check(Report.decode(again).encode() == again, "encoded again it reads differently")
        if report.workflow == "Load":
            merge.apply(report)
        try:
            stats.apply(piece, attempt=1, parts=reader.number(8) + 1)
        except ValueError:
            continue
        latest = stats.latest(report.slot, 1)
        for kept in (stats.checkpoint(report.slot, 1), stats.last_report(report.slot, 1)):
            check(latest and Report.decode(kept).sent == latest.sent, "another report is kept")
    for merged in (
        merge.merged(slot=0, sequence=1, histograms=True, phases=True, seconds=15),
        merge.whole(slot=0, sequence=2, points_max=30),
    ):
        check(merged is None or Report.decode(merged.encode()), "a merged report")
    check(len(stats.series("hit")) <= 700, "a series without bounds")
    stats.headline_series(stats.finished_s)
    check(stats.latency("hit").count >= 0, "no histogram")


def http2(data: bytes) -> None:
    """However the bytes of an HTTP/2 server are cut, they mean the same, and memory is bounded."""
    reader = Reader(data)
    requests, pieces = reader.number(5), _cut(reader)
    whole, failure, waiting = replay_http2(requests, [b"".join(pieces)])
    cut, failure_of_cut, _ = replay_http2(requests, pieces)
    check((whole, failure) == (cut, failure_of_cut), "cut in pieces it reads differently")
    check(all(len(head) + len(trailers) <= 1 << 18 for _, head, _, trailers, _ in whole), "heads")
    check(waiting <= 64 * 1024 + 20 * len(data), "more is answered than was asked")


def websocket(data: bytes) -> None:
    """However the frames of a WebSocket server are cut, they mean the same; limits hold."""
    reader = Reader(data)
    is_deflating, pieces = bool(reader.number(2)), _cut(reader)
    whole = replay_websocket(5000, is_deflating, [b"".join(pieces)])
    check(whole == replay_websocket(5000, is_deflating, pieces), "cut it reads differently")
    for kind, content in whole[0]:
        check(len(content) <= (5000 if kind in ("text", "bytes") else 125), "over the limit")
        check(kind != "text" or content.decode() is not None, "text that is no UTF-8")


def _cut(reader: Reader) -> list[bytes]:
    """Take the rest of the input, in pieces."""
    cuts = [reader.number(40) + 1 for _ in range(reader.number(12))]
    pieces = [reader.take(cut) for cut in cuts]
    return [*pieces, reader.rest()]


def events(data: bytes) -> None:
    """Server-sent events, and the challenge of a digest, as a server may write them."""
    event = Event.parse(data)
    check("\r" not in event.event and "\n" not in event.id, "a field has a line break")
    challenge = Challenge.read([data.decode("latin-1"), "Digest " + data.decode("latin-1")])
    if challenge is not None:
        request = SignedRequest("GET", "http://host/path", b"")
        answer = challenge.answer(Digest("user", "password"), request)
        check(answer.startswith("Digest "), "no answer")


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        frames,
        handshake,
        introduction,
        session,
        messages,
        datagrams,
        open_datagrams,
        membership,
        certificates,
        http,
        reports,
        events,
        http2,
        websocket,
    )
}


def example(wanted: Any) -> Any:
    """Some valid value of a message type or of one of its fields' types."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        required = [field for field in msgspec.structs.fields(wanted) if field.required]
        return wanted(**{field.name: example(field.type) for field in required})
    origin = get_origin(wanted) or wanted
    if origin in (list, tuple):
        return origin([example(get_args(wanted)[0])])
    if origin is dict:
        return {example(key): example(value) for key, value in [get_args(wanted)]}
    if origin in (Union, UnionType):
        return example(get_args(wanted)[0])
    if isinstance(origin, type) and issubclass(origin, Enum):
        return next(iter(origin))
    simple: dict[Any, Any] = {str: "n1", bytes: b"b", int: 1, float: 1.0, bool: True}
    return simple[origin]


EXAMPLES = {kind: REGISTRY.encode(example(REGISTRY.by_kind[kind].type)) for kind in KINDS}


def _report(recorder: Recorder, sequence: int, *, histograms: bool) -> bytes:
    report = recorder.report(
        ["hit"],
        workflow="Load",
        slot=0,
        sequence=sequence,
        elapsed_s=float(sequence),
        histograms=histograms,
        checks=[CheckReport(name="good", passed=1, failed=1, first_failure="bad")],
        metrics=[MetricReport(name="size", kind="count", count=1, sum=2.0)],
    )
    return report.encode()


def _sized(body: bytes) -> bytes:
    return len(body).to_bytes(2, "big") + body


def seeds(name: str) -> Iterator[bytes]:
    """Valid input, for fuzzers to bend."""
    match name:
        case "http2":
            settings, headers = "000000 04 00 00000000", "000001 01 04 00000001 88"
            data, ping = "000003 00 01 00000001 616263", "000008 06 00 00000000 0102030405060708"
            goaway = "000008 07 00 00000000 00000001 00000000"
            for frames_of_server in (
                (settings, headers, data),
                (settings, ping, headers, "000004 08 00 00000001 00000010", data, goaway),
                (settings, "000001 01 00 00000003 88", "000001 09 04 00000003 88"),
                (settings, "000004 03 00 00000001 00000008", "00000a 01 25 00000001 880f0d0130"),
            ):
                yield b"\x04\x02\x03\x08" + bytes.fromhex("".join(frames_of_server))
        case "websocket":
            yield b"\0\0\x81\x05hello\x82\x03abc\x89\x01p\x8a\0"
            yield b"\0\x02\x01\x02\x01\x03hel\x80\x02lo\x88\x05\x03\xe8bye"
            yield b"\x01\0\xc1\x07\xf2\x48\xcd\xc9\xc9\x07\x00\x82\x7e\x01\0" + bytes(256)
        case "events":
            yield b"id: 7\nevent: add\ndata: one\ndata: two\nretry: 50\n"
            yield b'Digest realm="r", nonce="n", qop="auth, auth-int", algorithm=SHA-256'
        case "frames":
            for kind, size in ((1, 0), (1, 100), (2, 300), (9, 200)):
                yield b"\x02\x05\x09" + encode_head(kind, 1, 0, 1, size) + bytes(size)
        case "handshake":
            yield b"\0\0" + _side(is_dialer=True).begin()
            for kind in (1, 2, 3):
                body = EXAMPLES[kind]
                yield b"\x01\x01" + encode_head(kind, 0, 0, 0, len(body)) + body
        case "introduction":
            yield REGISTRY.encode(LOCAL)
            yield REGISTRY.encode(REMOTE)
        case "session":
            for index, kind in enumerate(KINDS):
                for request_id in (0, 1, 2, 4):
                    step = bytes((1, 7, index, request_id)) + _sized(EXAMPLES[kind]) + b"\x05"
                    yield b"\0\0" + step + b"\x01\x02" + step
        case "messages":
            for kind in KINDS:
                yield kind.to_bytes(2, "big") + EXAMPLES[kind]
        case "datagrams":
            yield bytes(range(40))
            for genuine in _GENUINE[:5]:
                yield b"\x02\0" + _sized(genuine)
        case "open_datagrams":
            speaker = DatagramSealer(None, "s", 1, cluster="acme", environment="test")
            for kind in KINDS:
                yield _sized(speaker.seal(kind.to_bytes(2, "big") + EXAMPLES[kind])[:1400])
        case "membership":
            for index, kind in enumerate(MEMBERSHIP_KINDS):
                step = bytes((1, index % 4, 7, index)) + _sized(EXAMPLES[kind])
                yield step
                yield step * 3
        case "certificates":
            yield b"hyperscale://role/worker\nhyperscale://cluster/c\nhyperscale://env/e"
        case "http":
            yield b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
            yield b"POST /healthz?x=1 HTTP/1.0\r\n\r\n"
        case "reports":
            recorder = Recorder(1)
            for sequence, histograms in ((1, False), (2, True), (3, True)):
                recorder.record(0, sequence < 3, 5_000_000, 200, None)
                yield _sized(_report(recorder, sequence, histograms=histograms)) * 2
