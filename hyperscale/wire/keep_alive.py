"""The keep-alive of one connection: when to ping a silent peer, and when to give it up."""

STALL_S = 0.5
"""A tick later than this is a stall of this node, not silence of the peer."""


class KeepAliveTimer:
    """When the peer was last heard, and when the session next has to act."""

    __slots__ = ("_lost_after_s", "_ping_after_s", "due_s", "heard_s", "is_pinged", "opened_s")

    def __init__(self, *, now_s: float, ping_after_s: float, lost_after_s: float) -> None:
        self._ping_after_s = ping_after_s
        self._lost_after_s = lost_after_s
        self.opened_s = now_s
        self.heard_s = now_s
        self.is_pinged = False
        self.due_s = now_s + ping_after_s

    def next_due_s(self) -> float:
        """Return when the peer has to be pinged or given up if it stays silent."""
        return self.heard_s + (self._lost_after_s if self.is_pinged else self._ping_after_s)

    def forgive_stall(self, *, now_s: float) -> None:
        """Do not count a stall of this node as silence: the peer's frames wait in the socket."""
        late_s = now_s - self.due_s
        if late_s > STALL_S:
            self.heard_s += late_s

    def is_lost(self, *, now_s: float) -> bool:
        """Return True if the peer has been silent for too long."""
        return now_s - self.heard_s >= self._lost_after_s

    def should_ping(self, *, now_s: float) -> bool:
        """Return True once per silence, when a ping is due."""
        if self.is_pinged or now_s - self.heard_s < self._ping_after_s:
            return False
        self.is_pinged = True
        return True
