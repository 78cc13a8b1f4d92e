"""What waits to be sent to one peer: bounded in bytes, ordered by priority.

Each priority may fill the box only up to its own mark, so when a peer is slow LOW is turned
away first and CRITICAL last. Policy when a mark is reached: one-way messages of the same or a
lower priority are dropped, oldest first (their next edition supersedes them), and counted; a
request is refused to its caller. What nobody waits for any more is dropped when its turn comes.
"""

from collections import deque
from collections.abc import Iterator

from msgspec import Struct

from hyperscale.wire.errors import QueueFullError
from hyperscale.wire.frames import HEAD_BYTES

OUTBOX_BYTES_MAX = 32 * 1024 * 1024
_MARKS = (1.0, 0.95, 0.8, 0.5)  # of the bytes, by priority
_EVICTABLE = (3, 2)  # LOW, then NORMAL
_GONE_MAX = 1024

WAITING, SENT, GONE = 0, 1, 2


class QueuedFrame(Struct, gc=False, eq=False):
    """One frame to be. `request_id` 0: one-way. `deadline_s` 0: no deadline.

    `fate`: WAITING, SENT (handed out by `pop`) or GONE (dropped, expired or taken back).
    """

    kind: int
    request_id: int
    priority: int
    deadline_s: float
    body: bytes
    fate: int = 0


class Outbox:
    def __init__(self, bytes_max: int = OUTBOX_BYTES_MAX) -> None:
        self._marks = tuple(int(bytes_max * mark) for mark in _MARKS)
        self._lanes: tuple[deque[QueuedFrame], ...] = (deque(), deque(), deque(), deque())
        self._gone = 0  # taken back, and still in a lane
        self.held_bytes = 0
        self.dropped = 0
        self.expired = 0

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes) - self._gone

    def __bool__(self) -> bool:
        return self.held_bytes > 0

    def push(self, entry: QueuedFrame) -> None:
        """Takes the entry, or raises `QueueFullError` and takes nothing."""
        size = len(entry.body) + HEAD_BYTES
        if self.held_bytes + size > self._marks[entry.priority]:
            self._make_room(entry, size)
        self._lanes[entry.priority].append(entry)
        self.held_bytes += size

    def pop(self, *, now_s: float) -> QueuedFrame | None:
        """The next to send: the highest priority, the longest waiting; None if there is none."""
        for lane in self._lanes:
            while lane:
                entry = lane.popleft()
                if entry.fate:
                    self._gone -= 1
                    continue
                self.held_bytes -= len(entry.body) + HEAD_BYTES
                if 0.0 < entry.deadline_s <= now_s:
                    entry.fate = GONE
                    self.expired += 1
                    continue
                entry.fate = SENT
                return entry
        return None

    def discard(self, entry: QueuedFrame) -> bool:
        """Takes an entry back. True if it was certainly never sent."""
        if entry.fate == WAITING:
            self._drop(entry)
        return entry.fate == GONE

    def drain(self) -> Iterator[QueuedFrame]:
        """Empties the box, in the order it would have been sent."""
        while (entry := self.pop(now_s=0.0)) is not None:
            yield entry

    def _drop(self, entry: QueuedFrame) -> None:
        self.held_bytes -= len(entry.body) + HEAD_BYTES
        entry.fate = GONE
        entry.body = b""
        self._gone += 1
        if self._gone > _GONE_MAX and self._gone > len(self):
            for lane in self._lanes:
                waiting = [each for each in lane if each.fate == WAITING]
                lane.clear()
                lane.extend(waiting)
            self._gone = 0

    def _make_room(self, entry: QueuedFrame, size: int) -> None:
        mark = self._marks[entry.priority]
        surplus = self.held_bytes + size - mark
        victims: list[QueuedFrame] = []
        for priority in _EVICTABLE:
            if priority < entry.priority:
                break
            for waiting in self._lanes[priority]:
                if surplus <= 0:
                    break
                if waiting.request_id == 0 and waiting.fate == WAITING:
                    victims.append(waiting)
                    surplus -= len(waiting.body) + HEAD_BYTES
        if surplus > 0:
            raise QueueFullError(
                f"{self.held_bytes} bytes wait for this peer; a message of {size} bytes and "
                f"priority {entry.priority} is taken up to {mark}"
            )
        for victim in victims:
            self._drop(victim)
        self.dropped += len(victims)
