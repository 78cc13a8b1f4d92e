"""The outgoing queue of one connection: bounded in bytes, ordered by priority.

Each priority may fill the queue only up to its own mark, so that a slow peer costs LOW frames
first and CRITICAL frames last. When a mark is reached, one-way messages of the same or a lower
priority are dropped, oldest first (a later report supersedes them); a request fails with
`QueueFullError`. A frame past its deadline is dropped when its turn comes.
"""

from collections import deque
from collections.abc import Iterator
from enum import IntEnum

from msgspec import Struct

from hyperscale.wire.errors import QueueFullError
from hyperscale.wire.frames import HEAD_BYTES

OUTBOX_BYTES_MAX = 32 * 1024 * 1024
_MARKS = (1.0, 0.95, 0.8, 0.5)  # of the bytes, by priority
_EVICTABLE = (3, 2)  # LOW, then NORMAL
_GONE_MAX = 1024


class FrameFate(IntEnum):
    """What became of a queued frame."""

    WAITING = 0
    SENT = 1  # handed out by `pop`
    GONE = 2  # dropped, expired or discarded: certainly not sent


# Bound once: in Python 3.11 each access through an enum class costs a Python call.
_WAITING, _SENT, _GONE = FrameFate


class QueuedFrame(Struct, gc=False, eq=False):
    """One frame to send. `request_id` 0: one-way. `deadline_s` 0: no deadline."""

    kind: int
    request_id: int
    priority: int
    deadline_s: float
    body: bytes
    fate: FrameFate = _WAITING


class Outbox:
    """Frames that wait for one peer, one lane per priority."""

    def __init__(self, bytes_max: int = OUTBOX_BYTES_MAX) -> None:
        self._marks = tuple(int(bytes_max * mark) for mark in _MARKS)
        self._lanes: tuple[deque[QueuedFrame], ...] = (deque(), deque(), deque(), deque())
        self._gone = 0  # discarded frames that are still in a lane
        self.held_bytes = 0

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes) - self._gone

    def __bool__(self) -> bool:
        return self.held_bytes > 0

    def push(self, frame: QueuedFrame) -> None:
        """Queue a frame, or raise `QueueFullError` and leave the queue as it is."""
        size = len(frame.body) + HEAD_BYTES
        if self.held_bytes + size > self._marks[frame.priority]:
            self._make_room(frame, size)
        self._lanes[frame.priority].append(frame)
        self.held_bytes += size

    def pop(self, *, now_s: float) -> QueuedFrame | None:
        """Return the next frame to send: the oldest of the highest priority; None if empty."""
        for lane in self._lanes:
            while lane:
                frame = lane.popleft()
                if frame.fate:
                    self._gone -= 1
                    continue
                self.held_bytes -= len(frame.body) + HEAD_BYTES
                if 0.0 < frame.deadline_s <= now_s:
                    frame.fate = _GONE
                    continue
                frame.fate = _SENT
                return frame
        return None

    def discard(self, frame: QueuedFrame) -> bool:
        """Remove a frame; return True if it was certainly never sent."""
        if frame.fate is _WAITING:
            self._drop(frame)
        return frame.fate is _GONE

    def drain(self) -> Iterator[QueuedFrame]:
        """Empty the queue, in the order in which it would have been sent."""
        while (frame := self.pop(now_s=0.0)) is not None:
            yield frame

    def _drop(self, frame: QueuedFrame) -> None:
        self.held_bytes -= len(frame.body) + HEAD_BYTES
        frame.fate = _GONE
        frame.body = b""
        self._gone += 1
        if self._gone > _GONE_MAX and self._gone > len(self):
            for lane in self._lanes:
                waiting = [each for each in lane if each.fate is _WAITING]
                lane.clear()
                lane.extend(waiting)
            self._gone = 0

    def _make_room(self, frame: QueuedFrame, size: int) -> None:
        mark = self._marks[frame.priority]
        surplus = self.held_bytes + size - mark
        victims: list[QueuedFrame] = []
        for priority in _EVICTABLE:
            if priority < frame.priority:
                break
            for waiting in self._lanes[priority]:
                if surplus <= 0:
                    break
                if waiting.request_id == 0 and waiting.fate is _WAITING:
                    victims.append(waiting)
                    surplus -= len(waiting.body) + HEAD_BYTES
        if surplus > 0:
            raise QueueFullError(
                f"{self.held_bytes} bytes are queued for this peer; a frame of {size} bytes with "
                f"priority {frame.priority} is accepted up to {mark} bytes"
            )
        for victim in victims:
            self._drop(victim)
