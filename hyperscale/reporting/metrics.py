"""A result as flat, named measurements: what a sink that stores numbers wants to see.

Thin views of `RunResult` under the names Hyperscale's reporters have always used. A sink
walks `result_set(result).metrics()`, or takes the sets one by one.
"""

from collections.abc import Iterator

from msgspec import Struct

from hyperscale.reporting.results import (
    CheckResult,
    LatencyMs,
    RunResult,
    StepResult,
    WorkflowResult,
)


class WorkflowMetric(Struct, frozen=True, kw_only=True):
    """One number of one run."""

    workflow: str
    step: str | None  # None: of the workflow as a whole
    group: str  # counts, latency, phase, status, errors, custom
    name: str  # total, p99, first_byte.p99, 200, timeout, a custom metric's name
    value: float
    unit: str  # "", "ms", "s", "/s", "bytes"
    tags: tuple[str, ...] = ()


class MetricsSet(Struct, frozen=True, kw_only=True):
    """Timing and throughput of a whole workflow, and its custom metrics."""

    workflow: str
    metrics: tuple[WorkflowMetric, ...]
    custom: tuple[WorkflowMetric, ...]


class StepMetricSet(Struct, frozen=True, kw_only=True):
    workflow: str
    step: str
    metrics: tuple[WorkflowMetric, ...]


class CheckSet(Struct, frozen=True, kw_only=True):
    workflow: str
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> int:
        return sum(check.passed for check in self.checks)

    @property
    def failed(self) -> int:
        return sum(check.failed for check in self.checks)


class WorkflowMetricSet(Struct, frozen=True, kw_only=True):
    workflow: str
    status: str
    elapsed_seconds: float
    metrics: MetricsSet
    steps: tuple[StepMetricSet, ...]
    checks: CheckSet


class ResultSet(Struct, frozen=True, kw_only=True):
    """A finished run."""

    file: str
    status: str
    started_at: str
    elapsed_seconds: float
    workflows: tuple[WorkflowMetricSet, ...]

    def metrics(self) -> Iterator[WorkflowMetric]:
        """Every number there is, workflow by workflow."""
        for workflow in self.workflows:
            yield from workflow.metrics.metrics
            yield from workflow.metrics.custom
            for step in workflow.steps:
                yield from step.metrics


def result_set(result: RunResult) -> ResultSet:
    return ResultSet(
        file=result.file,
        status=result.status.value,
        started_at=result.started_at,
        elapsed_seconds=result.elapsed_seconds,
        workflows=tuple(_workflow_set(workflow) for workflow in result.workflows),
    )


def _workflow_set(workflow: WorkflowResult) -> WorkflowMetricSet:
    name = workflow.name
    whole = _Naming(workflow, None)
    return WorkflowMetricSet(
        workflow=name,
        status=workflow.status.value,
        elapsed_seconds=workflow.elapsed_seconds,
        metrics=MetricsSet(
            workflow=name,
            metrics=(
                *whole.counts(workflow, "total", "ok", "failed", "cut", "sent", "iterations"),
                *whole.latency(workflow.latency_ms),
            ),
            custom=tuple(
                whole.metric("custom", each.name, each.value, _CUSTOM_UNITS.get(each.kind, ""))
                for each in workflow.metrics
                if each.value is not None
            ),
        ),
        steps=tuple(
            StepMetricSet(workflow=name, step=step.name, metrics=tuple(_step(workflow, step)))
            for step in workflow.steps
        ),
        checks=CheckSet(workflow=name, checks=tuple(workflow.checks)),
    )


_CUSTOM_UNITS = {"timer": "s", "rate": "/s"}


class _Naming(Struct, frozen=True):
    """Where a number belongs; makes the metrics of one step or workflow."""

    workflow: WorkflowResult
    step: str | None

    def metric(self, group: str, name: str, value: float, unit: str = "") -> WorkflowMetric:
        return WorkflowMetric(
            workflow=self.workflow.name,
            step=self.step,
            group=group,
            name=name,
            value=float(value),
            unit=unit,
            tags=tuple(self.workflow.tags),
        )

    def counts(self, source: WorkflowResult | StepResult, *names: str) -> Iterator[WorkflowMetric]:
        for name in names:
            yield self.metric("counts", name, getattr(source, name))
        yield self.metric("counts", "rate", source.rate_per_second, "/s")

    def latency(self, latency: LatencyMs) -> Iterator[WorkflowMetric]:
        for name in LatencyMs.__struct_fields__:
            value = getattr(latency, name)
            if value is not None:
                yield self.metric("latency", name, value, "ms")


def _step(workflow: WorkflowResult, step: StepResult) -> Iterator[WorkflowMetric]:
    naming = _Naming(workflow, step.name)
    yield from naming.counts(step, "total", "ok", "failed", "cut", "skipped", "sent")
    yield naming.metric("counts", "bytes_sent", step.bytes_sent, "bytes")
    yield naming.metric("counts", "bytes_received", step.bytes_received, "bytes")
    yield from naming.latency(step.latency_ms)
    for phase, percentiles in step.phases_ms.items():
        for key, value in percentiles.items():
            yield naming.metric("phase", f"{phase}.{key}", value, "ms")
    for code, count in step.status_codes.items():
        yield naming.metric("status", code, count)
    for error, count in step.errors.items():
        yield naming.metric("errors", error, count)
