"""A result as flat, named measurements: what a sink that stores numbers wants to see.

Thin views of `RunResult` under the names Hyperscale's reporters have always used. A sink
walks `result_set(result).metrics()`, or takes the sets one by one.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from hyperscale.reporting.results import (
    CheckResult,
    LatencyMs,
    MetricResult,
    RunResult,
    StepResult,
    ThresholdResult,
    WorkflowResult,
)


class WorkflowMetric(Struct, frozen=True, kw_only=True):
    """One number of one run."""

    workflow: str  # empty: of the run as a whole
    step: str | None  # None: of the workflow as a whole
    # run, counts, latency, phase, status, errors, checks, thresholds, custom
    group: str
    # total, p99, first_byte.p99, 200, timeout, a check's name.passed, a custom metric's name
    name: str
    value: float
    unit: str  # "", "ms", "s", "/s", "bytes"
    tags: tuple[str, ...] = ()


class MetricsSet(Struct, frozen=True, kw_only=True):
    """Timing and throughput of a whole workflow, and its custom metrics."""

    workflow: str
    metrics: tuple[WorkflowMetric, ...]
    custom: tuple[WorkflowMetric, ...]


class StepMetricSet(Struct, frozen=True, kw_only=True):
    """The numbers of one step."""

    workflow: str
    step: str
    metrics: tuple[WorkflowMetric, ...]


class CheckSet(Struct, frozen=True, kw_only=True):
    """The checks of one workflow."""

    workflow: str
    checks: tuple[CheckResult, ...]
    metrics: tuple[WorkflowMetric, ...] = ()

    @property
    def passed(self) -> int:
        """How often checks passed."""
        return sum(check.passed for check in self.checks)

    @property
    def failed(self) -> int:
        """How often checks failed."""
        return sum(check.failed for check in self.checks)


class WorkflowMetricSet(Struct, frozen=True, kw_only=True):
    """The numbers of one workflow: as a whole, step by step, and its checks."""

    workflow: str
    status: str
    elapsed_seconds: float
    metrics: MetricsSet
    steps: tuple[StepMetricSet, ...]
    checks: CheckSet
    thresholds: tuple[WorkflowMetric, ...] = ()


class ResultSet(Struct, frozen=True, kw_only=True):
    """A finished run."""

    run: tuple[WorkflowMetric, ...] = ()  # of the run as a whole
    file: str
    status: str
    started_at: str
    elapsed_seconds: float
    workflows: tuple[WorkflowMetricSet, ...]

    def metrics(self) -> Iterator[WorkflowMetric]:
        """Yield every number of the run, workflow by workflow."""
        yield from self.run
        for workflow in self.workflows:
            yield from workflow.metrics.metrics
            yield from workflow.metrics.custom
            yield from workflow.checks.metrics
            yield from workflow.thresholds
            for step in workflow.steps:
                yield from step.metrics


def result_set(result: RunResult) -> ResultSet:
    run = (("passed", float(result.passed), ""), ("elapsed", result.elapsed_seconds, "s"))
    return ResultSet(
        run=tuple(
            WorkflowMetric(workflow="", step=None, group="run", name=name, value=value, unit=unit)
            for name, value, unit in run
        ),
        file=result.file,
        status=result.status.value,
        started_at=result.started_at,
        elapsed_seconds=result.elapsed_seconds,
        workflows=tuple(
            _workflow_set(workflow, [t for t in result.thresholds if t.workflow == workflow.name])
            for workflow in result.workflows
        ),
    )


_Row = tuple[str, str, float, str]  # group, name, value, unit
_CUSTOM_UNITS = {"timer": "s", "rate": "/s"}


def _workflow_set(
    workflow: WorkflowResult, thresholds: Sequence[ThresholdResult]
) -> WorkflowMetricSet:
    name = workflow.name

    def metrics(step: str | None, *rows: Iterable[_Row]) -> tuple[WorkflowMetric, ...]:
        return tuple(
            WorkflowMetric(
                workflow=name,
                step=step,
                group=group,
                name=metric,
                value=float(value),
                unit=unit,
                tags=tuple(workflow.tags),
            )
            for group, metric, value, unit in chain(*rows)
        )

    counts = _counts(workflow, "total", "ok", "failed", "none", "cut", "sent", "iterations")
    time_row = ("counts", "elapsed", workflow.elapsed_seconds, "s")
    custom = chain.from_iterable(map(_custom, workflow.metrics))
    checks = (
        ("checks", f"{check.name}.{outcome}", getattr(check, outcome), "")
        for check in workflow.checks
        for outcome in ("passed", "failed")
    )
    judged = (
        ("thresholds", f"{each.name}{each.limit}", float(each.passed), "") for each in thresholds
    )
    return WorkflowMetricSet(
        workflow=name,
        status=workflow.status.value,
        elapsed_seconds=workflow.elapsed_seconds,
        metrics=MetricsSet(
            workflow=name,
            metrics=metrics(None, counts, [time_row], _latency(workflow.latency_ms)),
            custom=metrics(None, custom),
        ),
        steps=tuple(
            StepMetricSet(workflow=name, step=step.name, metrics=metrics(step.name, _step(step)))
            for step in workflow.steps
        ),
        checks=CheckSet(
            workflow=name, checks=tuple(workflow.checks), metrics=metrics(None, checks)
        ),
        thresholds=metrics(None, judged),
    )


def _custom(metric: MetricResult) -> Iterator[_Row]:
    """Yield the value of a metric and, of one that samples, its spread."""
    unit = _CUSTOM_UNITS.get(metric.kind, "")
    if metric.value is not None:
        yield "custom", metric.name, metric.value, unit
    for name in ("min", "max", "p50", "p90", "p95", "p99") if metric.p50 is not None else ():
        if (value := getattr(metric, name)) is not None:
            yield "custom", f"{metric.name}.{name}", value, unit


def _counts(source: WorkflowResult | StepResult, *names: str) -> Iterator[_Row]:
    for name in names:
        yield "counts", name, getattr(source, name), ""
    yield "counts", "rate", source.rate_per_second, "/s"
    yield "counts", "requests", source.requests_per_second, "/s"


def _latency(latency: LatencyMs) -> Iterator[_Row]:
    for name in LatencyMs.__struct_fields__:
        if (value := getattr(latency, name)) is not None:
            yield "latency", name, value, "ms"


def _step(step: StepResult) -> Iterator[_Row]:
    yield from _counts(step, "total", "ok", "failed", "none", "cut", "skipped", "sent")
    yield "counts", "bytes_sent", step.bytes_sent, "bytes"
    yield "counts", "bytes_received", step.bytes_received, "bytes"
    yield from _latency(step.latency_ms)
    for phase, percentiles in step.phases_ms.items():
        for key, value in percentiles.items():
            yield "phase", f"{phase}.{key}", value, "ms"
    for code, count in step.status_codes.items():
        yield "status", code, count, ""
    for error, count in step.errors.items():
        yield "errors", error, count, ""
