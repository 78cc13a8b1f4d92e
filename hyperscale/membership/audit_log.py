"""The membership audit log, as data: what this node came to think of whom, when and why."""

from collections import deque

from msgspec import Struct

ENTRIES_MAX = 2_000


class AuditEntry(Struct, frozen=True):
    at_s: float
    what: str  # noun.past_verb
    node: str
    incarnation: int
    detail: str = ""


class AuditLog:
    """The last entries, and a count of each kind since the start."""

    def __init__(self) -> None:
        self.entries: deque[AuditEntry] = deque(maxlen=ENTRIES_MAX)
        self.counts: dict[str, int] = {}

    def add(self, at_s: float, what: str, node: str, incarnation: int, detail: str = "") -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.entries.append(AuditEntry(at_s, what, node, incarnation, detail))
