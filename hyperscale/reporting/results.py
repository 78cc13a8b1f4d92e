"""The result of a run: the one model behind the JSON, every report and the summary.

Field for field what `--json` writes; `schema.json` is generated from these types (see `schema`) and
docs/results.md describes them. Fields may be added within a schema version, never renamed,
retyped or removed. Durations are seconds unless the name says milliseconds. This module knows
nothing of how a run is carried out.
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct, field

from hyperscale.reporting.exit_codes import ExitCode, exit_code_of
from hyperscale.stats.attempt_results import GapResult, SegmentResult, UsageResult
from hyperscale.stats.schema_notes import about, not_negative

SCHEMA_VERSION = 1

_Positive = Annotated[int, Meta(extra_json_schema={"minimum": 1})]
_INTERVALS = {"enum": [1, 10, 60, 600, 7200]}
_PHASE = {
    "type": "object",
    "properties": {
        "p50": {"type": "number", "minimum": 0, "description": "Median, ms."},
        "p99": {"type": "number", "minimum": 0, "description": "99th percentile, ms."},
    },
    "additionalProperties": False,
}


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

    min: Annotated[float | None, not_negative("Smallest latency.")] = None
    mean: Annotated[float | None, not_negative("Arithmetic mean.")] = None
    stdev: Annotated[float | None, not_negative("Standard deviation.")] = None
    p50: Annotated[float | None, not_negative("Median.")] = None
    p90: Annotated[float | None, not_negative("90th percentile.")] = None
    p95: Annotated[float | None, not_negative("95th percentile.")] = None
    p99: Annotated[float | None, not_negative("99th percentile.")] = None
    p999: Annotated[float | None, not_negative("99.9th percentile.")] = None
    max: Annotated[float | None, not_negative("Largest latency.")] = None


class SeriesResult(Struct, frozen=True, kw_only=True):
    """The calls that ended within one interval of a run."""

    at_seconds: Annotated[
        int, not_negative("Start of the interval, from the start of the workflow.")
    ]
    total: Annotated[int, not_negative("Calls that ended in the interval.")]
    failed: Annotated[int, not_negative("Calls among them that failed.")]
    p50_ms: Annotated[float | None, not_negative("Median latency; null if nothing was timed.")] = (
        None
    )
    p99_ms: Annotated[float | None, not_negative("99th percentile; null if nothing was timed.")] = (
        None
    )


class StepResult(Struct, frozen=True, kw_only=True):
    """The calls of one step."""

    name: Annotated[str, about("Name of the method.")]
    total: Annotated[int, not_negative("Calls that ended: ok + failed.")] = 0
    ok: Annotated[int, not_negative("Calls that succeeded.")] = 0
    failed: Annotated[
        int,
        not_negative(
            "Calls that raised, could not be sent or answered, or were answered with "
            "a status of 400 or more that the step does not accept."
        ),
    ] = 0
    cut: Annotated[
        int, not_negative("Calls that were stopped at the deadline: neither ok nor failed.")
    ] = 0
    skipped: Annotated[
        int, not_negative("Calls that were not made because a step this one depends on raised.")
    ] = 0
    sent: Annotated[
        int,
        not_negative(
            "Requests fully handed to the kernel, redirects and calls other than the "
            "returned one included."
        ),
    ] = 0
    rate_per_second: Annotated[float, not_negative("total / elapsed_seconds of the workflow.")] = (
        0.0
    )
    latency_ms: Annotated[LatencyMs, about("Latency of this step.")] = field(
        default_factory=LatencyMs
    )
    phases_ms: Annotated[
        dict[str, dict[str, float]],
        about(
            "Where the time went, in milliseconds. A phase that never happened is {}.",
            properties={
                "blocked": {**_PHASE, "description": "Waiting for a free connection."},
                "connect": {**_PHASE, "description": "TCP connect, if a connection was opened."},
                "tls": {**_PHASE, "description": "TLS handshake, if there was one."},
                "first_byte": {
                    **_PHASE,
                    "description": "From the request's first byte to the response's first byte.",
                },
            },
            required=["blocked", "connect", "tls", "first_byte"],
            propertyNames={"enum": ["blocked", "connect", "tls", "first_byte"]},
        ),
    ] = field(default_factory=dict)
    bytes_sent: Annotated[int, not_negative("Bytes of requests.")] = 0
    bytes_received: Annotated[int, not_negative("Bytes of responses.")] = 0
    status_codes: Annotated[
        dict[str, _Positive],
        about("Responses by status code.", propertyNames={"pattern": r"^\d+$"}),
    ] = field(default_factory=dict)
    errors: Annotated[
        dict[str, _Positive],
        about(
            "Failures by class: dns, connect, tls, timeout, reset, protocol, "
            "too_large, status, exception."
        ),
    ] = field(default_factory=dict)
    histogram: Annotated[
        str,
        about(
            "Latencies in nanoseconds: HdrHistogram V2 (deflate), base64. Merge "
            "histograms, never percentiles.",
            contentEncoding="base64",
            pattern=r"^[A-Za-z0-9+/]*=*$",
        ),
    ] = ""
    series: Annotated[list[SeriesResult], about("The step over time, every interval included.")] = (
        field(default_factory=list)
    )
    kind: Annotated[
        str,
        about("What the step is to the workflow.", enum=["test", "action", "setup", "teardown"]),
    ] = "test"
    series_interval_seconds: Annotated[
        int, about("Width of the intervals of `series`.", **_INTERVALS)
    ] = 1


class CheckResult(Struct, frozen=True, kw_only=True):
    """How often one check held."""

    name: Annotated[str, about("Name of the method.")]
    passed: Annotated[int, not_negative("Times the check held.")]
    failed: Annotated[int, not_negative("Times the check did not hold.")]
    first_failure: Annotated[
        str | None, about("What the first failure said; null if there was none.")
    ] = None


class MetricResult(Struct, frozen=True, kw_only=True):
    """One custom metric."""

    name: Annotated[str, about("Name of the method.")]
    kind: Annotated[
        str,
        about("How values are combined.", enum=["count", "rate", "gauge", "distribution", "timer"]),
    ]
    value: Annotated[
        float | None,
        about(
            "count: the sum. rate: the sum per second. gauge: the last value (of the "
            "core that was furthest into the run). distribution, timer: the mean; a "
            "timer's unit is seconds. Null if never recorded."
        ),
    ]
    count: Annotated[int, not_negative("Values recorded.")] = 0
    min: Annotated[float | None, about("Smallest value.")] = None
    max: Annotated[float | None, about("Largest value.")] = None
    p50: Annotated[
        float | None,
        about("Median; null for other kinds than distribution and timer, as are the following."),
    ] = None
    p90: Annotated[float | None, about("90th percentile.")] = None
    p95: Annotated[float | None, about("95th percentile.")] = None
    p99: Annotated[float | None, about("99th percentile.")] = None


class ThresholdResult(Struct, frozen=True, kw_only=True):
    """How one threshold was judged."""

    name: Annotated[str, about("As written: `login.p99`, `errors`, `checks`, a metric's name.")]
    limit: Annotated[str, about("As written: `<250ms`.")]
    value: Annotated[
        float | None,
        about(
            "What was measured, in the unit of the limit; null if nothing was "
            "measured, which fails."
        ),
    ]
    passed: Annotated[bool, about("Whether the value is within the limit.")]
    workflow: Annotated[str, about("The workflow that has the threshold.")] = ""
    unit: Annotated[
        str,
        about(
            "Unit of the value and of the limit: `ms`, `s`, `%`, `/s`, or empty for a plain number."
        ),
    ] = ""
    abort_on_fail: Annotated[bool, about("Whether failing it ends the run early.")] = False


class WorkflowResult(Struct, frozen=True, kw_only=True):
    """One workflow. Its counts and latencies are those of its test steps together."""

    name: Annotated[str, about("Name of the class.")]
    status: Annotated[RunStatus, about("How the workflow ended.")]
    vus: Annotated[int, not_negative("Virtual users as configured.")]
    cores: Annotated[int, not_negative("Executor processes the workflow ran on.")]
    elapsed_seconds: Annotated[float, not_negative("How long the workflow put load on the target.")]
    error: Annotated[
        str | None, about("Why the workflow failed or was cancelled; null otherwise.")
    ] = None
    steps: Annotated[
        list[StepResult],
        about("Its steps (test, action, setup, teardown), in the order of the class."),
    ] = field(default_factory=list)
    checks: Annotated[list[CheckResult], about("Its checks.")] = field(default_factory=list)
    metrics: Annotated[list[MetricResult], about("Its custom metrics.")] = field(
        default_factory=list
    )
    total: Annotated[
        int,
        not_negative("Test steps (action steps, if it has no test step) that ended: ok + failed."),
    ] = 0
    ok: Annotated[int, not_negative("Calls that succeeded.")] = 0
    failed: Annotated[
        int,
        not_negative(
            "Calls that raised, could not be sent or answered, or were answered with "
            "a status of 400 or more that the step does not accept."
        ),
    ] = 0
    cut: Annotated[
        int, not_negative("Calls that were stopped at the deadline: neither ok nor failed.")
    ] = 0
    sent: Annotated[
        int,
        not_negative(
            "Requests fully handed to the kernel by these steps, redirects and "
            "further calls included."
        ),
    ] = 0
    rate_per_second: Annotated[float, not_negative("total / elapsed_seconds.")] = 0.0
    iterations: Annotated[int, not_negative("Times a virtual user finished all steps.")] = 0
    latency_ms: Annotated[LatencyMs, about("Latency of the test steps together.")] = field(
        default_factory=LatencyMs
    )
    series: Annotated[
        list[SeriesResult], about("The test steps together over time, every interval included.")
    ] = field(default_factory=list)
    series_interval_seconds: Annotated[
        int,
        about(
            "Width of the intervals of every series of this workflow; it grows with "
            "the length of the run.",
            **_INTERVALS,
        ),
    ] = 1
    duration_seconds: Annotated[float, not_negative("Duration as configured.")] = 0.0
    tags: Annotated[list[str], about("Its tags.")] = field(default_factory=list)
    saturated: Annotated[bool, about("Whether its executors were at their limit at any time.")] = (
        False
    )
    warnings: Annotated[list[str], about("Warnings of the run that concern this workflow.")] = (
        field(default_factory=list)
    )
    attempts: Annotated[
        int,
        not_negative("Attempts to run its parts, retries included; 0 for a run on one machine."),
    ] = 0
    workers: Annotated[list[str], about("Workers that finished its parts.")] = field(
        default_factory=list
    )


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of one run. Readers must ignore properties they do not know: more may be added
    within a schema version."""

    schema: Annotated[
        int,
        about(
            "Version of this format. Grows when a property is renamed, retyped or removed.",
            const=SCHEMA_VERSION,
        ),
    ] = SCHEMA_VERSION
    status: Annotated[RunStatus, about("How the run as a whole ended.")]
    file: Annotated[str, about("The test file, as given.")]
    started_at: Annotated[
        str,
        about(
            "When the run began: RFC 3339, UTC.",
            format="date-time",
            pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z$",
        ),
    ]
    elapsed_seconds: Annotated[float, not_negative("Wall time of the run, preparation included.")]
    saturated: Annotated[
        bool,
        about(
            "Whether the load generator itself was at its limit at any time; "
            "latencies are then suspect. `warnings` says where and for how long."
        ),
    ] = False
    thresholds: Annotated[
        list[ThresholdResult], about("Every threshold, in the order written.")
    ] = field(default_factory=list)
    workflows: Annotated[
        list[WorkflowResult],
        about(
            "Every workflow of the run, in the order of the file; one that never ran "
            "has zero counts."
        ),
    ] = field(default_factory=list)
    passed: Annotated[
        bool,
        about(
            "Completed, every threshold held, and no check failed (a threshold on "
            "`checks` replaces the last condition for its workflow)."
        ),
    ] = True
    warnings: Annotated[
        list[str], about("For people: what makes the numbers less trustworthy than they look.")
    ] = field(default_factory=list)
    outputs: Annotated[
        dict[str, str],
        about(
            "Other files written with this one: kind (`html`, `csv`, `junit`, `json`, "
            "and `output` for what user code printed) to path."
        ),
    ] = field(default_factory=dict)
    generator: Annotated[str, about("Name and version of the program that wrote this.")] = ""
    job_id: Annotated[str, about("Id of a job on a cluster; empty for a run on one machine.")] = ""
    datacenters: Annotated[list[str], about("Datacenters the job ran in.")] = field(
        default_factory=list
    )
    attempts: Annotated[
        int, not_negative("Attempts to run parts, retries included; 0 for a run on one machine.")
    ] = 0
    segments: Annotated[
        list[SegmentResult], about("Attempts that were revoked because their worker was lost.")
    ] = field(default_factory=list)
    gaps: Annotated[list[GapResult], about("Load that was possibly sent and not reported.")] = (
        field(default_factory=list)
    )
    usage: Annotated[
        list[UsageResult],
        about(
            "Resources used on each worker, one row per attempt; empty for a run on one machine."
        ),
    ] = field(default_factory=list)
    aborted_by: Annotated[
        str,
        about(
            "The workflow whose threshold with `abort_on_fail` ended the run early; "
            "empty if none did."
        ),
    ] = ""

    @property
    def is_completed(self) -> bool:
        return self.status is RunStatus.COMPLETED

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that made this result and was not interrupted."""
        return exit_code_of(self)


def failed_checks(workflow: WorkflowResult, thresholds: list[ThresholdResult]) -> list[CheckResult]:
    """Return the checks that fail the run: all with a failure, unless a threshold judges
    `checks`."""
    if any(t.workflow == workflow.name and t.name == "checks" for t in thresholds):
        return []
    return [check for check in workflow.checks if check.failed]


def is_fruitless(workflow: WorkflowResult) -> bool:
    """Return True if the workflow completed without a single successful request."""
    is_test = any(step.kind == "test" for step in workflow.steps)
    return workflow.status is RunStatus.COMPLETED and is_test and not workflow.ok


def has_passed(
    status: RunStatus, thresholds: list[ThresholdResult], workflows: list[WorkflowResult]
) -> bool:
    """Return True if the run completed, every threshold held and no check failed the run."""
    return (
        status is RunStatus.COMPLETED
        and all(threshold.passed for threshold in thresholds)
        and not any(failed_checks(workflow, thresholds) for workflow in workflows)
    )
