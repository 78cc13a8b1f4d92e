"""The Rust half: histograms, the recorder, the HTTP engine, process guards."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Generator
from typing import Any, final

@final
class Histogram:
    """Nanoseconds, 100 ns to 1 h, three significant digits."""

    def __init__(self) -> None: ...
    def record(self, value_ns: int, count: int = 1) -> None: ...
    def merge(self, other: Histogram) -> None: ...
    def reset(self) -> None: ...
    def copy(self) -> Histogram: ...
    @property
    def count(self) -> int: ...
    @property
    def min_ns(self) -> int: ...
    @property
    def max_ns(self) -> int: ...
    @property
    def mean_ns(self) -> float: ...
    @property
    def stdev_ns(self) -> float: ...
    def quantile_ns(self, q: float) -> int: ...
    def encode(self) -> bytes: ...
    @staticmethod
    def decode(payload: bytes) -> Histogram: ...

StepSnapshot = tuple[
    # total ok failed cut skipped sent bytes_sent bytes_received
    tuple[int, int, int, int, int, int, int, int],
    dict[int, int],  # status codes
    dict[str, int],  # error classes
    bytes | None,  # latency histogram, with histograms=True
    dict[str, bytes] | None,  # phase histograms, with histograms=True
    list[tuple[int, int, int, bytes]],  # series: second, total, failed, latency
]

@final
class Recorder:
    """Counts and histograms of the steps of one workflow on one executor."""

    def __init__(self, steps: int) -> None: ...
    def begin(self) -> None:
        """Sets second 0 of the series to now."""
    def record(
        self,
        step: int,
        ok: bool,
        latency_ns: int | None = None,
        status: int | None = None,
        error: str | None = None,
    ) -> None: ...
    def record_exchange(self, step: int, exchange: Exchange, accepted: bool) -> bool:
        """Counts an HTTP exchange; `accepted` lets a status of 400 or more pass. True if ok."""
    def add_cut(self, step: int, count: int = 1) -> None: ...
    def add_skipped(self, step: int, count: int = 1) -> None: ...
    def add_sent(self, step: int, requests: int, bytes_sent: int, bytes_received: int) -> None: ...
    def snapshot(
        self, histograms: bool = False, series_from: int | None = None
    ) -> list[StepSnapshot]:
        """Cumulative state. `series_from` limits the series to seconds from there on."""

@final
class Exchange:
    """One finished HTTP call. `status` is 0 and `error` set when no response arrived."""

    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]: ...
    def header(self, name: str) -> str | None: ...
    @property
    def body(self) -> bytes: ...
    @property
    def version(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def request_head(self) -> str: ...
    @property
    def request_body(self) -> bytes: ...
    @property
    def redirects(self) -> int: ...
    @property
    def error(self) -> str | None: ...
    @property
    def error_detail(self) -> str | None: ...
    @property
    def latency_ns(self) -> int: ...
    @property
    def blocked_ns(self) -> int | None: ...
    @property
    def connect_ns(self) -> int | None: ...
    @property
    def tls_ns(self) -> int | None: ...
    @property
    def first_byte_ns(self) -> int | None: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def remote(self) -> str | None: ...
    @property
    def tls_version(self) -> str | None: ...
    @property
    def tls_cipher(self) -> str | None: ...

@final
class Tls:
    """How connections are secured. Raises ValueError for PEM that cannot be used."""

    def __init__(
        self,
        verify: bool = True,
        ca_pem: bytes | None = None,
        cert_pem: bytes | None = None,
        key_pem: bytes | None = None,
    ) -> None: ...

@final
class Template:
    """A request, rendered once and sent many times. Raises ValueError for what HTTP forbids."""

    def __init__(
        self,
        method: str,
        url: str,
        headers: list[tuple[str, str]],
        body: bytes | None = None,
        content_type: str | None = None,
        *,
        chunked: bool = False,
        connect_timeout_s: float,
        read_timeout_s: float,
        total_timeout_s: float,
        redirects_max: int,
        body_bytes_max: int,
        tls: Tls | None = None,
    ) -> None: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def url(self) -> str: ...

@final
class Engine:
    """Many HTTP exchanges on the loop's thread; the loop watches `fileno` and calls `poll`."""

    def __init__(
        self,
        recorder: Recorder,
        event_loop: AbstractEventLoop,
        response_type: Callable[[Exchange], object],
        error_type: Callable[[Exchange], BaseException],
        *,
        connections: str = "per-vu",
        connecting_max: int = 256,
        shared_max: int = 128,
    ) -> None: ...
    def fileno(self) -> int: ...
    def poll(self) -> int: ...
    def pin(self, template: Template, addresses: list[str]) -> None: ...
    def send(self, template: Template, vu: int, step: int, sees_body: bool) -> Call: ...
    def abort_all(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def connections(self) -> int: ...

@final
class Call(Coroutine[Any, Any, Any]):
    """A request under way: awaited like a coroutine, and a future to asyncio."""

    def __await__(self) -> Generator[Any, None, Any]: ...
    def send(self, value: None, /) -> Any: ...
    def throw(self, *error: Any) -> Any: ...
    def close(self) -> None: ...
    def cancel(self, msg: object = None) -> bool: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self) -> Any: ...
    def exception(self) -> BaseException | None: ...

@final
class Program:
    """A workflow of only static steps, looped natively in slices.

    `layers` hold (template, recorder row, positions it depends on, accepted statuses).
    """

    def __init__(
        self,
        recorder: Recorder,
        layers: list[list[tuple[Template, int, list[int], list[int]]]],
        vus: int,
        *,
        iterations: int | None = None,
        connections: str = "per-vu",
        connecting_max: int = 256,
        shared_max: int = 128,
    ) -> None: ...
    def pin(self, template: Template, addresses: list[str]) -> None: ...
    def run(self, slice_s: float) -> bool:
        """Runs up to `slice_s` with the interpreter released; False once all have stopped."""
    def stop_in(self, in_s: float) -> None:
        """After `in_s` nothing new begins."""
    def lease_in(self, in_s: float) -> None:
        """After `in_s` nothing new begins, unless this is called again before."""
    def cut(self) -> None:
        """Drops what is under way and counts it as cut."""
    @property
    def active(self) -> int: ...
    @property
    def iterations(self) -> int: ...

def resolve(host: str, port: int) -> list[str]:
    """Every address of a host as "ip:port". Raises OSError when it has none."""

def guard_process(control_fd: int, parent_pid: int) -> None:
    """Ties this process group's life to its parent and to the peer of its control socket."""

@final
class Target:
    """The built-in target server, on its own native threads from construction to `stop`.

    Raises `OSError` when it cannot listen and `ValueError` for a host, certificate or number
    of threads it cannot use.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        threads: int = 1,
        tls_cert_pem: bytes | None = None,
        tls_key_pem: bytes | None = None,
        tls_client_ca_pem: bytes | None = None,
    ) -> None: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    def counts(self) -> str:
        """What `/counts` answers: JSON."""
    def reset(self) -> None: ...
    def stop(self) -> None: ...

def self_signed(names: list[str]) -> tuple[str, str]:
    """A certificate for these host names or addresses, and its key, in PEM."""
