"""The summary of a run: tables of what happened, and the verdict at the bottom. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from hyperscale.config import format_duration
from hyperscale.reporting.results import (
    MetricResult,
    RunResult,
    RunStatus,
    StepResult,
    ThresholdResult,
    WorkflowResult,
    failed_checks,
    is_fruitless,
)
from hyperscale.stats.attempt_results import UsageResult
from hyperscale.stats.view import ViewStatus
from hyperscale.ui.line import Column, StyledLine, table, wrap
from hyperscale.ui.panel import INDENT, Note, outcome_notes, status_mark, step_label
from hyperscale.ui.text import format_bytes, format_count, format_ms, format_rate, wrap_words
from hyperscale.ui.theme import Theme

_WIDTH_MIN = 40
_TITLE_WIDTH = 9  # of what stands before errors, checks and the like; as wide as "all steps"
_WORKERS_SHOWN = 8
_OUTPUT_ORDER = {"html": 0, "json": 1, "output": 2}  # what people open comes first


def summary(result: RunResult, width: int, theme: Theme) -> list[str]:
    """Return the summary as lines of at most `width` cells."""
    width = max(_WIDTH_MIN, width)
    lines = [StyledLine(theme)]
    for workflow in result.workflows:
        usage = [each for each in result.usage if each.workflow == workflow.name]
        lines += [*_workflow(workflow, usage, width, theme), StyledLine(theme)]
    if result.thresholds:
        lines += [*_thresholds(result.thresholds, width, theme), StyledLine(theme)]
    if result.warnings or result.saturated:
        lines += [*_warnings(result, width, theme), StyledLine(theme)]
    rendered = [line.render(width).rstrip() for line in lines]
    if result.outputs:
        # Paths are for copying: the terminal wraps them, and nothing is cut.
        rendered += [line.render(line.width) for line in _outputs(result.outputs, theme)]
        rendered.append("")
    return rendered + [line.render(width) for line in _verdict(result, width, theme)]


def _workflow(
    workflow: WorkflowResult, usage: Sequence[UsageResult], width: int, theme: Theme
) -> list[StyledLine]:
    mark, role = status_mark(theme, ViewStatus(workflow.status.value))
    if is_fruitless(workflow):
        mark, role = theme.glyphs.failed, "failed"
    head = StyledLine(theme, mark, role).add(" ").add(workflow.name, "title")
    head.add("  ").add(workflow.status.value, role)
    if not workflow.elapsed_seconds and not workflow.total:
        return [head, *_error(workflow, width, theme)]
    cores = f"{workflow.cores} core{'s' if workflow.cores != 1 else ''}"
    head.add(f" in {format_duration(workflow.elapsed_seconds)}")
    for fact in (
        f"{format_count(workflow.vus)} vus on {cores}",
        f"{format_count(workflow.total)} requests",
        f"{format_rate(workflow.rate_per_second)}/s",
    ):
        if head.width + len(fact) + 3 <= width:
            head.add(f" {theme.glyphs.separator} ", "dim").add(fact)
    lines = [head, *_error(workflow, width, theme)]
    if workflow.steps:
        rows = list(workflow.steps)
        if sum(step.kind == "test" for step in rows) > 1:
            rows.append(_total(workflow))
        lines += table(theme, _STEP_COLUMNS, rows, width, indent=INDENT)
    for title, items in _notes(workflow):
        lines += _block(title, _items(theme, items), width, theme)
    lines += _checks(workflow, width, theme)
    if usage:
        lines += _block("workers", _items(theme, _workers(usage)), width, theme)
    return lines


def _block(title: str, parts: Sequence[StyledLine], width: int, theme: Theme) -> list[StyledLine]:
    """Return `errors   timeout 12 · reset 3`, over as many lines as it takes."""
    head = StyledLine(theme, " " * INDENT).add_fit(title, _TITLE_WIDTH, "dim").add("  ")
    return wrap(theme, head, parts, width, gap=f" {theme.glyphs.separator} ")


def _items(theme: Theme, items: Sequence[tuple[str, str, str]]) -> list[StyledLine]:
    return [StyledLine(theme, name, role).add(f" {value}") for name, value, role in items]


def _error(workflow: WorkflowResult, width: int, theme: Theme) -> list[StyledLine]:
    if not workflow.error:
        return []
    role = "warn" if workflow.status is RunStatus.CANCELLED else "failed"
    parts = wrap_words(theme.clean(workflow.error), width - INDENT)
    return [StyledLine(theme, " " * INDENT).add(part, role) for part in parts]


_STEP_COLUMNS: tuple[Column[StepResult], ...] = (
    Column("step", step_label, lambda s: "" if s.kind else "dim", right=False, width_max=32),
    Column("ok", lambda s: format_count(s.ok)),
    Column("failed", lambda s: format_count(s.failed), lambda s: "failed" if s.failed else ""),
    Column("cut", lambda s: format_count(s.cut), lambda s: "warn" * bool(s.cut), rank=4),
    Column(
        "skipped", lambda s: format_count(s.skipped), lambda s: "warn" * bool(s.skipped), rank=9
    ),
    Column("sent", lambda s: format_count(s.sent), rank=8),
    Column("rate/s", lambda s: format_rate(s.rate_per_second), rank=3),
    Column("min", lambda s: format_ms(s.latency_ms.min), rank=11),
    Column("mean", lambda s: format_ms(s.latency_ms.mean), rank=10),
    Column("p50", lambda s: format_ms(s.latency_ms.p50), rank=1),
    Column("p90", lambda s: format_ms(s.latency_ms.p90), rank=6),
    Column("p95", lambda s: format_ms(s.latency_ms.p95), rank=5),
    Column("p99", lambda s: format_ms(s.latency_ms.p99)),
    Column("p99.9", lambda s: format_ms(s.latency_ms.p999), rank=7),
    Column("max", lambda s: format_ms(s.latency_ms.max), rank=2),
)


def _total(workflow: WorkflowResult) -> StepResult:
    """Return the workflow's own totals as a row: from merged histograms, not from percentiles."""
    return StepResult(
        name="all steps",
        kind="",
        total=workflow.total,
        ok=workflow.ok,
        failed=workflow.failed,
        cut=workflow.cut,
        skipped=sum(step.skipped for step in workflow.steps if step.kind == "test"),
        sent=workflow.sent,
        rate_per_second=workflow.rate_per_second,
        latency_ms=workflow.latency_ms,
    )


def _notes(workflow: WorkflowResult) -> list[Note]:
    errors: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    for step in workflow.steps:
        errors.update(step.errors)
        codes.update(step.status_codes)
    notes = outcome_notes(errors, codes)
    received = sum(step.bytes_received for step in workflow.steps)
    sent = sum(step.bytes_sent for step in workflow.steps)
    if received or sent:
        items = [("received", format_bytes(received), ""), ("sent", format_bytes(sent), "")]
        notes.append(("bytes", items))
    if workflow.metrics:
        notes.append(("metrics", [(m.name, _metric(m), "") for m in workflow.metrics]))
    return notes


def _workers(usage: Sequence[UsageResult]) -> list[tuple[str, str, str]]:
    """Return the peak CPU and memory use of each worker, the busiest worker first."""
    busiest: dict[str, UsageResult] = {}
    for each in sorted(usage, key=lambda each: (not each.saturated, -each.cpu)):
        busiest.setdefault(each.worker, each)
    rows = list(busiest.values())
    items = [
        (
            row.worker,
            f"cpu {row.cpu:.0%}, {format_bytes(row.memory_bytes)}{', saturated' * row.saturated}",
            "warn" if row.saturated else "",
        )
        for row in rows[:_WORKERS_SHOWN]
    ]
    if rest := rows[_WORKERS_SHOWN:]:
        items.append(
            (f"{len(rest)} more", f"cpu {max(row.cpu for row in rest):.0%} at most", "dim")
        )
    return items


def _metric(metric: MetricResult) -> str:
    if metric.value is None:
        return "never recorded"
    match metric.kind:
        case "timer":
            p99 = "" if metric.p99 is None else f", p99 {format_ms(metric.p99 * 1e3)}"
            return f"mean {format_ms(metric.value * 1e3)}{p99}"
        case "distribution":
            p99 = "" if metric.p99 is None else f", p99 {metric.p99:.6g}"
            return f"mean {metric.value:.6g}{p99}"
        case "rate":
            return f"{format_rate(metric.value)}/s"
    return f"{metric.value:,.6g}" if abs(metric.value) < 1e6 else f"{metric.value:,.0f}"


def _checks(workflow: WorkflowResult, width: int, theme: Theme) -> list[StyledLine]:
    glyphs = theme.glyphs
    passing = [
        StyledLine(theme, f"{glyphs.passed} ", "ok").add(
            f"{check.name} {format_count(check.passed)}"
        )
        for check in workflow.checks
        if check.passed and not check.failed
    ]
    blocks = [passing]
    for check in workflow.checks:
        if check.failed:
            total = format_count(check.passed + check.failed)
            part = StyledLine(theme, f"{glyphs.failed} {check.name}", "failed")
            part.add(f" {format_count(check.failed)} of {total} failed")
            if check.first_failure:
                part.add(f"  first: {check.first_failure}", "dim")
            blocks.append([part])
        elif not check.passed:
            blocks.append([StyledLine(theme, check.name).add(" never ran", "warn")])
    lines: list[StyledLine] = []
    for parts in filter(None, blocks):
        lines += _block("" if lines else "checks", parts, width, theme)
    return lines


def _thresholds(
    thresholds: Sequence[ThresholdResult], width: int, theme: Theme
) -> list[StyledLine]:
    glyphs = theme.glyphs

    def role(threshold: ThresholdResult) -> str:
        return "ok" if threshold.passed else "failed"

    columns: list[Column[ThresholdResult]] = [
        Column(
            "threshold",
            lambda t: f"{glyphs.passed if t.passed else glyphs.failed} {t.name}",
            role,
            right=False,
        ),
        Column("limit", lambda t: t.limit, right=False),
        Column("was", _measured, role),
        Column("workflow", lambda t: t.workflow, rank=1, right=False),
    ]
    return table(theme, columns, thresholds, width, indent=INDENT)


def _measured(threshold: ThresholdResult) -> str:
    if threshold.value is None:
        return "no samples"
    return f"{threshold.value:,.4g}{threshold.unit}"


def _warnings(result: RunResult, width: int, theme: Theme) -> list[StyledLine]:
    saturated = "the load generator itself was saturated, so latencies are suspect"
    lines = []
    for warning in result.warnings or [saturated]:
        for index, part in enumerate(wrap_words(theme.clean(warning), width - 2)):
            mark = theme.glyphs.warning if not index else " "
            lines.append(StyledLine(theme, f"{mark} ", "warn").add(part, "warn"))
    return lines


def _outputs(outputs: Mapping[str, str], theme: Theme) -> list[StyledLine]:
    widest = max(len(theme.clean(kind)) for kind in outputs)
    return [
        StyledLine(theme).add_fit(kind, widest, "dim").add("  ").add(path, "title")
        for kind, path in sorted(outputs.items(), key=lambda item: _OUTPUT_ORDER.get(item[0], 9))
    ]


def _verdict(result: RunResult, width: int, theme: Theme) -> list[StyledLine]:
    mark, role = status_mark(theme, ViewStatus(result.status.value))
    if result.status is not RunStatus.COMPLETED:
        text = f"{mark} {result.status.value}"
        if result.elapsed_seconds:  # one that never began took no time
            text += f" after {format_duration(result.elapsed_seconds)}"
        return [StyledLine(theme, text, role)]
    broken = [threshold for threshold in result.thresholds if not threshold.passed]
    checks = [c for w in result.workflows for c in failed_checks(w, result.thresholds)]
    took = format_duration(result.elapsed_seconds)
    fruitless = [workflow.name for workflow in result.workflows if is_fruitless(workflow)]
    if result.passed and fruitless:
        text = f"{theme.glyphs.failed} completed in {took}, but no request of "
        text += f"{_listed(fruitless)} succeeded; no threshold or check failed, so the exit code "
        text += 'is 0 (hint: thresholds = {"errors": "<1%"})'
        return _failed(text, width, theme)
    if result.passed:
        return [StyledLine(theme, f"{theme.glyphs.passed} passed in {took}", "ok")]
    parts = [f"{t.name} {t.limit} (was {_measured(t)})" for t in broken]
    parts += [f"check {check.name}" for check in checks]
    return _failed(f"{theme.glyphs.failed} failed: {', '.join(parts)}", width, theme)


def _failed(text: str, width: int, theme: Theme) -> list[StyledLine]:
    return [StyledLine(theme, part, "failed") for part in wrap_words(theme.clean(text), width)]


def _listed(names: Sequence[str]) -> str:
    """Return `A`, `A and B`, or `A, B and C`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
