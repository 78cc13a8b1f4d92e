"""The Rust half: histograms, the recorder, the HTTP engine, process guards, the ledger's core."""

from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Coroutine, Generator, Sequence
from os import PathLike
from typing import Any, Self, final

@final
class Histogram:
    """Nanoseconds, 100 ns to 1 h, three significant digits."""

    def __init__(self) -> None: ...
    def record(self, value_ns: int, count: int = 1) -> None: ...
    def merge(self, other: Histogram) -> None: ...
    @staticmethod
    def merged(payloads: list[bytes]) -> Histogram:
        """Merge encoded histograms. Raises ValueError if one of them cannot be decoded."""
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
    def encode(self) -> bytes:
        """HdrHistogram V2, plain: fast to encode and to merge."""
    def encode_deflated(self) -> bytes:
        """HdrHistogram V2, deflated: the form that HdrHistogram tools read."""
    @staticmethod
    def decode(payload: bytes) -> Histogram:
        """Decode HdrHistogram V2, plain or deflated."""

@final
class Recorder:
    """Counts and histograms of the steps of one workflow on one executor."""

    def __init__(self, steps: int) -> None: ...
    def begin(self, warmup_s: float = 0.0) -> None:
        """Set second 0 of the series to now; what begins within the warm-up is not counted."""
    def record(
        self,
        step: int,
        ok: bool,
        latency_ns: int | None = None,
        status: int | None = None,
        error: str | None = None,
        *,
        message: str | None = None,
        trace: str = "",
        service_ns: int | None = None,
        request: str = "",
        blocked_ns: int | None = None,
        connect_ns: int | None = None,
    ) -> None:
        """Count a finished call. `message`, `trace` and `request` say why it failed and what it
        was; calls that failed with the same message, numbers and ids aside, are counted
        together."""
    def set_secrets(self, secrets: Sequence[str]) -> None:
        """Set the values that no message and no sample of a failure may show."""
    def record_exchange(self, step: int, exchange: Exchange, accepted: bool) -> bool:
        """Count an HTTP exchange; `accepted`: a status of 400 or more is ok. Return True if ok."""
    def record_exchange_since(
        self, step: int, exchange: Exchange, accepted: bool, due_ns: int
    ) -> bool:
        """Count an HTTP exchange whose latency counts from when it was due."""
    def end_iteration(self, began_ns: int) -> bool:
        """Count an iteration that ends now. False if it belongs to the warm-up."""
    def add_arrival(self, due_ns: int) -> None:
        """Count an arrival that begins now."""
    def add_dropped(self, due_ns: int, count: int = 1) -> None:
        """Count arrivals that were due and did not begin."""
    @property
    def counted_from_ns(self) -> int:
        """What began before this time of the monotonic clock is the warm-up; 0: there is none."""
    @property
    def ended_iterations(self) -> int:
        """Iterations that ended, those of the warm-up included."""
    def add_none(self, step: int) -> None:
        """Count a call that returned None, as its step may."""
    def add_cut(self, step: int, count: int = 1) -> None: ...
    def add_skipped(self, step: int, count: int = 1) -> None: ...
    def add_sent(self, step: int, requests: int, bytes_sent: int, bytes_received: int) -> None: ...
    @property
    def longest_ns(self) -> int | None:
        """The longest latency of any step; None if nothing was timed."""
    def report(
        self,
        names: Sequence[str],
        *,
        workflow: str,
        slot: int,
        sequence: int,
        elapsed_s: float,
        vus: int = 0,
        histograms: bool = False,
        series_from: int = 0,
        offset_s: int = 0,
        checks: Sequence[CheckReport] = (),
        metrics: Sequence[MetricReport] = (),
        cpu_s: float = 0.0,
        loop_lag_s: float = 0.0,
        rss_bytes: int = 0,
        cpu_wait_s: float = 0.0,
        loop_s: float = 0.0,
        raised: int = 0,
    ) -> Report:
        """Return a report of everything counted so far; the steps have these names, in order. With
        `histograms` it has histograms and the seconds from `series_from` on, `offset_s` added."""

@final
class StepCounts:
    """What became of the requests of one step."""

    @property
    def total(self) -> int:
        """ok + failed"""
    @property
    def ok(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def held(self) -> int:
        """Calls whose latency contains time in which the test's own code held the event loop."""
    @property
    def none(self) -> int:
        """Calls of a step that returned None, as it may: not in `total`."""
    @property
    def cut(self) -> int:
        """Stopped at the deadline: neither ok nor failed."""
    @property
    def skipped(self) -> int:
        """Not run because a step it depends on raised."""
    @property
    def sent(self) -> int:
        """Requests handed to the kernel whole, hops and unanswered calls included."""
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def status_codes(self) -> dict[int, int]: ...
    @property
    def errors(self) -> dict[str, int]: ...

@final
class CheckReport:
    def __init__(
        self, *, name: str, passed: int = 0, failed: int = 0, first_failure: str | None = None
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def passed(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def first_failure(self) -> str | None: ...

@final
class MetricReport:
    """A custom metric on one executor."""

    def __init__(
        self,
        *,
        name: str,
        kind: str,
        count: int = 0,
        sum: float = 0.0,  # noqa: A002 - as it is called everywhere
        min: float = 0.0,  # noqa: A002 - as it is called everywhere
        max: float = 0.0,  # noqa: A002 - as it is called everywhere
        last: float = 0.0,
        distribution: bytes | None = None,
    ) -> None:
        """`distribution`: histogram of value * 1e6, for the kinds that sample."""
    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def sum(self) -> float: ...
    @property
    def min(self) -> float: ...
    @property
    def max(self) -> float: ...
    @property
    def last(self) -> float: ...
    @property
    def distribution(self) -> bytes | None: ...

@final
class HoldReport:
    """How often and how long one hook held the event loop, for 10 ms or more each time."""

    @property
    def name(self) -> str:
        """Of the hook, or of another function."""
    @property
    def count(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def max_s(self) -> float: ...
    @property
    def cpu_s(self) -> float:
        """CPU time it used meanwhile."""
    @property
    def location(self) -> str:
        """File and line of one of them."""

@final
class LoopWatch:
    """Watches the event loop of the thread that makes it, from a thread of its own, and adds to
    the recorder what holds it for 10 ms or more."""

    def __init__(
        self, recorder: Recorder, find_holder: Callable[[], tuple[str, str, int] | None]
    ) -> None:
        """`find_holder` is called on the watching thread. It returns the name and the place of
        the code that the loop's thread runs, and a number of its task; None if that is no code of
        the test."""
    def fileno(self) -> int:
        """Readable when the loop has to call `answer`."""
    def answer(self) -> None: ...
    def stop(self) -> None: ...

@final
class MetricTotal:
    """A custom metric over all parts."""

    @property
    def count(self) -> int: ...
    @property
    def sum(self) -> float: ...
    @property
    def min(self) -> float: ...
    @property
    def max(self) -> float: ...
    @property
    def last(self) -> float:
        """The value reported furthest into the run."""
    @property
    def distribution(self) -> Histogram | None: ...

@final
class Window:
    """What finished within `seconds` seconds from `begins_s` on."""

    @property
    def begins_s(self) -> int: ...
    @property
    def seconds(self) -> int: ...
    @property
    def step_s(self) -> int:
        """How much later the next window begins."""
    @property
    def total(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def latency(self) -> Histogram: ...

class SeriesValue:
    """One interval of a time series; percentiles are None if nothing was timed in it."""

    @property
    def at_s(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def sent(self) -> int: ...
    @property
    def p50_ms(self) -> float | None: ...
    @property
    def p90_ms(self) -> float | None: ...
    @property
    def p95_ms(self) -> float | None: ...
    @property
    def p99_ms(self) -> float | None: ...

@final
class Report:
    """Everything one slot, or one part, of a workflow has counted so far. Immutable, cumulative
    and sequenced. Encoded it is a MessagePack map; keys of a newer version are carried on."""

    @staticmethod
    def decode(data: bytes) -> Report:
        """Raises ValueError if the data is not a well-formed report."""
    def encode(self) -> bytes: ...
    def shed(self, bytes_max: int) -> Report:
        """The report with less detail, until it has at most `bytes_max` when encoded: as
        `shed_reports`."""
    def bounded_for_log(self, parts: int) -> Report:
        """The final report of a part, small enough for the log to hold those of all parts: older
        seconds lose their histograms, then get wider. Counts stay."""
    @property
    def workflow(self) -> str: ...
    @property
    def slot(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def elapsed_s(self) -> float: ...
    @property
    def vus(self) -> int:
        """Virtual users now looping."""
    @property
    def iterations(self) -> int: ...
    @property
    def raised(self) -> int:
        """Iterations in which the test's own code raised."""
    @property
    def cpu_s(self) -> float:
        """CPU time of the executor since the workflow began."""
    @property
    def loop_lag_s(self) -> float:
        """Worst delay of the executor's loop since the report before."""
    @property
    def rss_bytes(self) -> int: ...
    @property
    def cpu_wait_s(self) -> float:
        """Time the executor was ready to run and waited for a core, since the workflow began."""
    @property
    def held_s(self) -> float:
        """Time in which code of the test held the executor's loop."""
    @property
    def series_s(self) -> int:
        """Seconds that the widest point of the series stands for."""
    @property
    def sent(self) -> int:
        """Requests handed to the kernel; finished steps where a protocol counts no requests."""
    @property
    def actions(self) -> int:
        """Finished calls of steps, those that returned None included."""
    @property
    def failed(self) -> int:
        """Finished calls of steps that failed."""
    @property
    def finished(self) -> int:
        """Finished steps and iterations: the measure of progress."""
    @property
    def has_histograms(self) -> bool: ...

def shed_reports(reports: Sequence[bytes], bytes_max: int) -> list[bytes]:
    """The reports with less detail, until they have at most `bytes_max` together: histograms of
    old seconds go first, then phases, histograms of the whole and the seconds; counts stay.
    Raises ValueError if one of them is not a report."""

@final
class FailureRow:
    """Calls of a step that failed with one message, and a sample of them."""

    @property
    def error(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def has_sample(self) -> bool: ...
    @property
    def request(self) -> str:
        """Method and URL; empty if the call was no request."""
    @property
    def status(self) -> int: ...
    @property
    def latency_ns(self) -> int: ...
    @property
    def phases_ns(self) -> dict[str, int]: ...
    @property
    def headers(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def trace(self) -> str:
        """Where the test's own code raised."""

class ReportMerge:
    """Merges the reports of any number of slots or parts of one workflow. Reports may come in any
    order, repeatedly or not at all: the state is that of the highest sequence of each attempt."""

    def __new__(
        cls,
        workflow: str,
        steps: Sequence[str],
        *,
        headline: Sequence[str] = (),
        senders: Sequence[str] = (),
        checks: Sequence[str] = (),
    ) -> Self:
        """The parts of a workflow with these steps. Calls and latencies of the `headline` steps
        stand for the workflow; the requests of all `senders` are its load."""
    @staticmethod
    def of_part(workflow: str, *, recent_s: int, histograms_max: int) -> ReportMerge:
        """The executors of one part, with any steps. The newest `recent_s` seconds stay single;
        the histograms of older ones are merged if there are at most `histograms_max`."""
    def apply(
        self, report: Report | bytes, *, attempt: int = 0, parts: int | None = None
    ) -> Report | None:
        """Merge one report and return it; None if it is not newer than the last of its slot and
        attempt. With `parts`, the number of parts of the workflow, the seconds of the attempt are
        kept for `last_report`, bounded so that those of all parts fit. Raises ValueError, and
        changes nothing, if the report cannot be read, is of another workflow, or has a step that
        the plan does not have."""
    @property
    def version(self) -> int:
        """Grows with every report."""
    @property
    def parts(self) -> int:
        """Attempts that have reported."""
    @property
    def histograms(self) -> int:
        """How many step histograms a merge of all parts takes."""
    @property
    def elapsed_s(self) -> float: ...
    @property
    def finished_s(self) -> int:
        """Seconds that every part has reported whole; at most two behind the foremost part."""
    @property
    def vus(self) -> int:
        """Virtual users now looping: those of the latest attempt of each slot."""
    def users(self) -> list[tuple[int, int]]:
        """Virtual users over time: second of the workflow, users looping from then on."""
    @property
    def iterations(self) -> int: ...
    @property
    def raised(self) -> int:
        """Iterations in which the test's own code raised."""
    def failures(self, step: str) -> tuple[list[FailureRow], int]:
        """Distinct messages of failed calls, and how many calls failed with other messages."""
    def counts(self, step: str) -> StepCounts: ...
    def headline_counts(self) -> StepCounts: ...
    def load_counts(self) -> StepCounts:
        """The `senders` together."""
    def total_counts(self) -> StepCounts:
        """All steps together, setup and teardown included."""
    def latency(self, step: str) -> Histogram:
        """The step's histogram over all parts. Shared: copy it before you change it."""
    def headline_latency(self) -> Histogram: ...
    def cut(self, step: str) -> Histogram:
        """How long the requests of the step that were cut had taken."""
    def service(self, step: str) -> Histogram:
        """Latencies from the send, where others count from when a call was due."""
    def phases(self, step: str) -> dict[str, Histogram]:
        """By phase, only those that happened. Decoded on every call: for results, not views."""
    @property
    def series_interval_s(self) -> int: ...
    def series(self, step: str) -> list[SeriesValue]: ...
    def headline_series(self, until_s: int | None = None) -> list[SeriesValue]:
        """The headline steps together, with the requests of all senders, in intervals that end by
        `until_s`."""
    def window(self, steps: Sequence[str], *, from_s: int, span_s: int) -> Window:
        """These steps together over `span_s` seconds from `from_s` on. Of seconds more than 10
        minutes ago only wider cells are left: the window begins with the next one of them."""
    def checks(self) -> list[CheckReport]:
        """Every check of the plan and any other that was reported, in that order."""
    def holds(self) -> list[HoldReport]:
        """Who held the loops, by name."""
    @property
    def loop_s(self) -> float:
        """How long virtual users ran, summed over executors."""
    def metric_total(self, name: str) -> MetricTotal: ...
    def merged(
        self,
        *,
        slot: int,
        sequence: int,
        histograms: bool = False,
        phases: bool = False,
        seconds: int = 0,
    ) -> Report | None:
        """All parts as one report; None before the first report. `seconds`: how many seconds of
        each step go along, the newest of those that were not acknowledged."""
    def whole(self, *, slot: int, sequence: int, points_max: int) -> Report | None:
        """All parts as one report with all histograms and seconds, for a receiver that has none:
        at most `points_max` seconds of all steps with histograms, ten times as many without."""
    def acknowledge(self) -> None:
        """Note that the receiver has the seconds of the last merged report."""
    def retell(self) -> None:
        """Note that the receiver is new and has no seconds yet."""
    def latest(self, slot: int, attempt: int) -> Report | None:
        """The latest report of an attempt, as it came."""
    def checkpoint(self, slot: int, attempt: int) -> bytes:
        """The latest report of an attempt with its latest histograms, without phases and seconds;
        empty if the attempt has not reported."""
    def last_report(self, slot: int, attempt: int) -> bytes:
        """The checkpoint of an attempt with its phases and the seconds it has reported."""
    def end_attempt(self, slot: int, attempt: int) -> None:
        """Free the seconds kept of an attempt for `last_report`."""

@final
class Exchange:
    """One finished HTTP call. `status` is 0 and `error` set when no response arrived."""

    @property
    def step(self) -> int: ...
    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def raw_trailers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def grpc_status(self) -> int | None: ...
    def header(self, name: str) -> str | None: ...
    @property
    def body(self) -> bytes: ...
    @property
    def is_stream(self) -> bool:
        """Whether it was a call on a stream: it has messages, and mostly no head."""
    @property
    def messages(self) -> list[str | bytes]: ...
    @property
    def message_times_ns(self) -> list[int]:
        """When each message arrived, since the call began."""
    @property
    def close_reason(self) -> tuple[int, str] | None:
        """The code and the reason that the server closed a stream with."""
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
    def hops(self) -> list[Exchange]: ...
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

def replay_http2(
    requests: int, pieces: list[bytes]
) -> tuple[list[tuple[int, bytes, bytes, bytes, str | None]], str | None, int]:
    """What requests on one connection of HTTP/2 receive from these pieces (status, head, body,
    trailers, how it ended), why the connection failed, and the most bytes that waited to be
    written. For fuzzing."""

def replay_websocket(
    bytes_max: int, is_deflating: bool, pieces: list[bytes]
) -> tuple[list[tuple[str, bytes]], str | None]:
    """What a client reads of these pieces on a WebSocket, as kinds and contents, and why it closes
    it. For fuzzing."""

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
class Route:
    """How connections reach their servers. Raises ValueError for what is no address."""

    def __init__(
        self,
        *,
        resolve: list[tuple[str, list[str]]],
        bind: list[str],
        unix_socket: str | None = None,
        proxy: tuple[str, str, int, tuple[str, str] | None] | None = None,
    ) -> None:
        """`proxy` is its kind (http, socks5), host, port, and user and password."""

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
        protocol: str = "http1",
        streams_max: int = 100,
        response_type: type | None = None,
        route: Route | None = None,
        continues: bool = False,
    ) -> None:
        """`protocol` is http1, http2, http3, grpc, or auto: what the server chooses by ALPN. A
        connection of HTTP/2 or HTTP/3 carries up to `streams_max` requests at once. With
        `continues`, `Call.push` hands more of the body over."""
    @staticmethod
    def stream(
        verb: str,
        url: str,
        headers: list[tuple[str, str]],
        body: bytes | None = None,
        content_type: str | None = None,
        *,
        response_type: type,
        is_text: bool = False,
        count: int = 1,
        ends_in_time: bool = False,
        until_bytes: int | None = None,
        until: bytes | None = None,
        events: bool = False,
        subprotocols: str | None = None,
        deflate: bool = False,
        close_code: int = 1000,
        close_reason: str = "",
        connect_timeout_s: float,
        read_timeout_s: float,
        total_timeout_s: float,
        body_bytes_max: int,
        tls: Tls | None = None,
        route: Route | None = None,
    ) -> Template:
        """A call on a stream: `verb` is OPEN, SEND, RECEIVE, EXCHANGE, PING or CLOSE, or the method
        of an HTTP request whose body is cut into messages. `response_type` is made as that of the
        engine. With `ends_in_time`, time that is up ends the call well."""
    def with_message(self, payload: bytes, is_text: bool) -> Template:
        """The same call with another message."""
    @property
    def unresolved(self) -> tuple[str, int] | None:
        """Host and port to look up before a connection can be opened, the server's or a proxy's."""
    @property
    def url(self) -> str: ...

@final
class Engine:
    """Many HTTP exchanges on the loop's thread; the loop watches `fileno` and calls `poll`."""

    def __init__(
        self,
        recorder: Recorder,
        event_loop: AbstractEventLoop,
        response_type: type,
        error_type: Callable[[Exchange], BaseException],
        *,
        trace: Callable[[Exchange], object] | None = None,
        connections: str = "per-vu",
        connecting_max: int = 256,
        shared_max: int = 128,
        kernel_times: bool = True,
    ) -> None:
        """`response_type` is made without a call of `__init__`: its attribute `exchange` is set.
        `kernel_times`: latencies end when the kernel received a response, not when it was read."""
    def fileno(self) -> int: ...
    def poll(self) -> int: ...
    def pin(self, template: Template, addresses: list[str]) -> None: ...
    def send(
        self,
        template: Template,
        vu: int,
        step: int,
        sees_body: bool,
        on_part: Callable[[bytes], object] | None = None,
    ) -> Call:
        """Begin a request. `on_part` is called with every piece of the body, as it arrives."""
    def halt(self) -> None:
        """Write nothing more. Only sets a flag, so a signal handler may call it."""
    def resume(self) -> None:
        """Write again, first what was held back."""
    def cut_all(self) -> int:
        """Drop every request and note how long each had taken; callers are cancelled."""
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
    def push(self, data: bytes) -> None:
        """Hand a piece of the body over; an empty one ends it. Raises ConnectionError if the call
        has ended."""
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def add_done_callback(
        self, callback: Callable[[Any], object], *, context: object = None
    ) -> None: ...
    def result(self) -> Any: ...
    def exception(self) -> BaseException | None: ...

@final
class Sender:
    """Sends the requests of a hub's clients, counted for the step that makes them."""

    def __init__(
        self, engine: Engine, get_step: Callable[[Any], Any], no_step: object, *, sees_all: bool
    ) -> None:
        """`get_step` returns the scope of the step that makes a call, or `no_step`."""
    def __call__(
        self,
        template: Template,
        vu: int,
        needs_body: bool,
        on_part: Callable[[bytes], object] | None = None,
        /,
    ) -> Coroutine[Any, Any, Any]:
        """Send a request of a virtual user; True keeps the body even if no step can see it.
        `on_part` is called with every piece of the body, as it arrives."""
    def replace(self, function: Callable[..., Any]) -> None:
        """Call this for every request, instead of an engine."""
    def resume(self, engine: Engine) -> None:
        """Send by an engine again."""

@final
class UserProgram:
    """What the loops of a slot's virtual users share. `program` is a `StepProgram`."""

    def __init__(
        self,
        recorder: Recorder,
        event_loop: AbstractEventLoop,
        program: object,
        *,
        response_type: type,
        set_step: Callable[[Any], object],
        outcomes: object,
        tallies: object,
        feeds: object,
        choices: object,
        iterations: int | None,
        is_open: bool,
        is_once: bool,
        wait: Callable[..., Coroutine[Any, Any, Any]],
        run_layer: Callable[..., Coroutine[Any, Any, int]],
        judge: Callable[..., Coroutine[Any, Any, None]],
        reject: Callable[..., None],
        fail_check: Callable[..., None],
        forgive: Callable[[BaseException], None],
        remember: Callable[..., None],
    ) -> None:
        """The functions do what the loop leaves to Python; `set_step` sets the scope of a step."""
    def take_passed(self) -> list[int]:
        """Return how often each check has passed since this was asked last."""
    def set_pacing(self, pacing: object) -> None:
        """Have users wait for their iterations; None: they loop without a pause."""
    def stop(self) -> None:
        """Start no more steps."""
    def cut(self) -> None:
        """Count no more outcomes."""
    @property
    def is_stopping(self) -> bool: ...
    @property
    def is_cut(self) -> bool: ...

@final
class UserLoop(Coroutine[Any, Any, None]):
    """The loop of one virtual user: the coroutine of its task."""

    def __init__(self, program: UserProgram, crew: object, user: object) -> None: ...
    def bind(self, task: Task[None]) -> None:
        """Name the task that runs this, before its first step."""
    def take_running(self) -> int | None:
        """Return the step in flight, which is then no longer counted as one."""
    def __await__(self) -> Generator[Any]: ...
    def send(self, value: None, /) -> Any: ...
    def throw(self, *error: Any) -> Any: ...
    def close(self) -> None: ...

@final
class Program:
    """A workflow of only static steps, looped natively in slices.

    `layers` hold (its template or one for each row of a feed, the number of that feed, recorder
    row, positions it depends on, accepted statuses).
    """

    def __init__(
        self,
        recorder: Recorder,
        layers: list[list[tuple[list[Template], int | None, int, list[int], list[int]]]],
        vus: int,
        *,
        iterations: int | None = None,
        connections: str = "per-vu",
        connecting_max: int = 256,
        shared_max: int = 128,
    ) -> None: ...
    def pin(self, template: Template, addresses: list[str]) -> None: ...
    def draw(
        self,
        choices: list[tuple[int, list[float], list[list[int]]]],
        feeds: list[tuple[str, bool, int, int, int]],
        *,
        slots: int,
        slot: int,
        first_vu: int,
        drawn: int = 0,
        users_before: int = 0,
        limit: int | None = None,
    ) -> None:
        """Lets every iteration draw one of its alternatives and take rows of feeds.

        A choice is (seed, where the share of each alternative ends, the positions that do not run
        if it is chosen), a feed (take, whether a user has one row for good, the first row, rows,
        seed). `drawn` iterations and `users_before` users of earlier attempts have had their rows;
        with `limit`, no more than so many iterations are drawn for."""

    def grant_rows(self, limit: int) -> None:
        """Lets the slot draw for up to `limit` iterations, those of earlier attempts included."""

    @property
    def drawn(self) -> int:
        """Iterations that were drawn for, those of earlier attempts included."""

    @property
    def short_of_rows(self) -> int:
        """Users that wait until the slot may use more rows."""

    def resize(self, vus: int) -> None:
        """Makes room for more users."""
    def pace(
        self,
        *,
        begins_at_s: float = 0.0,
        place_s: float = 0.0,
        interval_s: float | None = None,
        phases_s: list[float] = ...,
        think_s: tuple[float, float] | None = None,
        seed: int = 0,
        changes: list[tuple[float, int]] = ...,
        iterations_per_vu: int | None = None,
    ) -> None:
        """Paces the users. The slot began at `begins_at_s` of its shape and is at `place_s` now."""
    def pace_arrivals(
        self,
        stages: list[tuple[float, float]],
        slots: int,
        slot: int,
        *,
        begins_at_s: float = 0.0,
        place_s: float = 0.0,
        missed_from_s: float | None = None,
        seed: int | None = None,
        phase: float = 0.0,
    ) -> None:
        """Begins iterations as arrivals are due. The slot began at `begins_at_s` of its shape, and
        is at `place_s` now; arrivals due from `missed_from_s` up to its beginning are dropped."""
    def change(self, changes: list[tuple[float, int]], *, place_s: float) -> None:
        """Changes when how many users loop. The slot is at `place_s` of its shape now."""
    def change_arrivals(self, stages: list[tuple[float, float]], *, place_s: float) -> None:
        """Changes the stages of the arrivals. The slot is at `place_s` of its shape now."""
    def pause(self) -> None:
        """Nothing begins until the next change."""
    def end_in(self, in_s: float | None) -> None:
        """After `in_s` nothing new begins; None: until it is called again. A later call may put it
        off."""
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

def arrival_times(
    stages: list[tuple[float, float]],
    slots: int,
    slot: int,
    *,
    seed: int | None = None,
    from_s: float = 0.0,
    count: int = 1000,
    phase: float = 0.0,
) -> list[float]:
    """The first times at which arrivals of a slot are due, from `from_s` on."""

def resolve(host: str, port: int) -> list[str]:
    """Every address of a host as "ip:port". Raises OSError when it has none."""

def mask_header(name: str, value: str) -> str:
    """The value of a header with its credentials masked, also those in a URL or a query. Without a
    name: the target of a request."""

def confine(read: list[str], write: list[str]) -> str:
    """Leaves this process and what it starts the files below these paths, signals among themselves,
    and no capability. Returns what the kernel enforces of the first two: "full", "partial", "none".
    """

def guard_process(control_fd: int, parent_pid: int) -> None:
    """Ties this process group's life to its parent and to the peer of its control socket."""

@final
class KeyExchange:
    """One side of Noise `NNpsk0`: each side writes one message and reads one, the dialer first."""

    def __init__(self, psk: bytes, context: bytes, *, is_dialer: bool) -> None: ...
    def write(self) -> bytes: ...
    def read(self, message: bytes) -> None:
        """Raise ValueError if the message was written under another secret or was altered."""
    def keys(self) -> tuple[bytes, bytes]:
        """The key for what the dialer sends, and the key for what the acceptor sends."""

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
        *,
        tcp_port: int | None = None,
        udp_port: int | None = None,
        http3_port: int | None = None,
    ) -> None:
        """Connections to `tcp_port` and datagrams to `udp_port`, if given, are echoed. HTTP/3 is
        served on `http3_port`, which needs a certificate."""
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def tcp_port(self) -> int | None: ...
    @property
    def udp_port(self) -> int | None: ...
    @property
    def http3_port(self) -> int | None: ...
    def counts(self) -> str:
        """What `/counts` answers: JSON."""
    def reset(self) -> None: ...
    def stop(self) -> None: ...

def self_signed(names: list[str]) -> tuple[str, str]:
    """A certificate for these host names or addresses, and its key, in PEM."""

# --- the ledger --------------------------------------------------------------------------

class LedgerError(Exception):
    """Consensus or its store failed."""

class LedgerOutdatedError(LedgerError):
    """The store has less than this node has acknowledged: it is an older copy."""

class LedgerBrokenError(LedgerError):
    """The consensus core cannot go on."""

class LedgerLockedError(LedgerError):
    """Another process uses the store."""

class LedgerDamagedError(LedgerError):
    """The file of the store is damaged."""

class LedgerNewerError(LedgerError):
    """A newer version of Hyperscale wrote the store."""

_Entry = tuple[int, int, int, bytes]  # index, term, kind, data
_Snapshot = tuple[int, int, bytes, bytes]  # index, term, voters (encoded), data
_Seats = tuple[list[int], list[int], list[int]]  # voters, outgoing voters, learners
_Standing = tuple[int, int, str, int, int, int]  # group, term, role, leader, commit, applied
_History = tuple[str, int, int, int, str, bytes]  # job, group, index, stamp in ms, kind, data

@final
class GroupImage:
    def __new__(
        cls,
        group: int,
        hard: tuple[int, int, int],
        snapshot: _Snapshot,
        entries: Sequence[_Entry],
    ) -> GroupImage: ...
    @staticmethod
    def first(group: int, voters: Sequence[int], data: bytes) -> GroupImage: ...
    @staticmethod
    def empty(group: int) -> GroupImage: ...
    @property
    def group(self) -> int: ...
    @property
    def hard(self) -> tuple[int, int, int]: ...
    @property
    def snapshot(self) -> _Snapshot: ...
    @property
    def entries(self) -> list[_Entry]: ...

@final
class WriteBatch:
    @property
    def number(self) -> int: ...
    @property
    def groups(
        self,
    ) -> list[tuple[int, tuple[int, int, int], list[_Entry], _Snapshot | None]]: ...

@final
class Turn:
    @property
    def outbox(self) -> list[tuple[int, bytes]]: ...
    @property
    def snapshots(self) -> list[tuple[int, int, int, bytes]]: ...
    @property
    def write(self) -> WriteBatch | None: ...
    @property
    def committed(self) -> list[tuple[int, int, int, int, bytes, _Seats | None]]: ...
    @property
    def restored(self) -> list[tuple[int, int, bytes]]: ...
    @property
    def reads(self) -> list[tuple[int, int, int]]: ...
    @property
    def standings(self) -> list[_Standing]: ...
    @property
    def snapshots_wanted(self) -> list[int]: ...
    @property
    def more(self) -> bool: ...

@final
class MultiRaft:
    def __new__(
        cls, node: int, seed: int, election_ticks: int = 20, heartbeat_ticks: int = 5
    ) -> MultiRaft: ...
    @property
    def node(self) -> int: ...
    def open(self, image: GroupImage) -> None: ...
    def close(self, group: int) -> None: ...
    def groups(self) -> list[int]: ...
    def tick(self) -> None: ...
    def step(self, sender: int, packed: bytes) -> list[int]: ...
    def step_snapshot(self, group: int, message: bytes, data: bytes) -> None: ...
    def propose(self, group: int, entries: Sequence[tuple[int, bytes]]) -> bool: ...
    def configure(
        self,
        group: int,
        *,
        voters: Sequence[int] = ...,
        learners: Sequence[int] = ...,
        removed: Sequence[int] = ...,
    ) -> bool: ...
    def read_index(self, group: int, token: int) -> None: ...
    def transfer_leadership(self, group: int, to: int) -> None: ...
    def campaign(self, group: int) -> None: ...
    def request_snapshot(self, group: int) -> None: ...
    def report_unreachable(self, peer: int) -> None: ...
    def report_snapshot(self, group: int, peer: int, arrived: bool) -> None: ...
    def compact(
        self, group: int, index: int, data: bytes, trailing: int
    ) -> tuple[_Snapshot, int]: ...
    def snapshot_data(self, group: int, index: int) -> bytes | None: ...
    def standing(self, group: int) -> _Standing: ...
    def progress(self, group: int) -> list[tuple[int, int, bool]]: ...
    def seats(self, group: int) -> _Seats: ...
    def quiet_ticks(self, group: int) -> int: ...
    def log_size(self, group: int) -> tuple[int, int]: ...
    def persisted(self, number: int) -> None: ...
    def turn(self) -> Turn: ...

@final
class LedgerStore:
    def __new__(cls, directory: str | PathLike[str]) -> LedgerStore: ...
    def fileno(self) -> int: ...
    def durable(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    def figures(self) -> tuple[int, int, int, Histogram]: ...
    def write(self, batch: WriteBatch) -> int: ...
    def save_snapshot(self, group: int, image: _Snapshot, keep_from: int) -> int: ...
    def create(self, image: GroupImage) -> int: ...
    def destroy(self, group: int) -> int: ...
    def put_meta(self, key: str, value: bytes) -> int: ...
    def add_history(self, rows: Sequence[_History]) -> int: ...
    def prune_history(self, before_ms: int) -> int: ...
    def load(self) -> list[GroupImage]: ...
    def meta(self) -> list[tuple[str, bytes]]: ...
    def history(
        self,
        *,
        job_id: str | None = None,
        group: int | None = None,
        since_ms: int = 0,
        after: tuple[int, int, int] = ...,
        limit: int = 1_000,
    ) -> list[_History]: ...
    def close(self) -> None: ...
