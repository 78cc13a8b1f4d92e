"""The report page: which sections it has and what stands in them.

Everything a reader needs stands in the markup; the script only adds values under the
pointer and the switch between light and dark. Nothing is loaded from anywhere, and the
page's own policy forbids it.
"""

import base64
import hashlib
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
    raw,
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
        None,
        h("meta", {"charset": "utf-8"}),
        h("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        h("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        h("title", None, f"{result.file}: Hyperscale report"),
        h("style", None, raw(style)),
    )
    body = h("body", None, _header(result), _main(result), h("script", None, raw(script)))
    return f"<!doctype html>\n{h('html', {'lang': 'en'}, head, body)}\n".encode()


def _asset(name: str) -> str:
    return files("hyperscale.reporting.html").joinpath(name).read_text("utf-8")


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
    return h(
        "header",
        None,
        h(
            "div",
            {"class": "wide"},
            h(
                "div",
                {"class": "headline"},
                h("h1", None, result.file),
                _verdict_pill(result),
                h("button", {"id": "theme", "type": "button", "title": "Light or dark"}, "◐"),
            ),
            h(
                "dl",
                {"class": "facts"},
                [h("div", None, h("dt", None, key), h("dd", None, value)) for key, value in facts],
            ),
        ),
    )


def _verdict_pill(result: RunResult) -> Html:
    if result.status is not RunStatus.COMPLETED:
        return _status_pill(result.status)
    if result.passed and any(map(is_fruitless, result.workflows)):
        return h("span", {"class": "pill bad"}, "completed without a request that succeeded")
    if result.passed:
        return h("span", {"class": "pill ok"}, "passed")
    return h("span", {"class": "pill bad"}, "failed thresholds or checks")


def _status_pill(status: RunStatus) -> Html:
    css = {RunStatus.COMPLETED: "ok", RunStatus.FAILED: "bad"}.get(status, "warn")
    return h("span", {"class": f"pill {css}"}, status.value)


def _main(result: RunResult) -> Html:
    nav = None
    if len(result.workflows) > 1:
        nav = h(
            "nav",
            None,
            [
                h("a", {"href": f"#w{n}"}, workflow.name, _dot(workflow, result.thresholds))
                for n, workflow in enumerate(result.workflows)
            ],
        )
    return h(
        "main",
        {"class": "wide"},
        [h("p", {"class": "callout warn"}, text) for text in result.warnings],
        nav,
        [_workflow(f"w{n}", workflow, result) for n, workflow in enumerate(result.workflows)],
    )


def _dot(workflow: WorkflowResult, thresholds: Sequence[ThresholdResult]) -> Html:
    own = [threshold for threshold in thresholds if threshold.workflow == workflow.name]
    is_good = has_passed(workflow.status, own, [workflow]) and not is_fruitless(workflow)
    return h("i", {"class": f"dot-mark {'ok' if is_good else 'bad'}"})


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
    return h(
        "section",
        {"id": anchor, "class": "workflow"},
        h(
            "div",
            {"class": "headline"},
            h("h2", None, workflow.name),
            _status_pill(workflow.status),
            [h("span", {"class": "chip"}, tag) for tag in workflow.tags],
        ),
        h("p", {"class": "muted"}, " · ".join(facts)),
        h("p", {"class": "callout bad"}, workflow.error) if workflow.error else None,
        _tiles(workflow),
        h("div", {"class": "columns"}, _thresholds(own), _checks(workflow.checks, own)),
        _workflow_charts(workflow),
        _steps_table(workflow.steps),
        _metrics(workflow.metrics),
        _workers(usage, result.segments),
        [_step_details(step, workflow.elapsed_seconds) for step in workflow.steps if step.total],
    )


def _tiles(workflow: WorkflowResult) -> Html:
    latency = workflow.latency_ms
    tiles: list[tuple[str, str, str, str]] = [
        ("requests", short(workflow.total), f"{count(workflow.ok)} ok", ""),
        ("rate", rate(workflow.rate_per_second), f"{count(workflow.sent)} sent in all", ""),
        (
            "failed",
            percent(workflow.failed, workflow.total),
            f"{count(workflow.failed)} failed, {count(workflow.cut)} cut at the end",
            "bad" if workflow.failed else "",
        ),
        ("median", millis(latency.p50), f"mean {millis(latency.mean)}", ""),
        ("p95", millis(latency.p95), f"p90 {millis(latency.p90)}", ""),
        ("p99", millis(latency.p99), f"p99.9 {millis(latency.p999)}", ""),
        ("slowest", millis(latency.max), f"fastest {millis(latency.min)}", ""),
    ]
    return h(
        "div",
        {"class": "tiles"},
        [
            h(
                "div",
                {"class": f"tile {css}"},
                h("span", {"class": "name"}, name),
                h("span", {"class": "value"}, value),
                h("span", {"class": "note"}, note),
            )
            for name, value, note, css in tiles
        ],
    )


def _workflow_charts(workflow: WorkflowResult) -> Html:
    steps = headline_steps(workflow.steps)
    merged = _merged(steps)
    lines = [ChartLine("all steps", "c0", percentile_curve(merged))]
    if 1 < len(steps) <= STEP_CURVES_MAX:
        lines += [
            ChartLine(step.name, f"c{n}", percentile_curve(_merged([step])))
            for n, step in enumerate(steps, start=1)
        ]
    return h(
        "div",
        {"class": "charts"},
        *_time_charts(workflow.series, workflow.series_interval_seconds, workflow.elapsed_seconds),
        percentile_chart("Latency by percentile", lines, empty="Nothing was timed."),
        bars("Outcomes", _outcomes(workflow.steps), empty="Nothing ended."),
    )


def headline_steps(steps: Sequence[StepResult]) -> list[StepResult]:
    """The steps a workflow's totals are made of: its test steps, else its actions."""
    tests = [step for step in steps if step.kind == "test"]
    return tests or [step for step in steps if step.kind == "action"]


def _merged(steps: Iterable[StepResult]) -> Histogram:
    return merge_encoded(base64.b64decode(step.histogram) for step in steps if step.histogram)


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
    return (
        time_chart("Rate", rates, until_s=elapsed_s, unit="/s", empty="Nothing ended."),
        time_chart(
            "Latency",
            [ChartLine("p99", "c1", p99), ChartLine("p50", "c0", p50)],
            until_s=elapsed_s,
            unit="ms",
            empty="Nothing was timed.",
        ),
    )


def _outcomes(steps: Iterable[StepResult]) -> list[tuple[str, int, str]]:
    """Status codes, then error classes, over all steps."""
    codes: dict[str, int] = {}
    errors: dict[str, int] = {}
    for step in steps:
        for code, n in step.status_codes.items():
            codes[code] = codes.get(code, 0) + n
        for error, n in step.errors.items():
            errors[error] = errors.get(error, 0) + n
    colours = {"2": "ok", "3": "c0", "4": "warn", "5": "bad"}
    rows = [(code, n, colours.get(code[:1], "c0")) for code, n in sorted(codes.items())]
    # A failed status is its own bar above already.
    return rows + [
        (error, n, "bad") for error, n in sorted(errors.items()) if error != "status" or not codes
    ]


# -- tables


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Child]], *, css: str = ""
) -> Html | None:
    if not rows:
        return None
    head = h("tr", None, [h("th", {"scope": "col"}, column) for column in columns])
    body = [h("tr", None, [h("td", None, cell) for cell in row]) for row in rows]
    return h(
        "div",
        {"class": f"panel {css}"},
        h("h3", None, title),
        h(
            "div",
            {"class": "scroll"},
            h("table", None, h("thead", None, head), h("tbody", None, body)),
        ),
    )


def _mark(is_good: bool) -> Html:
    return h(
        "span", {"class": f"mark {'ok' if is_good else 'bad'}"}, "passed" if is_good else "failed"
    )


def _thresholds(thresholds: Sequence[ThresholdResult]) -> Html | None:
    rows: list[list[Child]] = []
    for threshold in thresholds:
        value = "no samples"
        if threshold.value is not None:
            value = f"{threshold.value:,.4g}{threshold.unit}"
        rows.append([threshold.name, threshold.limit, value, _mark(threshold.passed)])
    return _table("Thresholds", ("name", "limit", "measured", ""), rows, css="words-1")


def _checks(checks: Sequence[CheckResult], thresholds: Sequence[ThresholdResult]) -> Html | None:
    rows: list[list[Child]] = []
    for check in checks:
        name: Child = check.name
        if check.first_failure:
            name = [check.name, h("small", {"class": "muted block"}, check.first_failure)]
        rows.append(
            [name, count(check.passed), count(check.failed), _check_mark(check, thresholds)]
        )
    return _table("Checks", ("name", "held", "did not", ""), rows, css="words-1")


def _check_mark(check: CheckResult, thresholds: Sequence[ThresholdResult]) -> Html:
    if not check.passed and not check.failed:
        return h("span", {"class": "muted"}, "never ran")
    judged = [threshold.passed for threshold in thresholds if threshold.name == "checks"]
    if check.failed and judged and all(judged):
        return h("span", {"class": "mark warn"}, "within its threshold")
    return _mark(not check.failed)


def _steps_table(steps: Sequence[StepResult]) -> Html | None:
    counts = ("total", "ok", "failed", "cut", "skipped", "sent", "rate")
    columns = ("step", *counts, "p50", "p90", "p95", "p99", "p99.9", "max", "received")
    rows: list[list[Child]] = []
    for step in steps:
        name: Child = step.name
        if step.kind != "test":
            name = [step.name, h("span", {"class": "chip"}, step.kind)]
        failed: Child = count(step.failed)
        if step.failed:
            failed = h("span", {"class": "bad-text"}, failed)
        rows.append(
            [
                name,
                count(step.total),
                count(step.ok),
                failed,
                count(step.cut),
                count(step.skipped),
                count(step.sent),
                rate(step.rate_per_second),
                *(millis(getattr(step.latency_ms, key)) for key in _PERCENTILES),
                size(step.bytes_received),
            ]
        )
    return _table("Steps", columns, rows, css="words-1")


def _metrics(metrics: Sequence[MetricResult]) -> Html | None:
    def show(metric: MetricResult, value: float | None) -> str:
        if metric.kind == "timer":
            return millis(None if value is None else value * 1000)
        if value is None:
            return NOTHING
        return f"{value:,.6g}{'/s' if metric.kind == 'rate' else ''}"

    rows: list[list[Child]] = [
        [
            metric.name,
            metric.kind,
            show(metric, metric.value),
            count(metric.count),
            *(
                f"{value:,.6g}"
                if metric.kind == "rate" and value is not None
                else show(metric, value)
                for value in (metric.min, metric.max)
            ),
            *(show(metric, value) for value in (metric.p50, metric.p95, metric.p99)),
        ]
        for metric in metrics
    ]
    columns = ("metric", "kind", "value", "recorded", "least", "most", "p50", "p95", "p99")
    return _table("Custom metrics", columns, rows, css="words-2")


def _workers(usage: Sequence[UsageResult], segments: Sequence[SegmentResult]) -> Html | None:
    """Who generated the load, and how hard that was for it."""
    given_up = {(each.workflow, each.part, each.attempt): each.reason for each in segments}
    rows: list[list[Child]] = []
    for each in usage:
        worker: Child = each.worker
        reason = given_up.get((each.workflow, each.part, each.attempt))
        if reason is not None:
            note = h("small", {"class": "muted block"}, f"given up: {reason}")
            worker = [each.worker, note]
        mark: Child = h("span", {"class": "mark warn"}, "saturated") if each.saturated else ""
        rows.append(
            [
                worker,
                count(each.part),
                count(each.attempt),
                count(each.cores),
                f"{each.cpu:.0%}",
                size(each.memory_bytes),
                mark,
            ]
        )
    columns = ("worker", "part", "attempt", "cores", "cpu", "memory", "")
    return _table("Workers", columns, rows, css="words-1")


# -- one step, on demand


def _step_details(step: StepResult, elapsed_s: float) -> Html:
    latency = step.latency_ms
    return h(
        "details",
        {"class": "panel"},
        h(
            "summary",
            None,
            h("b", None, step.name),
            h(
                "span",
                {"class": "muted"},
                f"{rate(step.rate_per_second)} · {percent(step.failed, step.total)} failed"
                f" · p50 {millis(latency.p50)} · p99 {millis(latency.p99)}",
            ),
        ),
        h(
            "div",
            {"class": "charts"},
            *_time_charts(step.series, step.series_interval_seconds, elapsed_s),
            percentile_chart(
                "Latency by percentile",
                [ChartLine(step.name, "c0", percentile_curve(_merged([step])))],
                empty="Nothing was timed.",
            ),
            bars("Outcomes", _outcomes([step]), empty="Nothing ended."),
        ),
        _distribution(latency),
        _phases(step),
    )


def _phases(step: StepResult) -> Html | None:
    names = {
        "blocked": "waiting for a connection",
        "connect": "TCP connect",
        "tls": "TLS handshake",
        "first_byte": "to the first byte",
    }
    rows: list[list[Child]] = [
        [names.get(phase, phase), millis(values.get("p50")), millis(values.get("p99"))]
        for phase, values in step.phases_ms.items()
        if values
    ]
    return _table("Where the time went", ("phase", "p50", "p99"), rows, css="words-1")


def _distribution(latency: LatencyMs) -> Html | None:
    names = LatencyMs.__struct_fields__
    row: list[Child] = [millis(getattr(latency, name)) for name in names]
    return _table("Latency", names, [row] if latency.max is not None else [])
