"""The counts are the truth, so they must be exact."""

import base64
import http.client
import json
import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from hyperscale._native import Histogram, Target
from tests.conftest import RunningTarget
from tests.lab.waiting import until
from tests.target.wire import Wire, request

PATHS = {
    "/": "/",
    "/json": "/json",
    "/status/503": "/status/{code}",
    "/bytes/100?chunked": "/bytes/{n}",
    "/redirect/2": "/redirect/{n}",
    "/nowhere": "*",
}
METHODS = ["GET", "POST", "PUT", "DELETE"]


@pytest.mark.parametrize("threads", [1, 2])
def test_every_request_of_many_clients_is_counted_once(threads: int) -> None:
    server = Target(threads=threads)
    sent: Counter[tuple[str, str]] = Counter()
    lock = threading.Lock()

    def client(seed: int) -> None:
        mine: Counter[tuple[str, str]] = Counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for number in range(150):
            path = list(PATHS)[(seed + number) % len(PATHS)]
            method = METHODS[(seed * 7 + number) % len(METHODS)]
            connection.request(method, path, body=b"x" * (number % 3))
            connection.getresponse().read()
            mine[PATHS[path], method] += 1
        connection.close()
        with lock:
            sent.update(mine)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    try:
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        # The residence is taken after the response has left, so a client may be faster.
        until(lambda: json.loads(server.counts())["residence"]["count"] == 8 * 150)
        counts = json.loads(server.counts())
    finally:
        server.stop()
    seen = {(route, m): n for route, row in counts["routes"].items() for m, n in row.items()}
    assert seen == dict(sent)
    assert counts["total"] == sum(counts["seconds"].values()) == sent.total()
    assert counts["connections"]["total"] == 8
    assert counts["connections"]["peak"] <= 8
    assert counts["malformed"] == 0


def test_bytes_are_those_of_the_requests_and_responses(target: RunningTarget) -> None:
    bytes_in = bytes_out = 0
    with Wire(target.port) as wire:
        for path in ["/", "/bytes/200000", "/status/204", "/gzip"]:
            data = request("POST", path, b"some body")
            wire.send(data)
            wire.send(request("GET", "/counts"))
            status, headers, body = wire.response()
            wire.response()
            bytes_in += len(data)
            lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
            reason = {200: "OK", 204: "No Content"}[status]
            bytes_out += len(f"HTTP/1.1 {status} {reason}\r\n{''.join(lines)}\r\n") + len(body)
    counts = target.counts()
    assert (counts["bytes_in"], counts["bytes_out"]) == (bytes_in, bytes_out)


def test_looking_at_the_counts_is_not_counted(target: RunningTarget) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/counts")
        counts = json.loads(connection.getresponse().read())
    connection.close()
    assert (counts["total"], counts["bytes_in"], counts["bytes_out"]) == (0, 0, 0)
    assert counts["connections"] == {"current": 0, "peak": 0, "silent": 0, "total": 0}


def test_the_route_and_the_python_object_tell_the_same(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(request("GET", "/") + request("GET", "/counts"))
        wire.response()
        assert json.loads(wire.response()[2]) == target.counts()


def test_peak_connections_and_requests_in_flight_are_seen(target: RunningTarget) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(target.port)) for _ in range(50)]
        until(lambda: target.counts()["connections"]["silent"] == 50)
        for wire in wires[:40]:
            wire.send(request("GET", "/delay/60000"))
        until(lambda: target.counts()["in_flight"]["current"] == 40)
        connections = target.counts()["connections"]
        assert connections == {"current": 40, "peak": 40, "silent": 10, "total": 50}
    assert target.counts()["in_flight"]["peak"] == 40


def test_the_residence_histogram_is_in_the_common_format(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        for path in ["/", "/delay/20"]:
            wire.send(request("GET", path))
            wire.response()
    until(lambda: bool(target.counts()["residence"]["count"] == 2))
    residence = target.counts()["residence"]
    histogram = Histogram.decode(base64.b64decode(residence["histogram"]))
    assert histogram.count == 2
    assert histogram.max_ns == residence["max_ns"] >= 20_000_000
    assert histogram.min_ns == residence["min_ns"]


def test_a_reset_starts_anew(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(request("GET", "/") + request("POST", "/counts/reset"))
        assert [wire.response()[0], wire.response()[0]] == [200, 200]
        counts = target.counts()
        assert (counts["total"], counts["routes"], counts["seconds"]) == (0, {}, {})
        assert counts["connections"]["peak"] == 1
        wire.send(request("GET", "/json"))
        wire.response()
        assert target.counts()["routes"] == {"/json": {"GET": 1}}
        target.reset()
        assert target.counts()["total"] == 0


def test_a_reset_must_be_posted(target: RunningTarget) -> None:
    with Wire(target.port) as wire:
        wire.send(request("GET", "/") + request("GET", "/counts/reset"))
        wire.response()
        status, headers, _ = wire.response()
        assert (status, headers["allow"]) == (405, "POST")
    assert target.counts()["total"] == 1
