"""Carries packets between two TUN devices, with delay, jitter, loss and cuts.

A thread with one epoll: it reads a packet, decides its fate, and writes it to the other device
when its delay is over. Each direction has its own settings.
"""

import os
import select
import threading
import time
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

PACKET_BYTES_MAX = 65_536
QUEUE_PACKETS_MAX = 10_000


@dataclass
class Way:
    """One direction of the link. Its settings may be changed while packets pass."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    is_cut: bool = False
    passed: int = 0
    dropped: int = 0
    waiting: list[tuple[float, int, bytes]] = field(default_factory=list)


class Relay:
    """Both directions between two devices, until it is closed."""

    def __init__(self, a: int, b: int, *, seed: int = 0) -> None:
        self.to_b = Way()
        self.to_a = Way()
        self._devices = {a: (self.to_b, b), b: (self.to_a, a)}
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
            for device in (*self._devices, self._stop_read):
                epoll.register(device, select.EPOLLIN)
            while True:
                for device, _ in epoll.poll(self._sleep_s()):
                    if device == self._stop_read:
                        return
                    self._take(device)
                self._give()

    def _sleep_s(self) -> float:
        due_s = [way.waiting[0][0] for way, _ in self._devices.values() if way.waiting]
        return max(0.0, min(due_s) - time.monotonic()) if due_s else -1

    def _take(self, device: int) -> None:
        way, target = self._devices[device]
        while True:
            try:
                packet = os.read(device, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
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
        for way, target in self._devices.values():
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
