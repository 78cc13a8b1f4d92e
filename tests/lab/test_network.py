"""The lab itself: packets pass, are delayed, lost and cut; nothing is left behind."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.lab.network import NetLab, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is all there")

PORT = 7007

_ECHO = """
import socket, sys, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((sys.argv[1], int(sys.argv[2])))
tcp = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
def serve():
    while True:
        connection, _ = tcp.accept()
        connection.sendall(connection.recv(100))
        connection.close()
threading.Thread(target=serve, daemon=True).start()
while True:
    data, source = udp.recvfrom(100)
    udp.sendto(data, source)
"""

_CALL = """
import json, socket, sys, time
host, port, count, timeout_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(timeout_s)
trips = []
for n in range(count):
    began = time.monotonic()
    udp.sendto(str(n).encode(), (host, port))
    try:
        while udp.recv(100) != str(n).encode():
            pass
        trips.append(time.monotonic() - began)
    except TimeoutError:
        pass
try:
    with socket.create_connection((host, port), timeout=timeout_s) as tcp:
        tcp.sendall(b"hello")
        answered = tcp.recv(100) == b"hello"
except OSError as error:
    answered = type(error).__name__
print(json.dumps([trips, answered]))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[NetLab]:
    with NetLab(seed=1, outside=True) as lab:
        echo = lab.b.popen(
            [sys.executable, "-c", _ECHO, lab.b.address, str(PORT)], stdout=subprocess.PIPE
        )
        assert echo.stdout is not None
        assert echo.stdout.readline() == b"ready\n"
        yield lab


@pytest.fixture(autouse=True)
def perfect(lab: NetLab) -> None:
    lab.link()
    lab.mend()


def call(lab: NetLab, count: int, timeout_s: float) -> tuple[list[float], bool | str]:
    arguments = [lab.b.address, str(PORT), str(count), str(timeout_s)]
    done = lab.a.run([sys.executable, "-c", _CALL, *arguments], stdout=subprocess.PIPE)
    trips, answered = json.loads(done.stdout)
    return trips, answered


def test_datagrams_and_connections_pass(lab: NetLab) -> None:
    trips, answered = call(lab, 20, 5.0)
    assert len(trips) == 20
    assert answered is True


def test_a_delay_applies_in_both_directions(lab: NetLab) -> None:
    lab.link(delay_s=0.05)
    trips, answered = call(lab, 5, 5.0)
    assert min(trips) >= 0.1
    assert answered is True


def test_the_given_share_of_packets_is_lost(lab: NetLab) -> None:
    lab.to_b.loss = 0.5
    before = lab.to_b.dropped
    trips, _ = call(lab, 60, 0.1)
    assert 10 < len(trips) < 50
    assert lab.to_b.dropped > before


def test_a_cut_link_is_silent_and_refuses_nothing(lab: NetLab) -> None:
    lab.cut()
    assert call(lab, 1, 0.3) == ([], "TimeoutError")
    lab.mend()
    trips, answered = call(lab, 1, 5.0)
    assert (len(trips), answered) == (1, True)


def test_a_link_may_be_cut_in_one_direction(lab: NetLab) -> None:
    lab.cut(to="a")
    before = lab.to_b.passed
    trips, _ = call(lab, 1, 0.3)
    assert trips == []
    assert lab.to_b.passed > before


def test_the_outside_is_reachable_when_the_link_is_cut(lab: NetLab) -> None:
    lab.cut()
    with socket.create_server((lab.outside, 0)) as server:
        probe = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
        for side in (lab.a, lab.b):
            side.run([sys.executable, "-c", probe, lab.outside, str(server.getsockname()[1])])
            connection, peer = server.accept()
            connection.close()
            assert peer[0] == side.address
    with socket.create_connection((lab.b.address, PORT), timeout=5) as tcp:
        tcp.sendall(b"hello")
        assert tcp.recv(100) == b"hello"


def test_without_a_listener_a_connection_is_refused(lab: NetLab) -> None:
    probe = (
        "import socket, sys\n"
        "try: socket.create_connection((sys.argv[1], 9), timeout=5)\n"
        "except ConnectionRefusedError: print('refused')\n"
    )
    done = lab.a.run([sys.executable, "-c", probe, lab.b.address], stdout=subprocess.PIPE)
    assert done.stdout == b"refused\n"


def test_a_closed_lab_leaves_no_namespace() -> None:
    with NetLab() as lab:
        left = lab.a.popen(["sleep", "1000"])
        names = (lab.a.name, lab.b.name)
    assert left.poll() is not None
    known = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert not any(name in known.stdout for name in names)
