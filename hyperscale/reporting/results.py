"""The result of a run: the one model behind the JSON, every report and the summary.

Field for field what `--json` writes (schema.json and docs/results.md describe it). Fields
may be added within a schema version, never renamed, retyped or removed. Durations are
seconds unless the name says milliseconds. Knows nothing of how a run was carried out.
"""

from enum import Enum

from msgspec import Struct, field

from hyperscale.stats.attempt_results import GapResult, SegmentResult, UsageResult

SCHEMA_VERSION = 1


class RunStatus(Enum):
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class LatencyMs(Struct, frozen=True, kw_only=True):
    """All None if nothing was timed."""

    min: float | None = None
    mean: float | None = None
    stdev: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None


class SeriesResult(Struct, frozen=True, kw_only=True):
    """One interval of the run; percentiles are None if nothing was timed in it."""

    at_seconds: int
    total: int
    failed: int
    p50_ms: float | None = None
    p99_ms: float | None = None


class StepResult(Struct, frozen=True, kw_only=True):
    name: str
    total: int = 0
    ok: int = 0
    failed: int = 0
    cut: int = 0
    skipped: int = 0
    sent: int = 0
    rate_per_second: float = 0.0
    latency_ms: LatencyMs = field(default_factory=LatencyMs)
    # blocked, connect, tls, first_byte; each {"p50", "p99"}, or {} if it never happened.
    phases_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    status_codes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    histogram: str = ""  # HdrHistogram V2, base64, nanoseconds
    series: list[SeriesResult] = field(default_factory=list)
    kind: str = "test"
    series_interval_seconds: int = 1


class CheckResult(Struct, frozen=True, kw_only=True):
    name: str
    passed: int
    failed: int
    first_failure: str | None = None


class MetricResult(Struct, frozen=True, kw_only=True):
    """`value` by kind: the sum, the rate, the last value or the mean. None if never recorded."""

    name: str
    kind: str
    value: float | None
    count: int = 0
    min: float | None = None
    max: float | None = None
    # Of the kinds that sample: distribution and timer.
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class ThresholdResult(Struct, frozen=True, kw_only=True):
    name: str
    limit: str
    value: float | None  # in the unit of the limit; None if there was nothing to measure
    passed: bool
    workflow: str = ""
    unit: str = ""  # "ms", "s", "%", "/s", "", as the limit was written
    abort_on_fail: bool = False


class WorkflowResult(Struct, frozen=True, kw_only=True):
    name: str
    status: RunStatus
    vus: int
    cores: int
    elapsed_seconds: float
    error: str | None = None
    steps: list[StepResult] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    metrics: list[MetricResult] = field(default_factory=list)
    # The workflow as a whole: its test steps together, from merged histograms.
    total: int = 0
    ok: int = 0
    failed: int = 0
    cut: int = 0
    sent: int = 0
    rate_per_second: float = 0.0
    iterations: int = 0
    latency_ms: LatencyMs = field(default_factory=LatencyMs)
    series: list[SeriesResult] = field(default_factory=list)
    series_interval_seconds: int = 1
    duration_seconds: float = 0.0  # as asked for
    tags: list[str] = field(default_factory=list)
    saturated: bool = False
    warnings: list[str] = field(default_factory=list)
    # Of a job on a cluster.
    attempts: int = 0
    workers: list[str] = field(default_factory=list)


class RunResult(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA_VERSION
    status: RunStatus
    file: str
    started_at: str  # RFC 3339, UTC
    elapsed_seconds: float
    saturated: bool = False
    thresholds: list[ThresholdResult] = field(default_factory=list)
    workflows: list[WorkflowResult] = field(default_factory=list)
    passed: bool = True  # completed, and no threshold or check failed
    warnings: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)  # kind -> path written
    generator: str = ""  # "hyperscale 0.1.0"
    # Of a job on a cluster; empty for a run on one machine.
    job_id: str = ""
    datacenters: list[str] = field(default_factory=list)
    attempts: int = 0
    segments: list[SegmentResult] = field(default_factory=list)
    gaps: list[GapResult] = field(default_factory=list)
    usage: list[UsageResult] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """What a command that ran this ends with, unless it was interrupted."""
        if self.status is not RunStatus.COMPLETED:
            return 3
        return 0 if self.passed else 1


def failed_checks(workflow: WorkflowResult, thresholds: list[ThresholdResult]) -> list[CheckResult]:
    """The checks that fail the run: all with a failure, unless a threshold judges `checks`."""
    if any(t.workflow == workflow.name and t.name == "checks" for t in thresholds):
        return []
    return [check for check in workflow.checks if check.failed]


def is_fruitless(workflow: WorkflowResult) -> bool:
    """Whether it completed without a single request that succeeded, judged or not."""
    is_test = any(step.kind == "test" for step in workflow.steps)
    return workflow.status is RunStatus.COMPLETED and is_test and not workflow.ok


def verdict(
    status: RunStatus, thresholds: list[ThresholdResult], workflows: list[WorkflowResult]
) -> bool:
    """Whether the run passed: it completed, every threshold held and no check failed it."""
    return (
        status is RunStatus.COMPLETED
        and all(threshold.passed for threshold in thresholds)
        and not any(failed_checks(workflow, thresholds) for workflow in workflows)
    )


def overall_status(statuses: list[RunStatus]) -> RunStatus:
    """The status of a run from those of its workflows: the same if all agree, else partial."""
    kinds = set(statuses)
    if len(kinds) == 1:
        return kinds.pop()
    return RunStatus.PARTIAL if kinds else RunStatus.FAILED
