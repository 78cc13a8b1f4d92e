"""A UDP socket that sends and receives sealed messages.

Reads by itself when the socket is readable, and at once when asked (`drain`): after a stall
everything that has arrived must be heard before anyone is judged. What does not open, decode or
fit is counted and dropped without a word; nothing is ever sent to an unproven sender.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.wire.errors import PeerProtocolError
from hyperscale.wire.messages import Introduction
from hyperscale.wire.refusals import Refusals
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.sealing import DATAGRAM_BYTES_MAX, DatagramSealer
from hyperscale.wire.security import Security

BUFFER_BYTES = 4 * 1024 * 1024
"""Asked of the kernel, so that a stall of seconds loses little."""
_BATCH = 256
_DRAIN_MAX = 20_000

_log = logging.getLogger("hyperscale.wire")

Address = tuple[str, int]


class Received(NamedTuple):
    """A message whose sender is proven to hold the secret."""

    message: Any
    node_id: str
    incarnation: int
    address: Address


class DatagramPort:
    """This node's UDP socket. Open it with `open`, close it with `close`."""

    def __init__(
        self,
        end: socket.socket,
        sealer: DatagramSealer,
        refusals: Refusals,
        on_message: Callable[[Received], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._sealer = sealer
        self._refusals = refusals
        self._on_message = on_message
        self.received = 0
        self.sent = 0
        self.unsent = 0
        """Datagrams the kernel would not take; UDP may lose them anyway."""
        self._loop.add_reader(end.fileno(), self._on_readable)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        local: Introduction,
        security: Security,
        refusals: Refusals,
        on_message: Callable[[Received], None],
    ) -> "DatagramPort":
        """Binds the socket; `InputError` if that cannot or must not be."""
        security.check_datagrams(host)
        sealer = DatagramSealer(
            security.secrets,
            local.node_id,
            local.incarnation,
            cluster=local.cluster,
            environment=local.environment,
        )
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            end = socket.socket(family, socket.SOCK_DGRAM)
        except OSError as error:
            raise InputError(f"cannot use {host}:{port}: {error.strerror or error}") from error
        try:
            end.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            end.bind(address)
        except OSError as error:
            end.close()
            raise InputError(
                f"cannot bind {host}:{port}: {error.strerror or error}",
                hint="is another node running there?",
            ) from error
        return cls(end, sealer, refusals, on_message)

    @property
    def address(self) -> Address:
        host, port = self._end.getsockname()[:2]
        return host, port

    def send(self, message: Struct, address: Address) -> None:
        """Seals and sends; raises only if the message itself is not fit to be sent."""
        datagram = self._sealer.seal(REGISTRY.pack(message))
        try:
            self._end.sendto(datagram, address)
        except OSError:  # full, unreachable, filtered: for UDP all the same as lost
            self.unsent += 1
        else:
            self.sent += 1

    def drain(self) -> int:
        """Reads everything that has arrived; returns how many datagrams that was."""
        return self._read(_DRAIN_MAX)

    def close(self) -> None:
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end.fileno())
            self._end.close()

    def _on_readable(self) -> None:
        self._read(_BATCH)

    def _read(self, count_max: int) -> int:
        count = 0
        while count < count_max and self._end.fileno() >= 0:
            try:
                # One byte more than allowed is enough to see that it is too much.
                datagram, address = self._end.recvfrom(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                break
            except OSError as error:
                _log.warning("datagrams.failed: %s", error, extra={"detail": str(error)})
                break
            count += 1
            self._take(datagram, (str(address[0]), int(address[1])))
        return count

    def _take(self, datagram: bytes, address: Address) -> None:
        self.received += 1
        try:
            opened = self._sealer.open(datagram)
            message = REGISTRY.unpack(opened.plain)
        except PeerProtocolError as error:
            self._refusals.add(address[0], error, now_s=self._loop.time())
            return
        self._on_message(Received(message, opened.node_id, opened.incarnation, address))
