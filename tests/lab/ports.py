"""Free ports of the loopback interface."""

import random
import socket

_given: set[int] = set()  # a server may bind its port long after it was given


def free_port() -> int:
    """Return a port that is free for TCP and UDP, outside the range of outgoing connections, and
    that this process has not been given before."""
    for port in random.sample(range(12_000, 32_000), 100):
        if port in _given:
            continue
        try:
            with (
                socket.create_server(("127.0.0.1", port)),
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            ):
                datagrams.bind(("127.0.0.1", port))
                _given.add(port)
                return port
        except OSError:
            continue
    raise AssertionError("none of 100 ports between 12,000 and 32,000 is free")


def has_ipv6() -> bool:
    """Return True if this machine has the IPv6 loopback address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
