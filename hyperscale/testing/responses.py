"""What the clients with a library return: the reply, and where the time went."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

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


class MySQLResponse(LibraryResponse):
    """The rows of a query, or what a command changed."""

    __slots__ = ("changed", "columns", "last_id")
    protocol = "mysql"

    def __init__(
        self, value: Any, latency_ns: int, blocked_ns: int | None, connect_ns: int | None
    ) -> None:
        super().__init__(value, latency_ns, blocked_ns, connect_ns)
        self.columns: Sequence[str] = ()
        self.changed = 0  # rows that a command changed; of a query, rows returned
        self.last_id = 0  # the id that an INSERT made

    @property
    def rows(self) -> Sequence[Any]:
        """The rows, as tuples; `columns` has the names."""
        return self.value if isinstance(self.value, list | tuple) else ()

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
        """The number of rows returned."""
        return len(self.rows)


class MongoDBResponse(LibraryResponse):
    """The documents that were found, or what a write changed."""

    __slots__ = ()
    protocol = "mongodb"

    @property
    def documents(self) -> Sequence[Any]:
        """The documents that `find` and `aggregate` return."""
        return self.value if isinstance(self.value, list) else ()

    @property
    def document(self) -> Any:
        """The first document; None if there is none."""
        return self.documents[0] if self.documents else None

    @property
    def count(self) -> int:
        """The number of documents returned."""
        return len(self.documents)

    @property
    def changed(self) -> int:
        """The number of documents inserted, changed or deleted."""
        if not isinstance(self.value, dict):
            return 0
        counts = (self.value.get(name, 0) for name in ("inserted", "changed", "deleted"))
        return sum(counts)


class KafkaMessage(NamedTuple):
    """A message that was consumed."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    age_s: float | None  # since it was produced by a Hyperscale client, by both machines' clocks


class KafkaResponse(LibraryResponse):
    """The offsets of messages that were produced, or the messages that were consumed."""

    __slots__ = ("lag",)
    protocol = "kafka"

    def __init__(
        self, value: Any, latency_ns: int, blocked_ns: int | None, connect_ns: int | None
    ) -> None:
        super().__init__(value, latency_ns, blocked_ns, connect_ns)
        self.lag = 0  # messages that the consumer has not read yet

    @property
    def messages(self) -> Sequence[KafkaMessage]:
        """The messages that `consume` returns."""
        return [each for each in self.value or () if isinstance(each, KafkaMessage)]

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets of the messages that were produced; -1 with `acks=0`."""
        return [-1 if each is None else each.offset for each in self.value or ()]


class RabbitMQMessage(NamedTuple):
    """A message that was consumed, or a reply."""

    body: bytes
    routing_key: str
    headers: dict[str, Any]
    redelivered: bool


class RabbitMQResponse(LibraryResponse):
    """The confirmation of a message, or the messages that were consumed."""

    __slots__ = ()
    protocol = "rabbitmq"

    @property
    def messages(self) -> Sequence[RabbitMQMessage]:
        """The messages that `consume` and `rpc` return."""
        return self.value if isinstance(self.value, list) else ()

    @property
    def body(self) -> bytes | None:
        """The body of the first message; None if there is none."""
        return self.messages[0].body if self.messages else None


class MQTTMessage(NamedTuple):
    """A message that a subscriber got."""

    topic: str
    payload: bytes
    qos: int


class MQTTResponse(LibraryResponse):
    """The confirmation of a message, or the messages that arrived."""

    __slots__ = ()
    protocol = "mqtt"

    @property
    def messages(self) -> Sequence[MQTTMessage]:
        """The messages that `listen` returns."""
        return self.value if isinstance(self.value, list) else ()


class SMTPResponse(LibraryResponse):
    """The reply to a mail that the server has taken; its value is the server's text."""

    __slots__ = ("refused",)
    protocol = "smtp"

    def __init__(
        self, value: Any, latency_ns: int, blocked_ns: int | None, connect_ns: int | None
    ) -> None:
        super().__init__(value, latency_ns, blocked_ns, connect_ns)
        self.refused: dict[str, int] = {}  # recipients that the server refused -> its code


class RemoteFile(NamedTuple):
    """An entry of a directory at the server."""

    name: str
    size: int
    is_directory: bool


class TransferResponse(LibraryResponse):
    """The content of a file that was read, or the entries of a directory."""

    __slots__ = ()

    @property
    def content(self) -> bytes | None:
        """The bytes that `download` has read; None if it did not keep them."""
        return self.value if isinstance(self.value, bytes) else None

    @property
    def entries(self) -> Sequence[RemoteFile]:
        """The entries that `list` returns."""
        return self.value if isinstance(self.value, list) else ()


class FTPResponse(TransferResponse):
    """The result of an FTP call."""

    __slots__ = ()
    protocol = "ftp"


class SFTPResponse(TransferResponse):
    """The result of an SFTP call."""

    __slots__ = ()
    protocol = "sftp"


class SCPResponse(TransferResponse):
    """The result of an SCP call."""

    __slots__ = ()
    protocol = "scp"


def _seconds(name: str, about: str) -> property:
    """Return a property of a page's time, in seconds; None if the browser has not measured it."""

    def read(result: "PlaywrightResult") -> float | None:
        value: float | None = result.value.get(name) if isinstance(result.value, dict) else None
        return None if value is None else value / 1000

    return property(read, doc=about)


class PlaywrightResult(LibraryResponse):
    """A page that a browser has loaded: its times as the browser measured them.

    The web vitals are metrics of their own in the results: `vitals` names them.
    """

    __slots__ = ()
    protocol = "browser"
    vitals: ClassVar[Sequence[str]] = ("ttfb_s", "fcp_s", "lcp_s", "inp_s", "cls")

    ttfb_s = _seconds("ttfb", "Seconds to the first byte of the page.")
    dom_content_loaded_s = _seconds("dom", "Seconds until the page was parsed.")
    load_s = _seconds("load", "Seconds until the page and its parts had loaded.")
    fcp_s = _seconds("fcp", "Seconds to the first contentful paint.")
    lcp_s = _seconds("lcp", "Seconds to the largest contentful paint so far.")
    inp_s = _seconds("inp", "Seconds from an interaction to the next paint; None without one.")

    @property
    def cls(self) -> float | None:
        """The cumulative layout shift so far."""
        found: float | None = self._seen("cls")
        return found

    @property
    def status(self) -> int:
        """The HTTP status of the page."""
        return int(self._seen("status") or 0)

    @property
    def url(self) -> str:
        """The address of the page in the end, after redirects and clicks."""
        return str(self._seen("url") or "")

    @property
    def title(self) -> str:
        """The title of the page in the end."""
        return str(self._seen("title") or "")

    @property
    def requests(self) -> int:
        """How many requests the page has made, itself included."""
        return int(self._seen("requests") or 0)

    def _seen(self, name: str) -> Any:
        return self.value.get(name) if isinstance(self.value, dict) else None

    def __repr__(self) -> str:
        return f"<PlaywrightResult {self.status} {self.url} {self.title!r}>"
