"""Results to report on: built from reports by the real builder, and hostile ones by hand."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from hyperscale.plan import ThresholdPlan
from hyperscale.reporting.build import WorkflowOutcome, build_result
from hyperscale.reporting.results import (
    CheckResult,
    LatencyMs,
    MetricResult,
    RunResult,
    RunStatus,
    SeriesResult,
    StepResult,
    ThresholdResult,
    WorkflowResult,
)
from hyperscale.stats.workflow import WorkflowStats
from tests.stats.parts import Part, make_plan

MS = 1_000_000
STARTED_AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def shop_stats(*limits: tuple[str, str], seconds: int = 4) -> WorkflowStats:
    """Two cores, two steps, some failures, a check that failed once, two metrics."""
    stats = WorkflowStats(
        make_plan(
            duration_s=seconds,
            thresholds=tuple(ThresholdPlan(name=name, limit=limit) for name, limit in limits),
        )
    )
    for slot in (0, 1):
        part = Part(slot=slot)
        for n in range(seconds * 50):
            at_s = n / 50
            part.request("login", (10 + n % 7) * MS, at_s=at_s)
            part.request("pay", (40 + n % 31) * MS, ok=n % 25 != 24, at_s=at_s)
            part.measure("carts", "count", 1)
            part.measure("render", "timer", 0.001 * (n % 10))
        part.judge(True)
        part.judge(slot == 0)
        part.elapsed_s = float(seconds)
        stats.apply(part.report())
    return stats


def shop_result(*limits: tuple[str, str], status: RunStatus = RunStatus.COMPLETED) -> RunResult:
    return build_result(
        file="shop.py",
        status=status,
        started_at=STARTED_AT,
        elapsed_s=4.5,
        outcomes=[WorkflowOutcome(stats=shop_stats(*limits), status=status, cores=2)],
        generator="hyperscale 0.1.0",
    )


# Names that are not written on purpose: markup, quotes, control characters, right-to-left marks.
hostile = st.text(max_size=30) | st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        '"><img src=x onerror=1>',
        "a\r\nb,c;\"d'",
        "\x00\x1b[2J",
        "]]>",
    ]
)
_counts = st.integers(min_value=0, max_value=10**12)
_values = st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32)
_latency = st.builds(
    LatencyMs, min=_values, mean=_values, p50=_values, p90=_values, p99=_values, max=_values
)
_series = st.lists(
    st.builds(
        SeriesResult,
        at_seconds=st.integers(0, 600),
        total=_counts,
        failed=_counts,
        p50_ms=_values,
        p99_ms=_values,
    ),
    max_size=4,
)
_steps = st.builds(
    StepResult,
    name=hostile,
    total=_counts,
    ok=_counts,
    failed=_counts,
    latency_ms=_latency,
    status_codes=st.dictionaries(st.sampled_from(["200", "404", "503"]), st.integers(1, 9)),
    errors=st.dictionaries(hostile, st.integers(1, 9), max_size=3),
    series=_series,
)
_checks = st.builds(
    CheckResult, name=hostile, passed=_counts, failed=_counts, first_failure=st.none() | hostile
)
_metrics = st.builds(
    MetricResult, name=hostile, kind=st.sampled_from(["count", "timer"]), value=_values
)
_thresholds = st.builds(
    ThresholdResult,
    name=hostile,
    limit=hostile,
    value=_values,
    passed=st.booleans(),
    workflow=hostile,
)
_statuses = st.sampled_from(list(RunStatus))
_workflows = st.builds(
    WorkflowResult,
    name=hostile,
    status=_statuses,
    vus=_counts,
    cores=_counts,
    elapsed_seconds=st.floats(0, 1e6),
    error=st.none() | hostile,
    steps=st.lists(_steps, max_size=2),
    checks=st.lists(_checks, max_size=2),
    metrics=st.lists(_metrics, max_size=2),
    latency_ms=_latency,
    series=_series,
    tags=st.lists(hostile, max_size=2),
)
hostile_results = st.builds(
    RunResult,
    status=_statuses,
    file=hostile,
    started_at=st.just("2026-03-01T12:00:00.250Z"),
    elapsed_seconds=st.floats(0, 1e6),
    saturated=st.booleans(),
    thresholds=st.lists(_thresholds, max_size=2),
    workflows=st.lists(_workflows, max_size=2),
    warnings=st.lists(hostile, max_size=2),
)
