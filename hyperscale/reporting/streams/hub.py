"""Sending snapshots of a run to streams, beside the run and never in its way.

All streams share one thread with an event loop of its own. `push` hands over a snapshot and
returns; a stream that is still busy with the last one sends only the newest when it is done. A
receiver that fails is tried again with the next snapshot. The last snapshot of a run, which has its
totals, is tried until a deadline.
"""

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hyperscale.reporting.settings import DeliverySettings
from hyperscale.reporting.streams.snapshot import Annotation, Snapshot
from hyperscale.testing.parameters import Mask

INTERVAL_S = 5.0
SEND_TIMEOUT_S = 5.0
FINAL_TIMEOUT_S = 10.0
RETRY_S = 0.5
ANNOTATIONS_MAX = 1000  # kept for a receiver that is away


class LiveStream(ABC):
    """One receiver of snapshots."""

    def __init__(self, settings: DeliverySettings) -> None:
        self.settings = settings

    async def open(self) -> None:  # noqa: B027  most streams open nothing
        """Open what `send` uses. Raises InputError for what cannot work."""

    @abstractmethod
    async def send(self, snapshot: Snapshot) -> None:
        """Send a snapshot. Raises if it was not taken."""

    async def close(self) -> None:  # noqa: B027  as above
        """Close what `open` and `send` opened."""

    def __repr__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class StreamLoss:
    """What a stream could not send."""

    stream: str
    lost: int  # snapshots
    total: int
    has_totals: bool  # whether the last snapshot arrived
    error: str

    def describe(self) -> str:
        totals = "" if self.has_totals else "; the totals did not arrive"
        return (
            f"stream {self.stream}: lost {self.lost} of {self.total} updates{totals}: {self.error}"
        )


class _Lane:
    """One stream, the newest snapshot for it, and an account of what was lost."""

    def __init__(self, stream: LiveStream) -> None:
        self.stream = stream
        self.mask = Mask(stream.settings.secrets())
        self.wakes = asyncio.Event()
        self.newest: Snapshot | None = None
        self.annotations: deque[Annotation] = deque(maxlen=ANNOTATIONS_MAX)
        self.total = self.lost = self.arrived = 0
        self.has_totals = False
        self.error = ""

    async def run(self) -> None:
        try:
            await self.stream.open()
            while True:
                await self.wakes.wait()
                self.wakes.clear()
                snapshot, self.newest = self.newest, None
                if snapshot is None:
                    continue
                snapshot = replace(snapshot, annotations=tuple(self.annotations))
                if await self._send(snapshot):
                    for _ in snapshot.annotations:
                        self.annotations.popleft()
                if snapshot.is_final:
                    return
        except Exception as error:  # noqa: BLE001  a stream's failure is its own
            self.lost, self.error = self.total, self._text(error)
        finally:
            await self.stream.close()

    async def _send(self, snapshot: Snapshot) -> bool:
        """Send a snapshot, the last one until it arrives; return True if it did.

        A receiver that has taken nothing so far is not worth waiting for.
        """
        is_awaited = snapshot.is_final and self.arrived
        until_s = time.monotonic() + (FINAL_TIMEOUT_S if is_awaited else 0.0)
        while True:
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await self.stream.send(snapshot)
            except Exception as error:  # noqa: BLE001  counted, and reported at the end
                self.error = self._text(error)
                if time.monotonic() + RETRY_S >= until_s:
                    self.lost += 1
                    return False
                await asyncio.sleep(RETRY_S)
            else:
                self.arrived += 1
                self.has_totals = snapshot.is_final
                return True

    def _text(self, error: Exception) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"no answer within {SEND_TIMEOUT_S:g} s"
        return self.mask.text(f"{type(error).__name__}: {error}" if str(error) else repr(error))


class StreamHub:
    """The thread of all streams of one run."""

    def __init__(self, streams: Sequence[LiveStream]) -> None:
        self._loop = asyncio.new_event_loop()
        self._lanes: list[_Lane] = []
        self._streams = streams
        self._running: asyncio.Future[list[None]] | None = None
        self._ready = threading.Event()
        self._is_over = False
        # A stream that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._all())
        finally:
            self._loop.close()

    async def _all(self) -> None:
        self._lanes = [_Lane(stream) for stream in self._streams]
        self._running = asyncio.gather(*(lane.run() for lane in self._lanes))
        self._ready.set()
        with contextlib.suppress(asyncio.CancelledError):  # by `abandon`
            await self._running

    def push(self, snapshot: Snapshot) -> None:
        """Hand a snapshot to every stream; the last one has `is_final`. Never waits."""
        if self._is_over:
            return
        self._is_over = snapshot.is_final
        try:
            self._loop.call_soon_threadsafe(self._take, snapshot)
        except RuntimeError:  # every stream has failed for good, and the loop has closed
            return

    def _take(self, snapshot: Snapshot) -> None:
        for lane in self._lanes:
            lane.total += 1
            lane.annotations.extend(snapshot.annotations)
            lane.newest = snapshot
            lane.wakes.set()

    def abandon(self) -> None:
        """End the thread without the totals, as after a run that never began."""
        running = self._running
        if self._thread.is_alive() and running is not None:
            self._loop.call_soon_threadsafe(running.cancel)
            self._thread.join(SEND_TIMEOUT_S)

    def finish(self) -> list[StreamLoss]:
        """Wait until the last snapshot has arrived or is given up; return what was lost."""
        self._thread.join(FINAL_TIMEOUT_S + SEND_TIMEOUT_S + 1.0)
        return [
            StreamLoss(repr(lane.stream), lane.lost, lane.total, lane.has_totals, lane.error)
            for lane in self._lanes
            if lane.lost or not lane.has_totals
        ]
