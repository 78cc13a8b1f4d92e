"""What happened in a run, kept cheaply and shown readably.

Entries are tuples until someone looks. The digest covers every entry, also those no longer
kept: two runs with the same digest did the same things in the same order.
"""

import zlib
from collections import deque

KEPT_ENTRIES_MAX = 4_000
LINE_CHARS_MAX = 180


class Trace:
    """The last entries of a run and a digest of all of them."""

    def __init__(self, kept: int = KEPT_ENTRIES_MAX) -> None:
        self._entries: deque[tuple[float, str, str, object]] = deque(maxlen=kept)
        self._digest = 0
        self.count = 0

    def add(self, now_s: float, who: str, what: str, detail: object) -> None:
        self.count += 1
        self._entries.append((now_s, who, what, detail))
        self._digest = zlib.crc32(f"{now_s!r}|{who}|{what}|{detail}".encode(), self._digest)

    @property
    def digest(self) -> str:
        return f"{self._digest:08x}-{self.count}"

    def tail(self, lines: int, *, about: tuple[str, ...] = ()) -> str:
        """The last lines, only those that mention one of `about` if given."""
        shown: list[str] = []
        for now_s, who, what, detail in reversed(self._entries):
            line = f"{now_s:10.4f}  {who:<12} {what:<12} {detail}"[:LINE_CHARS_MAX]
            if not about or any(name in line for name in about):
                shown.append(line)
                if len(shown) == lines:
                    break
        return "\n".join(reversed(shown))
