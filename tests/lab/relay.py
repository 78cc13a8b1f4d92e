"""Carries packets between TUN devices, with delay, jitter, loss and cuts.

A thread with one epoll: it reads a packet, decides its fate, and writes it to the device of the
address that the packet is for when its delay is over. Each direction of each link between two
devices has its own settings.
"""

import os
import select
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from ipaddress import IPv4Address
from itertools import permutations
from random import Random

PACKET_BYTES_MAX = 65_536
QUEUE_PACKETS_MAX = 10_000


@dataclass
class Way:
    """One direction of a link. Its settings may be changed while packets pass."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    is_cut: bool = False
    passed: int = 0
    dropped: int = 0
    waiting: list[tuple[float, int, bytes]] = field(default_factory=list)


_DESTINATION = slice(16, 20)  # of an IPv4 header


class Relay:
    """Every direction between devices, until it is closed. `devices`: address -> descriptor."""

    def __init__(self, devices: Mapping[str, int], *, seed: int = 0) -> None:
        self.ways = {(a, b): Way() for a, b in permutations(devices, 2)}
        """By the addresses from and to which packets go."""
        packed = {address: IPv4Address(address).packed for address in devices}
        # Of each device: the way to each address, and the device there.
        self._routes = {
            device: {
                packed[there]: (self.ways[here, there], devices[there])
                for there in devices
                if there != here
            }
            for here, device in devices.items()
        }
        self._rng = Random(seed)
        self._sequence = 0
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="netlab relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _carry(self) -> None:
        with select.epoll() as epoll:
            for device in (*self._routes, self._stop_read):
                epoll.register(device, select.EPOLLIN)
            while True:
                for device, _ in epoll.poll(self._sleep_s()):
                    if device == self._stop_read:
                        return
                    self._take(device)
                self._give()

    def _targets(self) -> Iterator[tuple[Way, int]]:
        for routes in self._routes.values():
            yield from routes.values()

    def _sleep_s(self) -> float:
        due_s = [way.waiting[0][0] for way in self.ways.values() if way.waiting]
        return max(0.0, min(due_s) - time.monotonic()) if due_s else -1

    def _take(self, device: int) -> None:
        routes = self._routes[device]
        while True:
            try:
                packet = os.read(device, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            route = routes.get(packet[_DESTINATION])
            if route is None:
                continue  # for no device here: multicast, or IPv6
            way, target = route
            if way.is_cut or (way.loss and self._rng.random() < way.loss):
                way.dropped += 1
            elif way.delay_s or way.jitter_s:
                self._hold(way, packet)
            else:
                self._write(way, target, packet)

    def _hold(self, way: Way, packet: bytes) -> None:
        if len(way.waiting) >= QUEUE_PACKETS_MAX:
            way.dropped += 1
            return
        self._sequence += 1
        at_s = time.monotonic() + way.delay_s + way.jitter_s * self._rng.random()
        heappush(way.waiting, (at_s, self._sequence, packet))

    def _give(self) -> None:
        now_s = time.monotonic()
        for way, target in self._targets():
            while way.waiting and way.waiting[0][0] <= now_s:
                packet = heappop(way.waiting)[2]
                if way.is_cut:
                    way.dropped += 1
                else:
                    self._write(way, target, packet)

    def _write(self, way: Way, target: int, packet: bytes) -> None:
        try:
            os.write(target, packet)
            way.passed += 1
        except OSError:  # the device is full or going away: on a real link that is loss too
            way.dropped += 1
