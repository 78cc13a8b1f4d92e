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
from hyperscale.reporting.html.markup import (
    NOTHING,
    Child,
    Html,
    count,
    h,
    millis,
    percent,
    rate,
    seconds,
    short,
    size,
)
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
    has_passed,
    is_fruitless,
)
from hyperscale.stats.attempt_results import SegmentResult, UsageResult
from hyperscale.stats.histograms import merge_encoded, percentile_curve

STEP_CURVES_MAX = 5  # more lines than colours a reader can tell apart
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
    theme = h("button", "◐", id="theme", type="button", title="Light or dark")
    headline = h("div.headline", h("h1", result.file), _verdict_pill(result), theme)
    shown = [h("div", h("dt", key), h("dd", value)) for key, value in facts]
    return h("header", h("div.wide", headline, h("dl.facts", shown)))


def _verdict_pill(result: RunResult) -> Html:
    if result.status is not RunStatus.COMPLETED:
        return _status_pill(result.status)
    if result.passed and any(map(is_fruitless, result.workflows)):
        return h("span.pill.bad", "completed without a request that succeeded")
    if result.passed:
        return h("span.pill.ok", "passed")
    return h("span.pill.bad", "failed thresholds or checks")


def _status_pill(status: RunStatus) -> Html:
    css = {RunStatus.COMPLETED: "ok", RunStatus.FAILED: "bad"}.get(status, "warn")
    return h(f"span.pill.{css}", status.value)


def _main(result: RunResult) -> Html:
    links = [
        h("a", workflow.name, _dot(workflow, result.thresholds), href=f"#w{n}")
        for n, workflow in enumerate(result.workflows)
    ]
    return h(
        "main.wide",
        [h("p.callout.warn", text) for text in result.warnings],
        h("nav", links) if len(links) > 1 else None,
        [_workflow(f"w{n}", workflow, result) for n, workflow in enumerate(result.workflows)],
    )


def _dot(workflow: WorkflowResult, thresholds: Sequence[ThresholdResult]) -> Html:
    own = [threshold for threshold in thresholds if threshold.workflow == workflow.name]
    is_good = has_passed(workflow.status, own, [workflow]) and not is_fruitless(workflow)
    return h(f"i.dot-mark.{'ok' if is_good else 'bad'}")


# -- a workflow


def _workflow(anchor: str, workflow: WorkflowResult, result: RunResult) -> Html:
    own = [each for each in result.thresholds if each.workflow == workflow.name]
    usage = [each for each in result.usage if each.workflow == workflow.name]
    facts = [
        f"{count(workflow.vus)} virtual users",
        f"{workflow.cores} core{'' if workflow.cores == 1 else 's'}",
        f"{seconds(workflow.elapsed_seconds)} of {seconds(workflow.duration_seconds)}",
        f"{count(workflow.iterations)} iterations",
    ]
    tags = [h("span.chip", tag) for tag in workflow.tags]
    return h(
        "section.workflow",
        h("div.headline", h("h2", workflow.name), _status_pill(workflow.status), tags),
        h("p.muted", " · ".join(facts)),
        h("p.callout.bad", workflow.error) if workflow.error else None,
        _tiles(workflow),
        h("div.columns", _thresholds(own), _checks(workflow.checks, own)),
        _workflow_charts(workflow),
        _steps_table(workflow.steps),
        _metrics(workflow.metrics),
        _workers(usage, result.segments),
        [_step_details(step, workflow.elapsed_seconds) for step in workflow.steps if step.total],
        id=anchor,
    )


def _tiles(workflow: WorkflowResult) -> Html:
    latency = workflow.latency_ms
    not_ok = f"{count(workflow.failed)} failed, {count(workflow.cut)} cut at the end"
    tiles = [
        ("requests", short(workflow.total), f"{count(workflow.ok)} ok"),
        ("rate", rate(workflow.rate_per_second), f"{count(workflow.sent)} sent in all"),
        ("failed", percent(workflow.failed, workflow.total), not_ok),
        ("median", millis(latency.p50), f"mean {millis(latency.mean)}"),
        ("p95", millis(latency.p95), f"p90 {millis(latency.p90)}"),
        ("p99", millis(latency.p99), f"p99.9 {millis(latency.p999)}"),
        ("slowest", millis(latency.max), f"fastest {millis(latency.min)}"),
    ]
    return h(
        "div.tiles",
        [
            h(
                "div.tile.bad" if name == "failed" and workflow.failed else "div.tile",
                h("span.name", name),
                h("span.value", value),
                h("span.note", note),
            )
            for name, value, note in tiles
        ],
    )


def _workflow_charts(workflow: WorkflowResult) -> Html:
    steps = headline_steps(workflow.steps)
    lines = [ChartLine("all steps", "c0", percentile_curve(_merged(steps)))]
    if 1 < len(steps) <= STEP_CURVES_MAX:
        lines += [
            ChartLine(step.name, f"c{n}", percentile_curve(_merged([step])))
            for n, step in enumerate(steps, start=1)
        ]
    return _charts(workflow, workflow.elapsed_seconds, lines, workflow.steps)


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
) -> Html:
    return h(
        "div.charts",
        *_time_charts(source.series, source.series_interval_seconds, elapsed_s),
        percentile_chart("Latency by percentile", percentiles, empty="Nothing was timed."),
        bars("Outcomes", _outcomes(steps), empty="Nothing ended."),
    )


def _time_charts(
    series: Sequence[SeriesResult], interval_s: int, elapsed_s: float
) -> tuple[Html, Html]:
    done, failed, p50, p99 = [], [], [], []
    for point in series:
        # The last interval is seldom whole. As a rate it counts for the time it had, and
        # if that was short it says nothing.
        width_s = min(interval_s, elapsed_s - point.at_seconds)
        if width_s < interval_s / 2 and len(series) > 1:
            continue
        at_s = point.at_seconds + max(width_s, 0.0) / 2
        width_s = width_s if width_s > 0 else interval_s
        done.append((at_s, point.total / width_s))
        failed.append((at_s, point.failed / width_s))
        p50.append((at_s, point.p50_ms))
        p99.append((at_s, point.p99_ms))
    rates = [ChartLine("finished", "c0", done, is_area=True)]
    if any(y for _, y in failed):
        rates.append(ChartLine("failed", "bad", failed, is_area=True))
    latencies = [ChartLine("p99", "c1", p99), ChartLine("p50", "c0", p50)]
    return (
        time_chart("Rate", rates, until_s=elapsed_s, unit="/s", empty="Nothing ended."),
        time_chart("Latency", latencies, until_s=elapsed_s, unit="ms", empty="Nothing was timed."),
    )


def _outcomes(steps: Iterable[StepResult]) -> list[tuple[str, int, str]]:
    """Return status codes, then error classes, over all steps."""
    codes: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for step in steps:
        codes.update(step.status_codes)
        errors.update(step.errors)
    if codes:
        del errors["status"]  # a failed status is a bar among the codes already
    colours = {"2": "ok", "3": "c0", "4": "warn", "5": "bad"}
    return [
        *((code, n, colours.get(code[:1], "c0")) for code, n in sorted(codes.items())),
        *((error, n, "bad") for error, n in sorted(errors.items())),
    ]


# -- tables


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Child]], *, css: str = "words-1"
) -> Html | None:
    if not rows:
        return None
    head = h("tr", [h("th", column, scope="col") for column in columns])
    body = [h("tr", [h("td", cell) for cell in row]) for row in rows]
    table = h("table", h("thead", head), h("tbody", body))
    return h(f"div.panel.{css}", h("h3", title), h("div.scroll", table))


def _mark(is_good: bool) -> Html:
    return h("span.mark.ok", "passed") if is_good else h("span.mark.bad", "failed")


def _noted(name: str, note: str) -> list[Child]:
    return [name, h("small.muted.block", note)]


def _thresholds(thresholds: Sequence[ThresholdResult]) -> Html | None:
    rows: list[list[Child]] = []
    for threshold in thresholds:
        value = "no samples"
        if threshold.value is not None:
            value = f"{threshold.value:,.4g}{threshold.unit}"
        rows.append([threshold.name, threshold.limit, value, _mark(threshold.passed)])
    return _table("Thresholds", ("name", "limit", "measured", ""), rows)


def _checks(checks: Sequence[CheckResult], thresholds: Sequence[ThresholdResult]) -> Html | None:
    rows: list[list[Child]] = []
    for check in checks:
        name = _noted(check.name, check.first_failure) if check.first_failure else check.name
        mark = _check_mark(check, thresholds)
        rows.append([name, count(check.passed), count(check.failed), mark])
    return _table("Checks", ("name", "held", "did not", ""), rows)


def _check_mark(check: CheckResult, thresholds: Sequence[ThresholdResult]) -> Html:
    if not check.passed and not check.failed:
        return h("span.muted", "never ran")
    judged = [threshold.passed for threshold in thresholds if threshold.name == "checks"]
    if check.failed and judged and all(judged):
        return h("span.mark.warn", "within its threshold")
    return _mark(not check.failed)


def _steps_table(steps: Sequence[StepResult]) -> Html | None:
    counts = ("total", "ok", "failed", "cut", "skipped", "sent", "rate")
    columns = ("step", *counts, "p50", "p90", "p95", "p99", "p99.9", "max", "received")
    rows: list[list[Child]] = []
    for step in steps:
        failed = count(step.failed)
        rows.append(
            [
                step.name if step.kind == "test" else [step.name, h("span.chip", step.kind)],
                count(step.total),
                count(step.ok),
                h("span.bad-text", failed) if step.failed else failed,
                count(step.cut),
                count(step.skipped),
                count(step.sent),
                rate(step.rate_per_second),
                *(millis(getattr(step.latency_ms, key)) for key in _PERCENTILES),
                size(step.bytes_received),
            ]
        )
    return _table("Steps", columns, rows)


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
    return _table("Custom metrics", columns, rows, css="words-2")


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
                h("span.mark.warn", "saturated") if each.saturated else "",
            ]
        )
    columns = ("worker", "part", "attempt", "cores", "cpu", "memory", "")
    return _table("Workers", columns, rows)


# -- one step, on demand


def _step_details(step: StepResult, elapsed_s: float) -> Html:
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
        _charts(step, elapsed_s, [curve], [step]),
        _table("Latency", names, [values] if latency.max is not None else [], css=""),
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
    return _table("Where the time went", ("phase", "p50", "p99"), rows)
