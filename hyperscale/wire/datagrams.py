"""The UDP socket of a node: seals messages and sends them, opens and delivers those received.

It reads without a transport: after a stall, `drain` delivers everything in the socket before the
membership core judges any member. A datagram that cannot be sent at once is dropped: every protocol
above expects loss.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

from msgspec import Struct

from hyperscale.config.addresses import format_address, split_address
from hyperscale.errors import InputError
from hyperscale.wire.errors import PeerProtocolError
from hyperscale.wire.refusal_log import RefusalLog
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.sealing import DATAGRAM_BYTES_MAX, DatagramSealer

_BATCH = 64
_DRAIN_MAX = 16_384
_BUFFER_BYTES = 4 * 1024 * 1024
_ADDRESSES_MAX = 65_536

_log = logging.getLogger("hyperscale.wire")

Receiver = Callable[[str, str, int, Any], None]
"""Source address, node id, incarnation, message."""


def bind_datagrams(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 chooses a free port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        bound = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        raise InputError(f"listen.host: {host} is no address: {error.strerror or error}") from error
    try:
        # For datagrams that arrive while this process does not run; the kernel may grant less.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        bound.setblocking(False)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError(
            f"cannot listen on {host}:{port} (UDP): {error.strerror or error}",
            hint="choose another port with --port, or 0 for any free one",
        ) from error
    return bound


class DatagramSocket:
    """Sends while the context lasts, and receives from `listen` on."""

    def __init__(self, bound: socket.socket, sealer: DatagramSealer) -> None:
        self.sealer = sealer
        self.refusals = RefusalLog()
        self.counts: Counter[str] = Counter()
        self._socket = bound
        self._receive: Receiver | None = None
        self._loop = asyncio.get_running_loop()
        self._targets: dict[str, tuple[Any, ...]] = {}

    def send(self, address: str, message: Struct) -> None:
        """Send a message at once, or drop it."""
        data = self.sealer.seal(REGISTRY.pack(message))
        try:
            self._socket.sendto(data, self._target(address))
        except (BlockingIOError, InterruptedError):
            self.counts["dropped"] += 1
        except (OSError, ValueError) as error:
            # No route, a forged address: to membership the peer is silent, which is right.
            self.counts["failed"] += 1
            _log.debug("datagram.failed: %s", error, extra={"address": address})
        else:
            self.counts["sent"] += 1
            self.counts["sent_bytes"] += len(data)

    def listen(self, receive: Receiver) -> None:
        """Deliver received messages from now on."""
        self._receive = receive
        self._loop.add_reader(self._socket.fileno(), self._read, _BATCH)

    def drain(self) -> None:
        """Deliver every message that waits in the socket."""
        self._read(_DRAIN_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _read(self, most: int) -> None:
        receive_from = self._socket.recvfrom
        for _ in range(most):
            try:
                data, source = receive_from(DATAGRAM_BYTES_MAX + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.counts["failed"] += 1
                _log.debug("datagram.failed: %s", error)
                return
            self.counts["received"] += 1
            self.counts["received_bytes"] += len(data)
            # A socket for both families shows IPv4 peers by their mapped addresses.
            self._take(data, str(source[0]).removeprefix("::ffff:"), int(source[1]))

    def _take(self, data: bytes, host: str, port: int) -> None:
        try:
            node_id, incarnation, plain = self.sealer.open(data)
            message = REGISTRY.unpack(plain)
        except PeerProtocolError as error:
            self.refusals.add(host, error, now_s=self._loop.time())
            return
        if self._receive is not None:
            self._receive(format_address(host, port), node_id, incarnation, message)

    def _target(self, address: str) -> tuple[Any, ...]:
        target = self._targets.get(address)
        if target is None:
            if len(self._targets) >= _ADDRESSES_MAX:
                self._targets.clear()
            target = self._targets[address] = _numeric(address, self._socket.family)
        return target


def _numeric(address: str, family: int) -> tuple[Any, ...]:
    """Return the address for the kernel. Addresses come from peers: names are not resolved."""
    host, port = split_address(address)
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV | socket.AI_V4MAPPED
    found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM, flags=flags)
    return found[0][4]
