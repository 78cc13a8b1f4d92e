"""The membership audit log: which state this node gave which member, when and why."""

from collections import deque

from msgspec import Struct

ENTRIES_MAX = 2_000


class AuditEntry(Struct, frozen=True):
    """One decision about one node. `what` is a `noun.past_verb`."""

    at_s: float
    what: str
    node: str
    incarnation: int
    detail: str = ""


class AuditLog:
    """The last entries, and a count of each kind since the start."""

    def __init__(self) -> None:
        self.entries: deque[AuditEntry] = deque(maxlen=ENTRIES_MAX)
        self.counts: dict[str, int] = {}

    def add(self, at_s: float, what: str, node: str, incarnation: int, detail: str = "") -> None:
        """Append an entry; the oldest is dropped when the log is full."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.entries.append(AuditEntry(at_s, what, node, incarnation, detail))
