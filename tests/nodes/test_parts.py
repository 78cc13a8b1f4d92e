"""The small parts of a node: events, numbers, the endpoint, the datagram socket, measuring."""

import asyncio
import io
import json
import logging
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.config.loading import node_config
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError, InvariantError
from hyperscale.health.overload import OverloadDetector, OverloadLevel
from hyperscale.membership.messages import Gossip, Sender
from hyperscale.nodes.datagrams import Datagrams, bind_datagrams
from hyperscale.nodes.http import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    HttpEndpoint,
    Response,
    bind_http,
    plain,
    respond,
)
from hyperscale.nodes.identity import advertised_address, http_address_of, node_id_of
from hyperscale.nodes.load_monitor import (
    LoadMonitor,
    cgroup_memory_share,
    machine_memory_share,
    memory_share,
    resident_bytes,
)
from hyperscale.nodes.logs import LINES_WAITING_MAX, JsonLines, LineWriter, Logging
from hyperscale.nodes.metrics import DurationHistogram, Family, counter, gauge, render
from hyperscale.wire.cluster_secret import Secrets, make_secret
from hyperscale.wire.sealing import DatagramSealer
from tests.lab.waiting import until_async

# Events.


def line_of(message: object, *args: object, **extra: object) -> dict[str, Any]:
    record = logging.LogRecord("hyperscale.x", logging.INFO, "f", 1, message, args, None)
    record.__dict__.update(extra)
    formatted = JsonLines({"node": "m0"}).format(record)
    assert "\n" not in formatted
    line: dict[str, Any] = json.loads(formatted)
    return line


def test_an_event_is_one_line_with_its_fields() -> None:
    line = line_of("member.died", member="w1", evidence="refused")
    assert line["event"] == "member.died"
    assert (line["node"], line["member"], line["evidence"]) == ("m0", "w1", "refused")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_the_text_after_the_name_of_an_event_is_its_detail() -> None:
    assert line_of("accept.failed: %s", "no room")["detail"] == "no room"
    assert line_of("peer.refused: %s", "x", detail="the rest")["detail"] == "the rest"


def test_records_of_libraries_have_an_event_name_of_their_own() -> None:
    line = line_of("Task %s was destroyed\nbut it is pending", "t")
    assert line["event"] == "hyperscale.reported"
    assert line["detail"] == "Task t was destroyed\nbut it is pending"


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}_x", fullmatch=True), st.text() | st.binary()))
def test_a_field_of_any_type_is_written(fields: dict[str, object]) -> None:
    line_of("member.moved", **fields)


def test_long_fields_are_cut() -> None:
    assert len(line_of("a.b", member="x" * 100_000)["member"]) < 5_000


def test_a_reader_that_stops_reading_does_not_block_the_node() -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    with LineWriter(stream, {}) as writer:
        for _ in range(LINES_WAITING_MAX + 5_000):
            writer.emit(logging.LogRecord("hyperscale", 20, "f", 1, "a.b", (), None))
        assert writer.dropped > 0
        os.close(reading)  # what is still written goes nowhere, without an error
    with suppress(BrokenPipeError):
        stream.close()


def test_loggers_are_restored_when_a_node_has_ended() -> None:
    logger = logging.getLogger("hyperscale")
    before = (logger.level, logger.propagate, list(logger.handlers))
    stream = io.StringIO()
    with Logging(stream, "info", {"node": "m0"}):
        logging.getLogger("hyperscale.nodes").info("node.started", extra={"address": "a"})
        logging.getLogger("hyperscale.nodes").debug("node.guessed")
    assert (logger.level, logger.propagate, logger.handlers) == before
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["node.started"]


# Numbers.


def text_of(*families: Family) -> str:
    return render([lambda: families]).decode()


def test_counters_and_gauges_are_rendered_with_help_and_type() -> None:
    text = text_of(
        counter("hits_total", "Hits", ({"way": "in"}, 3), ({"way": "out"}, 4)),
        gauge("share", "A share", ({}, 0.25)),
    )
    assert text == (
        "# HELP hits_total Hits\n# TYPE hits_total counter\n"
        'hits_total{way="in"} 3\nhits_total{way="out"} 4\n'
        "# HELP share A share\n# TYPE share gauge\nshare 0.25\n"
    )


def test_histogram_buckets_are_cumulative() -> None:
    histogram = DurationHistogram("lag_seconds", "Lag", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    lines = text_of(histogram.family()).splitlines()
    assert 'lag_seconds_bucket{le="0.1"} 2' in lines
    assert 'lag_seconds_bucket{le="1"} 3' in lines
    assert 'lag_seconds_bucket{le="+Inf"} 4' in lines
    assert "lag_seconds_count 4" in lines


@given(st.text())
def test_labels_are_escaped(value: str) -> None:
    text = text_of(gauge("g", "G", ({"l": value}, 1)))
    assert text.count("\n") == 3
    sample = text.split("\n")[2]
    assert re.fullmatch(r'g\{l="(?:[^"\\\n]|\\["\\n])*"\} 1', sample, re.DOTALL)


# The endpoint.


@asynccontextmanager
async def endpoint() -> AsyncIterator[tuple[str, int]]:
    bound = bind_http("127.0.0.1", 0)
    with bound:
        async with HttpEndpoint(bound, {"/healthz": lambda: plain(HTTPStatus.OK, "well")}):
            yield bound.getsockname()[:2]


async def exchange(address: tuple[str, int], request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_bytes", "status", "body"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200, b"well\n"),
        (b"GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", 200, b"well\n"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", 200, b""),
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404, b"not found; this node serves /healthz\n"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405, b"only GET and HEAD are served\n"),
        (b"\x16\x03\x01\n\n", 400, b"this is not an HTTP/1 request\n"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX, 431, b"the request is too large\n"),
    ],
)
def test_requests_are_answered_or_refused(request_bytes: bytes, status: int, body: bytes) -> None:
    async def ask() -> bytes:
        async with endpoint() as address:
            return await exchange(address, request_bytes)

    head, _, got = asyncio.run(ask()).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Connection: close" in head
    assert got == body


def test_a_request_may_arrive_byte_by_byte() -> None:
    async def ask() -> bytes:
        async with endpoint() as address:
            reader, writer = await asyncio.open_connection(*address)
            for byte in b"GET /healthz HTTP/1.1\r\n\r\n":
                writer.write(bytes([byte]))
                await writer.drain()
            answer = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            return answer

    assert asyncio.run(ask()).endswith(b"well\n")


def test_a_route_that_fails_is_answered_with_500_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Response:
        raise ZeroDivisionError

    response, _ = respond(b"GET /metrics HTTP/1.1\r\n\r\n", {"/metrics": fail})
    assert response.status == 500
    assert [record.message for record in caplog.records] == ["request.failed"]


def test_idle_connections_are_bounded() -> None:
    async def crowd() -> tuple[bytes, bytes]:
        async with endpoint() as address:
            idle = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS_MAX)]
            refused = await exchange(address, b"GET /healthz HTTP/1.1\r\n\r\n")
            for _, writer in idle:
                writer.close()
                await writer.wait_closed()
            served = b""
            async with asyncio.timeout(30):
                while not served:
                    served = await exchange(address, b"GET /healthz HTTP/1.1\r\n\r\n")
            return refused, served

    refused, served = asyncio.run(crowd())
    assert refused == b""
    assert served.endswith(b"well\n")


def test_an_http_port_in_use_is_an_input_error() -> None:
    with bind_http("127.0.0.1", 0) as taken, pytest.raises(InputError, match="--http-port"):
        bind_http("127.0.0.1", taken.getsockname()[1])


# Datagrams.

HELLO = Gossip(Sender("127.0.0.1:1"))


class Post:
    """Two nodes' datagram sockets and what the second has received."""

    def __init__(self, secrets: Secrets | None = None, other: Secrets | None = None) -> None:
        self.sockets = [bind_datagrams("127.0.0.1", 0) for _ in range(2)]
        given = (secrets, other or secrets)
        self.ends = [
            Datagrams(bound, DatagramSealer(each, name, 7))
            for bound, each, name in zip(self.sockets, given, "ab", strict=True)
        ]
        self.address = f"127.0.0.1:{self.sockets[1].getsockname()[1]}"
        self.received: list[tuple[str, str, int, Any]] = []

    def __enter__(self) -> "Post":
        self.ends[1].listen(lambda *item: self.received.append(item))
        return self

    def __exit__(self, *_: object) -> None:
        for end in self.ends:
            end.__exit__(None, None, None)


@pytest.mark.parametrize("secrets", [None, Secrets(make_secret())])
def test_a_datagram_arrives_with_its_sender(secrets: Secrets | None) -> None:
    async def send() -> tuple[str, str, int, Any]:
        with Post(secrets) as post:
            post.ends[0].send(post.address, HELLO)
            await until_async(lambda: post.received)
            return post.received[0]

    source, node, incarnation, message = asyncio.run(send())
    assert (node, incarnation, message) == ("a", 7, HELLO)
    assert source.startswith("127.0.0.1:")


def test_datagrams_that_cannot_be_opened_are_counted_and_dropped() -> None:
    async def send() -> tuple[list[Any], int, int]:
        with Post(Secrets(make_secret()), Secrets(make_secret())) as post:
            post.ends[0].send(post.address, HELLO)
            for junk in (b"", b"\x01", b"x" * 1400, os.urandom(9000)):
                post.sockets[0].sendto(junk, post.sockets[1].getsockname())
            await until_async(lambda: post.ends[1].counts["received"] == 5)
            return post.received, sum(post.ends[1].refusals.counts.values()), 5

    received, refused, sent = asyncio.run(send())
    assert received == []
    assert refused == sent


def test_drain_reads_all_waiting_datagrams() -> None:
    async def drain() -> int:
        with Post() as post:
            for _ in range(300):
                post.ends[0].send(post.address, HELLO)
            post.ends[1].drain()  # without a turn of the loop in between
            return len(post.received)

    assert asyncio.run(drain()) == 300


@pytest.mark.parametrize("address", ["nowhere.invalid:1", "[::1]:1", "127.0.0.1:x", "x", ""])
def test_sending_to_an_impossible_address_is_counted_and_raises_nothing(address: str) -> None:
    async def send() -> int:
        with Post() as post:
            post.ends[0].send(address, HELLO)
            return post.ends[0].counts["failed"]

    assert asyncio.run(send()) == 1


def test_a_renewed_sealer_uses_a_new_key_and_keeps_the_windows_of_others() -> None:
    secrets = Secrets(make_secret())
    one, other = (DatagramSealer(secrets, name, 7) for name in "ab")
    early = one.seal(b"early")
    assert other.open(early).plain == b"early"
    other.renew(8)
    one.renew(9)
    assert other.open(one.seal(b"late")) == ("a", 9, b"late")
    assert one.open(other.seal(b"hi")) == ("b", 8, b"hi")
    with pytest.raises(Exception, match="known is 9"):
        other.open(early)  # the windows have survived
    with pytest.raises(InvariantError):
        one.renew(9)


def test_a_udp_port_in_use_is_an_input_error() -> None:
    with bind_datagrams("127.0.0.1", 0) as taken, pytest.raises(InputError, match="--port"):
        bind_datagrams("127.0.0.1", taken.getsockname()[1])


def test_a_dual_stack_socket_exchanges_datagrams_with_an_ipv4_socket() -> None:
    async def send() -> tuple[str, Any]:
        both, old = bind_datagrams("::", 0), bind_datagrams("127.0.0.1", 0)
        heard: list[tuple[str, str, int, Any]] = []
        with (
            Datagrams(both, DatagramSealer(None, "both", 1)) as here,
            Datagrams(old, DatagramSealer(None, "old", 1)) as there,
        ):
            here.listen(lambda *item: heard.append(item))
            there.listen(lambda *item: heard.append(item))
            there.send(f"127.0.0.1:{both.getsockname()[1]}", HELLO)
            async with asyncio.timeout(30):
                while len(heard) < 1:
                    await asyncio.sleep(0.001)
                here.send(heard[0][0], HELLO)
                while len(heard) < 2:
                    await asyncio.sleep(0.001)
            return heard[0][0], heard[1][3]

    source, message = asyncio.run(send())
    assert source.startswith("127.0.0.1:")
    assert message == HELLO


# Who it is.


def identity_config(**listen: Any) -> NodeConfig:
    return node_config("manager", {"listen": listen})


@pytest.mark.parametrize(
    ("advertise", "bound", "expected"),
    [
        ("", ("127.0.0.1", 5), "127.0.0.1:5"),
        ("", ("::1", 5), "[::1]:5"),
        ("10.1.2.3", ("0.0.0.0", 5), "10.1.2.3:5"),
        ("10.1.2.3:77", ("0.0.0.0", 5), "10.1.2.3:77"),
        ("localhost:77", ("127.0.0.1", 5), "127.0.0.1:77"),
    ],
)
def test_the_advertised_address_follows_the_configuration(
    advertise: str, bound: tuple[str, int], expected: str
) -> None:
    found = advertised_address(identity_config(advertise=advertise), *bound)
    assert found in (expected, expected.replace("127.0.0.1", "[::1]"))


def test_a_wildcard_listener_advertises_an_outward_address() -> None:
    try:
        found = advertised_address(identity_config(), "0.0.0.0", 5)
    except InputError:
        pytest.skip("this machine has no network")
    assert not found.startswith("0.0.0.0")
    assert http_address_of("0.0.0.0", 6, found) == found.replace(":5", ":6")


def test_an_advertised_name_that_does_not_resolve_is_an_input_error() -> None:
    with pytest.raises(InputError, match="does not resolve"):
        advertised_address(identity_config(advertise="nothing.invalid"), "0.0.0.0", 5)


def test_a_node_without_a_name_gets_a_random_one() -> None:
    names = {node_id_of(identity_config()) for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("manager-") for name in names)


# Measuring.


def test_memory_is_measured_as_a_share_and_in_bytes() -> None:
    assert 0.0 < memory_share() <= 1.0
    assert resident_bytes() > 1024 * 1024


@pytest.mark.parametrize(
    ("limit", "current", "idle", "share"),
    [("max", 5, 0, None), ("100", 80, 0, 0.8), ("100", 80, 30, 0.5), ("0", 1, 0, None)],
)
def test_memory_is_a_share_of_the_limit_of_the_control_group(
    tmp_path: Path, limit: str, current: int, idle: int, share: float | None
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{current}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {idle}\n")
    assert cgroup_memory_share(tmp_path) == share


def test_missing_memory_files_mean_an_unknown_share(tmp_path: Path) -> None:
    assert cgroup_memory_share(tmp_path) is None
    assert machine_memory_share(tmp_path / "meminfo") is None


def test_a_full_queue_raises_the_overload_level() -> None:
    levels: list[OverloadLevel] = []
    monitor = LoadMonitor(
        OverloadDetector(counts_cpu=False),
        in_flight_share=lambda: 0.0,
        queue_share=lambda: 0.99,
        on_level=levels.append,
    )

    async def measure() -> None:
        task = asyncio.create_task(monitor.run())
        await until_async(lambda: levels)
        task.cancel()

    asyncio.run(measure())
    assert levels[0] is OverloadLevel.OVERLOADED
    assert "hyperscale_overload_level 3" in render([monitor.collect]).decode()


def test_the_latency_of_handlers_is_recorded() -> None:
    recorded: list[float] = []

    class Recording(OverloadDetector):
        def record_latency(self, latency_s: float, *, now_s: float) -> None:
            recorded.append(latency_s)

    monitor = LoadMonitor(
        Recording(counts_cpu=False),
        in_flight_share=lambda: 0.0,
        queue_share=lambda: 0.0,
        on_level=lambda _: None,
    )
    assert monitor.timed(lambda a, b: a + b)(1, 2) == 3
    assert len(recorded) == 1
