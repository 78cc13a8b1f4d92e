"""The result of a run: the one model behind the JSON, every report and the summary.

Field for field what `--json` writes; docs/results.md describes it. The comment beside or above a
field is its description in `schema.json`, which `schema` generates from these types. Fields may be
added within a schema version, never renamed, retyped or removed. Durations are seconds unless the
name says milliseconds. This module knows nothing of how a run is carried out.
"""

from enum import Enum
from typing import Annotated, Any

from msgspec import Meta, Struct

from hyperscale.config import format_duration
from hyperscale.reporting.exit_codes import ExitCode, exit_code_of_run
from hyperscale.stats.attempt_results import (
    NOT_NEGATIVE,
    Amount,
    Count,
    GapResult,
    Ordinal,
    SegmentResult,
    UsageResult,
)
from hyperscale.stats.reasons import Reason

SCHEMA_VERSION = 1


def _schema(**extra: Any) -> Meta:
    """Add to the JSON Schema of a field. Reading a result does not enforce it."""
    return Meta(extra_json_schema=extra)


def _phase(description: str) -> dict[str, Any]:
    names = {"p50": "Median, ms.", "p99": "99th percentile, ms."}
    return {
        "type": "object",
        "properties": {
            name: {"type": "number", "minimum": 0, "description": text}
            for name, text in names.items()
        },
        "additionalProperties": False,
        "description": description,
    }


_PHASES = {
    "blocked": _phase("Waiting for a free connection."),
    "connect": _phase("TCP connect, if a connection was opened."),
    "tls": _phase("TLS handshake, if there was one."),
    "first_byte": _phase("From the request's first byte to the response's first byte."),
}
_Phases = Annotated[
    dict[str, dict[str, float]],
    _schema(properties=_PHASES, required=[*_PHASES], propertyNames={"enum": [*_PHASES]}),
]
_Millis = Annotated[float | None, NOT_NEGATIVE]
_Interval = Annotated[int, _schema(enum=[1, 10, 60, 600, 7200])]
_Version = Annotated[int, _schema(const=SCHEMA_VERSION)]
_StatusCodes = Annotated[dict[str, Ordinal], _schema(propertyNames={"pattern": r"^\d+$"})]
_Histogram = Annotated[str, _schema(contentEncoding="base64", pattern=r"^[A-Za-z0-9+/]*=*$")]
_StepKind = Annotated[str, _schema(enum=["test", "action", "setup", "teardown"])]
_MetricKind = Annotated[str, _schema(enum=["count", "rate", "gauge", "distribution", "timer"])]
_DatacenterStatus = Annotated[
    str,
    _schema(enum=["completed", "partial", "failed", "cancelled", "timeout", "refused", "lost"]),
]
_Time = Annotated[
    str, _schema(format="date-time", pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z$")
]


class RunStatus(Enum):
    """`completed`: ran to its end. `partial`: some workflows did. `failed`: could not be carried
    through. `cancelled`: stopped by its user, or a workflow it depends on failed. `timeout`:
    stopped by the limit on the whole run."""

    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class LatencyMs(Struct, frozen=True, kw_only=True):
    """Milliseconds from the first byte sent to the last byte received, from one merged histogram
    that holds every response and every timeout (at its elapsed time). All null if nothing was
    timed."""

    min: _Millis = None  # Smallest latency.
    mean: _Millis = None  # Arithmetic mean.
    stdev: _Millis = None  # Standard deviation.
    p50: _Millis = None  # Median.
    p90: _Millis = None  # 90th percentile.
    p95: _Millis = None  # 95th percentile.
    p99: _Millis = None  # 99th percentile.
    p999: _Millis = None  # 99.9th percentile.
    max: _Millis = None  # Largest latency.


class SeriesResult(Struct, frozen=True, kw_only=True):
    """The calls that ended within one interval of a run."""

    at_seconds: Count  # Start of the interval, from the start of the workflow.
    total: Count  # Calls that ended in the interval.
    failed: Count  # Calls among them that failed.
    # Requests written in the interval; of a workflow, by all steps but setup and teardown.
    sent: Count = 0
    p50_ms: _Millis = None  # Median latency; null if nothing was timed.
    p99_ms: _Millis = None  # 99th percentile; null if nothing was timed.
    p90_ms: _Millis = None  # 90th percentile; null if nothing was timed.
    p95_ms: _Millis = None  # 95th percentile; null if nothing was timed.
    # Most virtual users that looped at the same time; null in the series of a step.
    vus: Annotated[int | None, NOT_NEGATIVE] = None


class FailureSample(Struct, frozen=True, kw_only=True):
    """One call that failed, credentials masked."""

    request: str = ""  # Method and URL; empty if the call was no request.
    status: Count = 0  # Status of the response; 0 if there was none.
    latency_ms: _Millis = None  # From the first byte sent to the end; null if it was not timed.
    # Time of each phase that happened, as in `phases_ms` of a step.
    phases_ms: dict[str, Amount] = {}
    headers: list[str] = []  # Headers of the response: `name: value`.
    body: str = ""  # The first 1024 bytes of the response's body, as text.
    trace: str = ""  # Where the test's own code raised: the frames of its own files.


class FailureResult(Struct, frozen=True, kw_only=True):
    """Calls of a step that failed for one reason."""

    error: str  # Class of the failure, as in `errors` of the step.
    message: str  # The reason in words. Numbers and ids are those of one call.
    count: Count  # Calls that failed with this message, numbers and ids aside.
    sample: FailureSample | None = None  # One of these calls; null if none was kept.


class StepResult(Struct, frozen=True, kw_only=True):
    """The calls of one step."""

    name: str  # Name of the method.
    total: Count = 0  # Calls that ended: ok + failed.
    ok: Count = 0  # Calls that succeeded.
    # Calls that raised, could not be sent or answered, or were answered with a status of 400 or
    # more that the step does not accept.
    failed: Count = 0
    cut: Count = 0  # Calls that were stopped at the deadline: neither ok nor failed.
    skipped: Count = 0  # Calls that were not made because a step this one depends on raised.
    # Requests fully handed to the kernel, redirects and calls other than the returned one included.
    sent: Count = 0
    rate_per_second: Amount = 0.0  # Calls per second of the workflow, without its warm-up.
    latency_ms: LatencyMs = LatencyMs()  # Latency of this step.
    # Where the time went, in milliseconds. A phase that never happened is {}.
    phases_ms: _Phases = {}
    bytes_sent: Count = 0  # Bytes of requests.
    bytes_received: Count = 0  # Bytes of responses.
    status_codes: _StatusCodes = {}  # Responses by status code.
    # Failures by class: dns, connect, tls, proxy, timeout, reset, protocol, too_large, status,
    # exception.
    errors: dict[str, Ordinal] = {}
    # Latencies in nanoseconds: HdrHistogram V2 (deflate), base64. Merge histograms, never
    # percentiles.
    histogram: _Histogram = ""
    series: list[SeriesResult] = []  # The step over time, every interval included.
    kind: _StepKind = "test"  # What the step is to the workflow.
    series_interval_seconds: _Interval = 1  # Width of the intervals of `series`.
    # Calls that returned no result, as the step's annotation permits: neither ok nor failed.
    none: Count = 0
    requests_per_second: Amount = 0.0  # Requests per second of the workflow.
    cut_ms: LatencyMs = LatencyMs()  # How long requests in flight at the deadline had taken.
    # Latencies from here on are incomplete: requests that had taken as long were cut. Null if none
    # was.
    censored_from_ms: _Millis = None
    # Time in which the step's own code held the event loop for 10 ms or more at a time, summed over
    # cores: no response was read meanwhile.
    held_seconds: Amount = 0.0
    held_max_ms: Amount = 0.0  # The longest of these times.
    # Why calls failed, the most frequent first: at most 20 messages and, as class `other`, the
    # number of calls that failed with further ones.
    failures: list[FailureResult] = []
    # With a rate, `latency_ms` of a first step counts from when its iteration was due; this is the
    # same from the first byte sent. All null otherwise.
    service_ms: LatencyMs = LatencyMs()


class CheckResult(Struct, frozen=True, kw_only=True):
    """How often one check held."""

    name: str  # Name of the method.
    passed: Count  # Times the check held.
    failed: Count  # Times the check did not hold.
    first_failure: str | None = None  # What the first failure said; null if there was none.


class MetricResult(Struct, frozen=True, kw_only=True):
    """One custom metric."""

    name: str  # Name of the method.
    kind: _MetricKind  # How values are combined.
    # count: the sum. rate: the sum per second. gauge: the last value (of the core that was furthest
    # into the run). distribution, timer: the mean; a timer's unit is seconds. Null if never
    # recorded.
    value: float | None
    count: Count = 0  # Values recorded.
    min: float | None = None  # Smallest value.
    max: float | None = None  # Largest value.
    # Median; null for other kinds than distribution and timer, as are the following.
    p50: float | None = None
    p90: float | None = None  # 90th percentile.
    p95: float | None = None  # 95th percentile.
    p99: float | None = None  # 99th percentile.


class ThresholdResult(Struct, frozen=True, kw_only=True):
    """How one threshold was judged."""

    name: str  # As written: `login.p99`, `errors`, `checks`, a metric's name.
    limit: str  # As written: `<250ms`, `<250ms over 30s`.
    # What was measured (over windows: in the worst one), in the unit of the limit; null if nothing
    # was measured, which fails.
    value: float | None
    passed: bool  # Whether the value is within the limit.
    workflow: str = ""  # The workflow that has the threshold.
    # Unit of the value and of the limit: `ms`, `s`, `%`, `/s`, or empty for a plain number.
    unit: str = ""
    abort_on_fail: bool = False  # Whether failing it ends the run early.
    # Of a threshold over windows: the second of the workflow in which the worst window began.
    worst_from_second: int | None = None


class ChangeResult(Struct, frozen=True, kw_only=True):
    """A change of the load of a workflow while it ran."""

    at_seconds: Amount  # When it was made, from the start of the workflow's load.
    kind: str  # `scale`, `pause` or `resume`.
    # Of `scale`: the new users, or iterations per second, for all cores and workers together.
    target: Annotated[float | None, NOT_NEGATIVE] = None
    over_seconds: Amount = 0.0  # Of `scale`: how long it took to get there.
    by: str = ""  # Who asked for it, if that is known.


class WorkflowResult(Struct, frozen=True, kw_only=True):
    """One workflow. Its counts and latencies are those of its test steps together."""

    name: str  # Name of the class.
    status: RunStatus  # How the workflow ended.
    vus: Count  # Virtual users as configured.
    cores: Count  # Executor processes the workflow ran on.
    elapsed_seconds: Amount  # How long the workflow put load on the target.
    error: str | None = None  # Why the workflow failed or was cancelled; null otherwise.
    # Its steps (test, action, setup, teardown), in the order of the class.
    steps: list[StepResult] = []
    checks: list[CheckResult] = []  # Its checks.
    metrics: list[MetricResult] = []  # Its custom metrics.
    # Test steps (action steps, if it has no test step) that ended: ok + failed.
    total: Count = 0
    ok: Count = 0  # Calls that succeeded.
    # Calls that raised, could not be sent or answered, or were answered with a status of 400 or
    # more that the step does not accept.
    failed: Count = 0
    cut: Count = 0  # Calls that were stopped at the deadline: neither ok nor failed.
    # Requests fully handed to the kernel by all its steps, setup and teardown included, as are
    # redirects and further calls.
    sent: Count = 0
    # Calls per second: total / (elapsed_seconds - warmup_seconds - paused_seconds).
    rate_per_second: Amount = 0.0
    iterations: Count = 0  # Times a virtual user finished all steps.
    latency_ms: LatencyMs = LatencyMs()  # Latency of the test steps together.
    series: list[SeriesResult] = []  # The test steps together over time, every interval included.
    # Width of the intervals of every series of this workflow; it grows with the length of the run.
    series_interval_seconds: _Interval = 1
    duration_seconds: Amount = 0.0  # Duration as configured.
    tags: list[str] = []  # Its tags.
    saturated: bool = False  # Whether its executors were at their limit at any time.
    warnings: list[str] = []  # Warnings of the run that concern this workflow.
    # Attempts to run its parts, retries included; 0 for a run on one machine.
    attempts: Count = 0
    workers: list[str] = []  # Workers that finished its parts.
    # Calls that returned no result, as the step's annotation permits: neither ok nor failed.
    none: Count = 0
    # Requests of all steps but setup and teardown, per second as in `rate_per_second`.
    requests_per_second: Amount = 0.0
    cut_ms: LatencyMs = LatencyMs()  # How long requests in flight at the deadline had taken.
    # Latencies from here on are incomplete: requests that had taken as long were cut. Null if none
    # was.
    censored_from_ms: _Millis = None
    # Cores it shared with other workflows of the run, because there were more workflows than
    # cores; 0 if its cores were its own.
    shared_cores: Count = 0
    # Whether code of the test held the event loop for a notable share of the run, and a notable
    # share of latencies contain that time. `warnings` names the code.
    loop_held: bool = False
    # Time in which code of the test held the event loop, summed over cores.
    held_seconds: Amount = 0.0
    # Iterations in which the test's own code raised: a step or metric, not a request that failed.
    raised: Count = 0
    allow_failures: bool = False  # Whether it may pass without a success, and however it raises.
    reasons: list[Reason] = []  # Why the workflow fails the run; empty if it passes.
    # When it began to generate load, from the start of the run; null if it never did.
    began_seconds: Annotated[float | None, NOT_NEGATIVE] = None
    iteration_ms: LatencyMs = LatencyMs()  # How long whole iterations took.
    # With a rate, `latency_ms` counts from when an iteration was due; this is the same from the
    # first byte sent. All null otherwise.
    service_ms: LatencyMs = LatencyMs()
    arrivals: Count = 0  # Iterations that were due by its rate; 0 without a rate.
    late: Count = 0  # Arrivals that began more than 10 ms after they were due.
    dropped: Count = 0  # Arrivals that never began: no user was free, or no executor ran.
    warmup_seconds: Amount = 0.0  # The beginning of `elapsed_seconds`, which is not counted.
    # Why the steps ran in Python; empty if the native engine ran them without the interpreter.
    in_python: str = ""
    paused_seconds: Amount = 0.0  # How much of `elapsed_seconds` it was paused.
    changes: list[ChangeResult] = []  # Changes of its load while it ran, in order.


class DatacenterResult(Struct, frozen=True, kw_only=True):
    """One datacenter's part of a job over several datacenters."""

    datacenter: str  # The datacenter.
    # How its part ended: as a run, or `refused` (it never ran the job), or `lost` (it was not heard
    # for long after its own deadline).
    status: _DatacenterStatus
    reason: str = ""  # Why it did not complete; empty if it did.
    job_id: str = ""  # Id of its part in the datacenter.
    elapsed_seconds: Amount = 0.0  # From the first dispatch in the datacenter to the end there.
    # When it began to generate load, from the start of the job; null if that is not known.
    began_seconds: Annotated[float | None, NOT_NEGATIVE] = None
    joined_late: bool = False  # It was not ready at the start and joined for the remaining time.
    # Its result came after the job had ended: it is in no total.
    late: bool = False
    replaces: str = ""  # The datacenter that refused this part; empty if it is the first choice.
    replaced_by: str = ""  # The datacenters that got its part because it refused.
    # Every workflow, with the users and the figures of this datacenter. Thresholds are judged over
    # all datacenters.
    workflows: list[WorkflowResult] = []
    gaps: list[GapResult] = []  # Load that was possibly sent from here and not reported.


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of one run. Readers must ignore properties they do not know: more may be added
    within a schema version."""

    # Version of this format. Grows when a property is renamed, retyped or removed.
    schema: _Version = SCHEMA_VERSION
    status: RunStatus  # How the run as a whole ended.
    file: str  # The test file, as given.
    started_at: _Time  # When the run began: RFC 3339, UTC.
    elapsed_seconds: Amount  # Wall time of the run, preparation included.
    # Whether the load generator itself was at its limit at any time; latencies are then suspect.
    # `warnings` says where and for how long.
    saturated: bool = False
    thresholds: list[ThresholdResult] = []  # Every threshold, in the order written.
    # Every workflow of the run, in the order of the file; one that never ran has zero counts.
    workflows: list[WorkflowResult] = []
    # Completed, and no workflow has a reason against it: every threshold held, no check failed (a
    # threshold on `checks` replaces that), something succeeded, and the test's own code raised in
    # at most 1 % of iterations (`allow_failures` takes the last two away).
    passed: bool = True
    # For people: what makes the numbers less trustworthy than they look.
    warnings: list[str] = []
    # Other files written with this one: kind (`html`, `csv`, `junit`, `json`, and `output` for what
    # user code printed) to path.
    outputs: dict[str, str] = {}
    generator: str = ""  # Name and version of the program that wrote this.
    job_id: str = ""  # Id of a job on a cluster; empty for a run on one machine.
    datacenters: list[str] = []  # Datacenters the job ran in.
    attempts: Count = 0  # Attempts to run parts, retries included; 0 for a run on one machine.
    segments: list[SegmentResult] = []  # Attempts that were revoked because their worker was lost.
    gaps: list[GapResult] = []  # Load that was possibly sent and not reported.
    # Resources used on each worker, one row per attempt; empty for a run on one machine.
    usage: list[UsageResult] = []
    # The workflow whose threshold with `abort_on_fail` ended the run early; empty if none did.
    aborted_by: str = ""
    # Parameters of the test (`Param`) and their values; the value of a secret is `***`.
    params: dict[str, str | int | float | bool] = {}
    # Id of the run: the job's on a cluster, random on one machine. Reporters and streams label
    # with it what they send, so that sending it again replaces it.
    run_id: str = ""
    # Each datacenter's part, if the job was submitted to gates; `workflows` has all of them merged.
    datacenter_results: list[DatacenterResult] = []
    # How far apart the datacenters that started together began; null with fewer than two.
    start_skew_ms: _Millis = None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that made this result and was not interrupted."""
        return exit_code_of_run(
            is_completed=self.status is RunStatus.COMPLETED,
            passed=self.passed,
            was_aborted=bool(self.aborted_by),
        )


def changes_text(workflow: WorkflowResult) -> list[str]:
    """Return the changes of a workflow's load in words, such as "50 users at 12s"."""
    said = []
    for change in workflow.changes:
        what = {"pause": "paused", "resume": "resumed"}.get(change.kind, "")
        if change.target is not None:
            unit = f"{change.target:g}/s" if workflow.arrivals else f"{change.target:,.0f} users"
            over = f" over {format_duration(change.over_seconds)}" if change.over_seconds else ""
            what = f"{unit}{over}"
        said.append(f"{what} at {format_duration(round(change.at_seconds, 1))}")
    return said


def censoring(result: WorkflowResult | StepResult) -> str | None:
    """Return what the requests that were cut at the deadline do to the latencies; None if none
    was."""
    cut, from_ms = result.cut_ms, result.censored_from_ms
    if from_ms is None or cut.max is None:
        return None
    calls = f"{result.cut:,} call{'' if result.cut == 1 else 's'}"
    least, most = format_duration(from_ms / 1000), format_duration(cut.max / 1000)
    after = least if least == most else f"{least} to {most}"
    return f"{calls} cut at the end, after {after}: percentiles are censored from {least} on"


def has_passed(status: RunStatus, workflows: list[WorkflowResult]) -> bool:
    """Return True if the run completed and there is no reason against any of its workflows."""
    return status is RunStatus.COMPLETED and not any(workflow.reasons for workflow in workflows)
