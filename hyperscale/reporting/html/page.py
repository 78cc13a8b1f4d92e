"""A result as one HTML file that opens offline: its sections and what stands in them.

Everything a reader needs stands in the markup; the script only adds values under the
pointer and the switch between light and dark. Nothing is loaded from anywhere, and the
page's own policy forbids it.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files

from hyperscale._native import Histogram
from hyperscale.reporting.html.charts import ChartLine, bars, percentile_chart, time_chart
from hyperscale.reporting.html.datacenters import datacenters_section
from hyperscale.reporting.html.markup import (
    NOTHING,
    Child,
    Html,
    badge,
    count,
    h,
    millis,
    percent,
    rate,
    seconds,
    short,
    size,
    table,
)
from hyperscale.reporting.html.overview import callout, overview, series_of, whole_intervals
from hyperscale.reporting.results import (
    CheckResult,
    LatencyMs,
    MetricResult,
    RunResult,
    StepResult,
    ThresholdResult,
    WorkflowResult,
    censoring,
    changes_text,
)
from hyperscale.reporting.verdict import (
    check_standing,
    faults_of,
    run_standing,
    threshold_standing,
    thresholds_of,
    workflow_standing,
)
from hyperscale.stats.attempt_results import SegmentResult, UsageResult
from hyperscale.stats.histograms import merge_encoded, percentile_curve
from hyperscale.stats.shared_cores import cores_text
from hyperscale.stats.standing import SIGNS, Standing

STEP_CURVES_MAX = 5  # more lines than colours a reader can tell apart
_LATENCY_TILES = ("median", "p95", "p99", "slowest")
_PERCENTILES = ("p50", "p90", "p95", "p99", "p999", "max")


def encode_html(result: RunResult) -> bytes:
    style, script = _asset("style.css"), _asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=policy),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("title", f"{result.file}: Hyperscale report"),
        h("style", style),
    )
    body = h("body", _header(result), _main(result), h("script", script))
    return f"<!doctype html>\n{h('html', head, body, lang='en')}\n".encode()


def _asset(name: str) -> Html:
    """Return the page's own style or script, which must not be escaped."""
    return Html(files("hyperscale.reporting.html").joinpath(name).read_text("utf-8"))


# -- the run


def _header(result: RunResult) -> Html:
    facts = [
        ("started", result.started_at.replace("T", " ").replace("Z", " UTC")),
        ("elapsed", seconds(result.elapsed_seconds)),
        ("workflows", count(len(result.workflows))),
        ("written by", result.generator or "hyperscale"),
    ]
    if result.job_id:
        facts.insert(0, ("job", result.job_id))
    theme = h(
        "button", "◑", id="theme", type="button", title="Light or dark", aria_label="Light or dark"
    )
    headline = h("div.headline", h("h1", result.file), badge(run_standing(result)), theme)
    shown = [h("div", h("dt", key), h("dd", value)) for key, value in facts]
    return h("header", h("div.wide", headline, h("dl.facts", shown)))


def _main(result: RunResult) -> Html:
    return h(
        "main.wide",
        overview(result),
        datacenters_section(result),
        [_workflow(f"w{n}", workflow, result) for n, workflow in enumerate(result.workflows)],
    )


# -- a workflow


def _workflow(anchor: str, workflow: WorkflowResult, result: RunResult) -> Html:
    own = thresholds_of(workflow, result)
    reasons = [workflow.error] if workflow.error else faults_of(workflow)
    if len(result.workflows) == 1:
        reasons = []  # they are at the top of the page
    usage = [each for each in result.usage if each.workflow == workflow.name]
    facts = [
        f"{count(workflow.vus)} virtual users",
        cores_text(workflow.cores, workflow.shared_cores),
        f"{seconds(workflow.elapsed_seconds)} of {seconds(workflow.duration_seconds)}",
        f"{count(workflow.iterations)} iterations",
    ]
    if workflow.warmup_seconds:
        facts.append(f"without the first {seconds(workflow.warmup_seconds)}, its warm-up")
    if workflow.changes:
        facts.append(f"load changed: {', '.join(changes_text(workflow))}")
    tags = [h("span.chip", tag) for tag in workflow.tags]
    suspect = "loop held: latencies are suspect" if workflow.loop_held else "latencies suspect"
    return h(
        "section.workflow",
        h(
            "div.headline",
            h("h2", workflow.name),
            badge(workflow_standing(workflow)),
            badge(Standing.SUSPECT, suspect) if _is_suspect(workflow) else None,
            tags,
        ),
        h("p.muted", " · ".join(facts)),
        [callout(workflow_standing(workflow), reason) for reason in reasons],
        _tiles(workflow),
        callout(Standing.SUSPECT, cut) if (cut := censoring(workflow)) else None,
        h("div.columns", _thresholds(own), _checks(workflow.checks, own)),
        _workflow_charts(workflow),
        _steps_table(workflow),
        _metrics(workflow.metrics),
        _workers(usage, result.segments),
        [_step_details(step, workflow) for step in workflow.steps if step.total or step.sent],
        id=anchor,
    )


def _tiles(workflow: WorkflowResult) -> Html:
    latency = workflow.latency_ms
    none = f", {count(workflow.none)} none" if workflow.none else ""
    not_ok = f"{count(workflow.failed)} failed, {count(workflow.cut)} cut at the end"
    tiles = [
        ("requests", short(workflow.sent), rate(workflow.requests_per_second)),
        ("steps", short(workflow.total), f"{rate(workflow.rate_per_second)}{none}"),
        ("failed", percent(workflow.failed, workflow.total), not_ok),
        ("median", millis(latency.p50), f"mean {millis(latency.mean)}"),
        ("p95", millis(latency.p95), f"p90 {millis(latency.p90)}"),
        ("p99", millis(latency.p99), f"p99.9 {millis(latency.p999)}"),
        ("slowest", millis(latency.max), f"fastest {millis(latency.min)}"),
        ("iteration p99", millis(workflow.iteration_ms.p99), _median(workflow.iteration_ms)),
    ]
    if workflow.arrivals:
        lost = f"{count(workflow.late)} late, {count(workflow.dropped)} dropped"
        tiles.insert(1, ("arrivals", short(workflow.arrivals), lost))
        service = workflow.service_ms
        tiles.append(("p99 from the send", millis(service.p99), _median(service)))
    mark = h("span.suspect", SIGNS[Standing.SUSPECT].symbol, title="suspect")
    mark = mark if _is_suspect(workflow) else Html("")
    return h(
        "div.tiles",
        [
            h(
                "div.tile.failed" if name == "failed" and workflow.failed else "div.tile",
                h("span.name", name, mark if name in _LATENCY_TILES else None),
                h("span.value", value),
                h("span.note", note),
            )
            for name, value, note in tiles
        ],
    )


def _median(latency: LatencyMs) -> str:
    return f"median {millis(latency.p50)}"


def _workflow_charts(workflow: WorkflowResult) -> Html:
    steps = headline_steps(workflow.steps)
    lines = [ChartLine("all steps", "c0", percentile_curve(_merged(steps)))]
    if 1 < len(steps) <= STEP_CURVES_MAX:
        lines += [
            ChartLine(step.name, f"c{n}", percentile_curve(_merged([step])))
            for n, step in enumerate(steps, start=1)
        ]
    return _charts(
        workflow,
        workflow.elapsed_seconds,
        lines,
        workflow.steps,
        is_suspect=_is_suspect(workflow),
    )


def _is_suspect(workflow: WorkflowResult) -> bool:
    """Return True if its latencies contain delays of the load generator itself."""
    return workflow.saturated or workflow.loop_held


def headline_steps(steps: Sequence[StepResult]) -> list[StepResult]:
    """Return the steps a workflow's totals are made of: its test steps, else its actions."""
    tests = [step for step in steps if step.kind == "test"]
    return tests or [step for step in steps if step.kind == "action"]


def _merged(steps: Iterable[StepResult]) -> Histogram:
    return merge_encoded(base64.b64decode(step.histogram) for step in steps if step.histogram)


def _charts(
    source: WorkflowResult | StepResult,
    elapsed_s: float,
    percentiles: Sequence[ChartLine],
    steps: Iterable[StepResult],
    *,
    is_suspect: bool,
) -> Html:
    return h(
        "div.charts",
        *_time_charts(source, elapsed_s, is_suspect=is_suspect),
        percentile_chart("Latency by percentile", percentiles, empty="Nothing was timed."),
        bars("Outcomes", _outcomes(steps), empty="Nothing ended."),
    )


def _time_charts(
    source: WorkflowResult | StepResult, elapsed_s: float, *, is_suspect: bool
) -> list[Html]:
    intervals = whole_intervals(source.series, source.series_interval_seconds, elapsed_s)
    requests = series_of(intervals, lambda point, width_s: point.sent / width_s)
    failed = series_of(intervals, lambda point, width_s: point.failed / width_s)
    if any(y for _, y in requests):
        title, rates = "Requests per second", [ChartLine("requests", "c0", requests, is_area=True)]
    else:
        done = series_of(intervals, lambda point, width_s: point.total / width_s)
        title, rates = "Steps per second", [ChartLine("steps", "c0", done, is_area=True)]
    if any(y for _, y in failed):
        rates.append(ChartLine("failed steps", "failed", failed, is_area=True))
    latencies = [
        ChartLine("p99", "c1", series_of(intervals, lambda point, _: point.p99_ms)),
        ChartLine("p95", "c3", series_of(intervals, lambda point, _: point.p95_ms)),
        ChartLine("p90", "c2", series_of(intervals, lambda point, _: point.p90_ms)),
        ChartLine("p50", "c0", series_of(intervals, lambda point, _: point.p50_ms)),
    ]
    users = series_of(intervals, lambda point, _: point.vus)
    charts = [
        time_chart(title, rates, until_s=elapsed_s, unit="/s", empty="Nothing ended."),
        time_chart(
            "Latency",
            latencies,
            until_s=elapsed_s,
            unit="ms",
            empty="Nothing was timed.",
            mark=badge(Standing.SUSPECT) if is_suspect else None,
        ),
    ]
    if any(y is not None for _, y in users):
        lines = [ChartLine("looping", "c4", users, is_area=True)]
        charts.insert(1, time_chart("Virtual users", lines, until_s=elapsed_s, unit="", empty=""))
    return charts


def _outcomes(steps: Iterable[StepResult]) -> list[tuple[str, int, str]]:
    """Return status codes, then error classes, over all steps."""
    codes: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for step in steps:
        codes.update(step.status_codes)
        errors.update(step.errors)
    if codes:
        del errors["status"]  # a failed status is a bar among the codes already
    colours = {"2": "ok", "3": "c0", "4": "warn", "5": "failed"}
    return [
        *((code, n, colours.get(code[:1], "c0")) for code, n in sorted(codes.items())),
        *((error, n, "failed") for error, n in sorted(errors.items())),
    ]


# -- tables


def _noted(name: str, note: str) -> list[Child]:
    return [name, h("small.muted.block", note)]


def _thresholds(thresholds: Sequence[ThresholdResult]) -> Html | None:
    rows: list[list[Child]] = []
    for threshold in thresholds:
        value = "no samples"
        if threshold.value is not None:
            value = f"{threshold.value:,.4g}{threshold.unit}"
        rows.append([threshold.name, threshold.limit, value, badge(threshold_standing(threshold))])
    return table("Thresholds", ("name", "limit", "measured", ""), rows)


def _checks(checks: Sequence[CheckResult], thresholds: Sequence[ThresholdResult]) -> Html | None:
    rows: list[list[Child]] = []
    for check in checks:
        name = _noted(check.name, check.first_failure) if check.first_failure else check.name
        mark = badge(check_standing(check, thresholds))
        rows.append([name, count(check.passed), count(check.failed), mark])
    return table("Checks", ("name", "held", "did not", ""), rows)


def _step_name(step: StepResult) -> list[Child]:
    name: list[Child] = [step.name]
    if step.kind != "test":
        name.append(h("span.chip", step.kind))
    if step.held_seconds:
        name.append(h("span.chip.warn", f"held the loop for {seconds(step.held_seconds)}"))
    return name


def _steps_table(workflow: WorkflowResult) -> Html | None:
    counts = ("total", "ok", "failed", "none", "cut", "skipped", "sent", "steps/s")
    columns = ("step", *counts, "p50", "p90", "p95", "p99", "p99.9", "max", "received")
    rows: list[list[Child]] = []
    for step in workflow.steps:
        failed = count(step.failed)
        rows.append(
            [
                _step_name(step),
                count(step.total),
                count(step.ok),
                h("span.failed-text", failed) if step.failed else failed,
                count(step.none),
                count(step.cut),
                count(step.skipped),
                count(step.sent),
                rate(step.rate_per_second),
                *(millis(getattr(step.latency_ms, key)) for key in _PERCENTILES),
                size(step.bytes_received),
            ]
        )
    mark = badge(Standing.SUSPECT, "latencies suspect") if _is_suspect(workflow) else None
    return table(["Steps ", mark], columns, rows)


def _metrics(metrics: Sequence[MetricResult]) -> Html | None:
    def show(metric: MetricResult, value: float | None, per_second: str = "") -> str:
        if metric.kind == "timer":
            return millis(None if value is None else value * 1000)
        if value is None:
            return NOTHING
        return f"{value:,.6g}{per_second if metric.kind == 'rate' else ''}"

    rows = [
        [
            metric.name,
            metric.kind,
            show(metric, metric.value, "/s"),
            count(metric.count),
            *(show(metric, value) for value in (metric.min, metric.max)),
            *(show(metric, value, "/s") for value in (metric.p50, metric.p95, metric.p99)),
        ]
        for metric in metrics
    ]
    columns = ("metric", "kind", "value", "recorded", "least", "most", "p50", "p95", "p99")
    return table("Custom metrics", columns, rows, words=2)


def _workers(usage: Sequence[UsageResult], segments: Sequence[SegmentResult]) -> Html | None:
    """Return which workers generated the load, and the CPU and memory it took."""
    given_up = {(each.workflow, each.part, each.attempt): each.reason for each in segments}
    rows: list[list[Child]] = []
    for each in usage:
        reason = given_up.get((each.workflow, each.part, each.attempt))
        rows.append(
            [
                each.worker if reason is None else _noted(each.worker, f"given up: {reason}"),
                count(each.part),
                count(each.attempt),
                count(each.cores),
                f"{each.cpu:.0%}",
                size(each.memory_bytes),
                badge(Standing.SUSPECT, "saturated") if each.saturated else "",
            ]
        )
    columns = ("worker", "part", "attempt", "cores", "cpu", "memory", "")
    return table("Workers", columns, rows)


# -- one step, on demand


def _step_details(step: StepResult, workflow: WorkflowResult) -> Html:
    latency = step.latency_ms
    facts = (
        f"{rate(step.rate_per_second)} · {percent(step.failed, step.total)} failed"
        f" · p50 {millis(latency.p50)} · p99 {millis(latency.p99)}"
    )
    curve = ChartLine(step.name, "c0", percentile_curve(_merged([step])))
    names = LatencyMs.__struct_fields__
    values = [millis(getattr(latency, name)) for name in names]
    return h(
        "details.panel",
        h("summary", h("b", step.name), h("span.muted", facts)),
        h("p.callout.warn", cut) if (cut := censoring(step)) else None,
        _charts(step, workflow.elapsed_seconds, [curve], [step], is_suspect=_is_suspect(workflow)),
        table("Latency", names, [values] if latency.max is not None else [], words=0),
        _phases(step),
    )


def _phases(step: StepResult) -> Html | None:
    names = {
        "blocked": "waiting for a connection",
        "connect": "TCP connect",
        "tls": "TLS handshake",
        "first_byte": "to the first byte",
    }
    rows = [
        [names.get(phase, phase), millis(values.get("p50")), millis(values.get("p99"))]
        for phase, values in step.phases_ms.items()
        if values
    ]
    return table("Where the time went", ("phase", "p50", "p99"), rows)
