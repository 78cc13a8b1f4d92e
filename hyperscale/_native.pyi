"""The Rust half: histograms, the recorder, the HTTP engine, process guards."""

from collections.abc import Callable
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
    tuple[int, int, int, int, int, int, int, int],  # total ok failed cut skipped sent bytes_sent bytes_received
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
    def snapshot(self, histograms: bool = False, series_from: int | None = None) -> list[StepSnapshot]:
        """Cumulative state. `series_from` limits the series to seconds from there on."""

def guard_process(control_fd: int, parent_pid: int) -> None:
    """Ties this process group's life to its parent and to the peer of its control socket."""
