"""What the clients with a library return: the reply, and where the time went."""

from collections.abc import Sequence
from typing import Any, ClassVar

from hyperscale.testing.http import Phases
from hyperscale.testing.results import CallResult

_NS_PER_S = 1_000_000_000


class LibraryResponse(CallResult):
    """A reply of a server. A call without one, or with an error reply, raises `ClientError`."""

    __slots__ = (
        "blocked_ns",
        "bytes_received",
        "bytes_sent",
        "connect_ns",
        "latency_ns",
        "value",
    )
    ok: ClassVar[bool] = True

    def __init__(
        self, value: Any, latency_ns: int, blocked_ns: int | None, connect_ns: int | None
    ) -> None:
        self.value = value  # as the library returns it
        self.latency_ns = latency_ns
        self.blocked_ns = blocked_ns
        self.connect_ns = connect_ns
        # Of what was carried (files, messages, rows that were copied), where the library tells.
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds from the request to the whole reply, without the time to connect."""
        return self.latency_ns / _NS_PER_S

    @property
    def phases(self) -> Phases:
        """Seconds spent waiting for a connection and connecting; the others are not known."""
        phases_ns = (self.blocked_ns, self.connect_ns, None, None)
        return Phases(*(None if ns is None else ns / _NS_PER_S for ns in phases_ns))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {_shortened(self.value)}>"


def _shortened(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"{len(value)} items"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


class PostgresResponse(LibraryResponse):
    """The rows of a query, or the status of a command."""

    __slots__ = ()
    protocol = "postgres"

    @property
    def status(self) -> str | None:
        """What a command did, such as "INSERT 0 1"; None for queries."""
        return self.value if isinstance(self.value, str) else None

    @property
    def rows(self) -> Sequence[Any]:
        """The rows, each by column name or position; empty for commands."""
        return self.value if isinstance(self.value, list) else ()

    @property
    def row(self) -> Any:
        """The first row; None if there is none."""
        return self.rows[0] if self.rows else None

    @property
    def scalar(self) -> Any:
        """The first column of the first row; None if there is no row."""
        return self.rows[0][0] if self.rows else None

    @property
    def count(self) -> int:
        """The number of rows returned, or changed by a command."""
        if self.status is None:
            return len(self.rows)
        last = self.status.rpartition(" ")[2]
        return int(last) if last.isdigit() else 0


class RedisResponse(LibraryResponse):
    """The reply to a command; of a pipeline, a list of replies."""

    __slots__ = ()
    protocol = "redis"

    @property
    def text(self) -> str:
        """The reply as text, if it is bytes or a number."""
        return self.value.decode() if isinstance(self.value, bytes) else str(self.value)

    @property
    def messages(self) -> Sequence[Any]:
        """The messages of `listen` and the entries of `stream_read`."""
        return self.value if isinstance(self.value, list) else ()
