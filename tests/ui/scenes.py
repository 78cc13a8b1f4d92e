"""Views of imagined runs, the same for the same moment: what the UI tests and the demo draw."""

import math
from dataclasses import replace
from random import Random

import msgspec

from hyperscale.reporting.results import (
    CheckResult,
    DatacenterResult,
    LatencyMs,
    MetricResult,
    RunResult,
    RunStatus,
    StepResult,
    ThresholdResult,
    WorkflowResult,
)
from hyperscale.stats.attempt_results import GapResult
from hyperscale.stats.reasons import Reason, ReasonKind
from hyperscale.stats.view import CheckView, RunView, StepView, ViewStatus, WorkflowView


def step(name: str, total: int, *, failed: int = 0, cut: int = 0, p50_ms: float = 3.2) -> StepView:
    has_samples = total > 0
    return StepView(
        name=name,
        kind="test",
        total=total,
        ok=total - failed,
        failed=failed,
        cut=cut,
        skipped=0,
        sent=total,
        rate_now=total / 10,
        p50_ms=p50_ms if has_samples else None,
        p90_ms=p50_ms * 1.6 if has_samples else None,
        p95_ms=p50_ms * 2.1 if has_samples else None,
        p99_ms=p50_ms * 4.2 if has_samples else None,
        max_ms=p50_ms * 31 if has_samples else None,
    )


def running(
    name: str = "Checkout",
    *,
    elapsed_s: float = 37.4,
    duration_s: float = 60.0,
    rate: float = 12000.0,
    p50_ms: float = 3.2,
    failed: int = 210,
    step_names: tuple[str, ...] = ("login", "browse", "pay"),
    status: str = "running",
    seed: int = 1,
) -> WorkflowView:
    rng = Random(seed)
    interval_s = 1 if elapsed_s <= 600 else 10
    points = int(elapsed_s) // interval_s
    rates = tuple(
        rate * (1 - math.exp(-(i + 1) / 3)) * (1 + 0.12 * math.sin(i / 4)) * rng.uniform(0.95, 1.05)
        for i in range(points)
    )
    latencies = tuple(
        (p50_ms * rng.uniform(0.9, 1.1), p50_ms * rng.uniform(3, 6) * (8 if i < 2 else 1))
        for i in range(points)
    )
    total = int(sum(rates) * interval_s)
    failed = min(failed, total)
    each, failed_each = total // len(step_names), failed // len(step_names)
    return WorkflowView(
        name=name,
        status=ViewStatus(status),
        vus=1000,
        cores=2,
        elapsed_s=elapsed_s,
        duration_s=duration_s,
        progress=min(1.0, elapsed_s / duration_s),
        rate_now=rates[-1] if rates else 0.0,
        rate_total=total / elapsed_s if elapsed_s else 0.0,
        requests_now=rates[-1] if rates else 0.0,
        requests_total=total / elapsed_s if elapsed_s else 0.0,
        sent=total + total // 100,  # some steps send more than one request
        total=total,
        ok=total - failed,
        failed=failed,
        cut=0,
        iterations=each,
        steps=tuple(
            step(step_name, each, failed=failed_each, p50_ms=p50_ms * (1 + i))
            for i, step_name in enumerate(step_names)
        ),
        errors={"timeout": failed // 2, "status": failed - failed // 2} if failed else {},
        status_codes={200: total - failed, 503: failed - failed // 2} if failed else {200: total},
        series_interval_s=interval_s,
        rate_series=rates,
        requests_series=rates,
        failed_series=tuple(
            r * 0.3 if 14 <= i < 20 and failed else 0.0 for i, r in enumerate(rates)
        ),
        latency_series=latencies,
        checks=(CheckView("is_ok", total, 0),),
        error=None,
    )


def idle(name: str, status: str = "waiting", *, error: str | None = None) -> WorkflowView:
    return WorkflowView(
        name=name,
        status=ViewStatus(status),
        vus=0,
        cores=0,
        elapsed_s=0.0,
        duration_s=60.0,
        progress=0.0,
        rate_now=0.0,
        rate_total=0.0,
        total=0,
        ok=0,
        failed=0,
        cut=0,
        error=error,
    )


def run(
    *workflows: WorkflowView, saturated: bool = False, warnings: tuple[str, ...] = ()
) -> RunView:
    return RunView(
        file="examples/checkout.py",
        elapsed_s=max((workflow.elapsed_s for workflow in workflows), default=0.0),
        workflows=workflows,
        saturated=saturated,
        warnings=warnings,
    )


def shop(now_s: float, *, saturated: bool = False) -> RunView:
    """A run of five workflows at `now_s`: two side by side, then one, one failing, one waiting."""

    def phase(name: str, start_s: float, duration_s: float, **more: object) -> WorkflowView:
        elapsed_s = now_s - start_s
        if elapsed_s < 0:
            return idle(name)
        status = "completed" if elapsed_s >= duration_s else "running"
        elapsed_s = min(elapsed_s, duration_s)
        return running(name, elapsed_s=elapsed_s, duration_s=duration_s, status=status, **more)

    view = run(
        phase("Warmup", 0.0, 5.0, rate=900.0, failed=0, step_names=("ping",), seed=4),
        phase("Checkout", 2.0, 30.0),
        phase("SearchAndBrowse", 2.0, 45.0, rate=4300.0, p50_ms=48.0, failed=12, seed=3),
        idle("Reindex", "failed", error="executor 3 died: signal 9 (SIGKILL)"),
        phase("Report", 32.0, 10.0, rate=120.0, step_names=("fetch", "render"), seed=9),
        idle("Cleanup", "cancelled", error="dependency failed: Reindex"),
        saturated=saturated,
    )
    return replace(view, elapsed_s=now_s)


def many_steps(count: int = 200, *, elapsed_s: float = 20.0) -> WorkflowView:
    """One workflow with many steps, of which the last and one in the middle fail."""
    names = tuple(f"step_{number}" for number in range(count))
    view = running(elapsed_s=elapsed_s, step_names=names, failed=0)
    failing = {count // 2, count - 1}
    return replace(
        view,
        failed=6,
        steps=tuple(
            replace(each, failed=3 if number in failing else 0)
            for number, each in enumerate(view.steps)
        ),
    )


def many_workflows(now_s: float, count: int = 30) -> RunView:
    """A run of many workflows side by side; the last one fails its threshold."""
    workflows = [
        running(f"Workflow{number}", elapsed_s=now_s, failed=0, seed=number)
        for number in range(count)
    ]
    faults = ("login.p99 <250ms, was 312ms",)
    return run(*workflows[:-1], replace(workflows[-1], faults=faults))


HOSTILE = "a\x1b[2Jb\x1b]0;owned\x07c\r\n\x9b31m\u202ed\u200b\x00e"


def hostile(view: RunView) -> RunView:
    """The same run with every name and message trying to take over the terminal."""
    return replace(
        view,
        file=HOSTILE,
        warnings=(HOSTILE,),
        workflows=tuple(
            replace(
                workflow,
                name=f"{HOSTILE} {index}",
                error=HOSTILE if workflow.error else None,
                errors={HOSTILE: 3},
                steps=tuple(replace(step, name=HOSTILE + step.name) for step in workflow.steps),
                checks=(CheckView(HOSTILE, 1, 2, HOSTILE),),
            )
            for index, workflow in enumerate(view.workflows)
        ),
    )


def latency(p50: float) -> LatencyMs:
    return LatencyMs(
        min=p50 / 3,
        mean=p50 * 1.2,
        stdev=p50 / 2,
        p50=p50,
        p90=p50 * 1.6,
        p95=p50 * 2.1,
        p99=p50 * 4.2,
        p999=p50 * 9.7,
        max=p50 * 31,
    )


def step_result(name: str, total: int, *, failed: int = 0, p50_ms: float = 3.2) -> StepResult:
    return StepResult(
        name=name,
        total=total,
        ok=total - failed,
        failed=failed,
        cut=3,
        sent=total + 3,
        rate_per_second=total / 60,
        latency_ms=latency(p50_ms),
        bytes_sent=total * 180,
        bytes_received=total * 4200,
        status_codes={"200": total - failed, "503": failed} if failed else {"200": total},
        errors={"status": failed} if failed else {},
    )


def result(*, passed: bool = False) -> RunResult:
    """A finished run of `shop`."""
    failed = 0 if passed else 105
    steps = [
        step_result("login", 221_600, failed=failed),
        step_result("browse", 221_590, p50_ms=6.1),
        step_result("pay", 221_480, p50_ms=48.0),
    ]
    return RunResult(
        status=RunStatus.COMPLETED,
        file="examples/checkout.py",
        started_at="2025-01-01T12:00:00.000Z",
        elapsed_seconds=62.4,
        saturated=not passed,
        thresholds=[
            ThresholdResult(
                name="login.p99",
                limit="<250ms",
                value=13.4,
                passed=True,
                unit="ms",
                workflow="Shop",
            ),
            ThresholdResult(
                name="errors",
                limit="<0.01%",
                value=0.0 if passed else 0.0158,
                passed=passed,
                unit="%",
                workflow="Shop",
            ),
        ],
        workflows=[
            WorkflowResult(
                name="Shop",
                status=RunStatus.COMPLETED,
                vus=1000,
                cores=2,
                elapsed_seconds=60.0,
                steps=steps,
                total=664_670,
                ok=664_670 - failed,
                failed=failed,
                cut=9,
                none=12,
                sent=664_700,
                requests_per_second=11_078.3,
                iterations=221_480,
                cut_ms=LatencyMs(min=1_003.0, p50=1_100.0, max=2_500.0),
                censored_from_ms=1_003.0,
                rate_per_second=11_077.8,
                latency_ms=latency(6.3),
                checks=[
                    CheckResult(name="is_ok", passed=221_600, failed=0),
                    CheckResult(
                        name="has_price",
                        passed=221_475,
                        failed=failed,
                        first_failure=None if passed else "AssertionError: no price in 503 page",
                    ),
                ],
                metrics=[
                    MetricResult(name="revenue", kind="count", value=1_234_567.5, count=221_480),
                    MetricResult(name="render", kind="timer", value=0.0123, count=9, p99=0.034),
                ],
                reasons=[]
                if passed
                else [
                    Reason(kind=ReasonKind.THRESHOLD, text="errors <0.01%, was 0.0158%"),
                    Reason(
                        kind=ReasonKind.CHECK, text="check has_price failed 105 of 221,580 times"
                    ),
                ],
            ),
            *(
                []
                if passed
                else [
                    WorkflowResult(
                        name="Cleanup",
                        status=RunStatus.CANCELLED,
                        vus=10,
                        cores=0,
                        elapsed_seconds=0.0,
                        error="dependency failed: Reindex",
                        reasons=[
                            Reason(
                                kind=ReasonKind.STATUS,
                                text="cancelled: dependency failed: Reindex",
                            )
                        ],
                    )
                ]
            ),
        ],
        passed=passed,
        warnings=[]
        if passed
        else [
            "Shop: the load generator itself was saturated on 1 of 2 cores for up to 12 s (CPU "
            "98%, loop lag 130 ms), so latencies are suspect: they contain its own delay. Use "
            "fewer vus, add an interval between iterations, or give it more cores."
        ],
        outputs={"html": "reports/report.html", "json": "reports/results.json"},
    )


def global_result() -> RunResult:
    """Return the result of a job in two datacenters, one of which was lost."""
    whole = result()
    workflow = next(each for each in whole.workflows if each.sent)
    gap = GapResult(workflow=workflow.name, worker="west/w1", seconds=2.0, requests_max=321)
    parts = [
        DatacenterResult(datacenter="east", status="completed", workflows=[workflow]),
        DatacenterResult(
            datacenter="west",
            status="lost",
            reason="not heard",
            joined_late=True,
            began_seconds=4.5,
            workflows=[msgspec.structs.replace(workflow, sent=100)],
            gaps=[gap],
        ),
    ]
    return msgspec.structs.replace(whole, datacenter_results=parts, start_skew_ms=12.5)
