"""Reports as tests write and read them: the wire format of `hyperscale._native.Report` as
Python structs, independent of the native code that reads and merges it."""

import msgspec
from msgspec import Struct, field

from hyperscale._native import Report


class StepCounts(Struct, kw_only=True):
    total: int = 0  # ok + failed
    ok: int = 0
    failed: int = 0
    none: int = 0  # returned None, as the step may
    cut: int = 0  # stopped at the deadline: neither ok nor failed
    skipped: int = 0  # a step it depends on raised
    sent: int = 0  # requests fully handed to the kernel, hops and unreturned calls included
    bytes_sent: int = 0
    bytes_received: int = 0
    held: int = 0  # latencies that contain time in which the event loop was held
    status_codes: dict[int, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


class SeriesPoint(Struct, kw_only=True):
    """One second of one step. `second` counts from the start of the workflow."""

    second: int
    total: int
    failed: int = 0
    sent: int = 0
    latency: bytes = b""  # HdrHistogram V2 of that second; empty if only the counts were kept


class StepReport(Struct, kw_only=True):
    name: str
    counts: StepCounts
    # Histograms travel about once a second; None means "as last reported".
    latency: bytes | None = None
    phases: dict[str, bytes] | None = None  # of each phase and of cut requests
    series: list[SeriesPoint] = field(default_factory=list)  # the newest points, by second


class CheckReport(Struct, kw_only=True):
    name: str
    passed: int = 0
    failed: int = 0
    first_failure: str | None = None


class MetricReport(Struct, kw_only=True):
    name: str
    kind: str
    count: int = 0
    sum: float = 0.0
    min: float = 0.0
    max: float = 0.0
    last: float = 0.0
    distribution: bytes | None = None  # HdrHistogram V2 of value * 1e6, for the two that need it


class HoldReport(Struct, kw_only=True):
    name: str
    count: int = 0
    seconds: float = 0.0
    max_s: float = 0.0
    cpu_s: float = 0.0
    location: str = ""


class PartReport(Struct, kw_only=True):
    """The whole state of one executor's share of one workflow."""

    workflow: str
    slot: int
    sequence: int
    elapsed_s: float
    vus: int  # virtual users now looping
    iterations: int
    steps: list[StepReport]
    users: list[int] = field(default_factory=list)  # second, users from then on, second, …
    checks: list[CheckReport] = field(default_factory=list)
    metrics: list[MetricReport] = field(default_factory=list)
    holds: list[HoldReport] = field(default_factory=list)
    loop_s: float = 0.0  # how long virtual users ran, summed over executors
    cpu_s: float = 0.0  # CPU time of the executor since the workflow began
    loop_lag_s: float = 0.0  # worst delay of the executor's loop since the last report
    rss_bytes: int = 0
    # Time it was ready to run and had to wait for a core, since the workflow began.
    cpu_wait_s: float = 0.0
    # How many seconds the widest point of its series stands for: an old one may be at the start
    # of an interval and hold all of it.
    series_s: int = 1
    raised: int = 0  # iterations in which the test's own code raised


def encoded(report: PartReport) -> bytes:
    return msgspec.msgpack.encode(report)


def native(report: PartReport) -> Report:
    return Report.decode(encoded(report))


def read(report: Report | bytes) -> PartReport:
    data = report if isinstance(report, bytes) else report.encode()
    return msgspec.msgpack.decode(data, type=PartReport)
