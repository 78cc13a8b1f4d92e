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
    censoring,
    changes_text,
)
from hyperscale.reporting.verdict import (
    check_standing,
    faults_of,
    measured,
    reasons_of,
    run_standing,
    threshold_standing,
    thresholds_of,
    workflow_standing,
)
from hyperscale.stats.attempt_results import UsageResult
from hyperscale.stats.shared_cores import cores_text
from hyperscale.stats.standing import SIGNS, Standing
from hyperscale.ui.datacenters import ended_datacenters
from hyperscale.ui.line import Column, StyledLine, table, wrap
from hyperscale.ui.panel import INDENT, Note, outcome_notes, step_label
from hyperscale.ui.text import format_bytes, format_count, format_ms, format_rate, wrap_words
from hyperscale.ui.theme import Theme

_WIDTH_MIN = 40
_TITLE_WIDTH = 9  # of what stands before errors, checks and the like; as wide as "all steps"
_WORKERS_SHOWN = 8
_FAILURES_SHOWN = 8
_REASONS_SHOWN = 8
_OUTPUT_ORDER = {"html": 0, "json": 1, "output": 2}  # what people open comes first


def summary(result: RunResult, width: int, theme: Theme) -> list[str]:
    """Return the summary as lines of at most `width` cells."""
    width = max(_WIDTH_MIN, width)
    lines = [StyledLine(theme)]
    for workflow in result.workflows:
        lines += [*_workflow(workflow, result, width, theme), StyledLine(theme)]
    if result.datacenter_results:
        lines += [*ended_datacenters(result, width, theme), StyledLine(theme)]
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
    workflow: WorkflowResult, result: RunResult, width: int, theme: Theme
) -> list[StyledLine]:
    standing = workflow_standing(workflow)
    symbol, role = theme.sign(standing)
    head = StyledLine(theme, symbol, role).add(" ").add(workflow.name, "title")
    head.add("  ").add(standing, role)
    why = [
        StyledLine(theme, " " * INDENT).add(part, role)
        for reason in ([workflow.error] if workflow.error else faults_of(workflow))
        for part in wrap_words(theme.clean(reason), width - INDENT)
    ]
    if not workflow.elapsed_seconds and not workflow.total and not workflow.sent:
        return [head, *why]
    cores = cores_text(workflow.cores, workflow.shared_cores)
    head.add(f" in {format_duration(workflow.elapsed_seconds)}")
    rates = (f"{format_rate(workflow.requests_per_second)}/s",) if workflow.sent else ()
    steps = [f"{format_count(workflow.total)} steps"]
    if not workflow.sent:
        steps.append(f"{format_rate(workflow.rate_per_second)} steps/s")
    for fact in (
        f"{format_count(workflow.vus)} vus on {cores}",
        f"{format_count(workflow.sent)} requests",
        *rates,
        *steps,
        f"{format_count(workflow.iterations)} iterations",
    ):
        if head.width + len(fact) + 3 <= width:
            head.add(f" {theme.glyphs.separator} ", "dim").add(fact)
    lines = [head, *why]
    if workflow.steps:
        rows = list(workflow.steps)
        if sum(step.kind == "test" for step in rows) > 1:
            rows.append(_total(workflow))
        lines += table(theme, _STEP_COLUMNS, rows, width, indent=INDENT)
    for title, items in _notes(workflow):
        lines += _block(title, _items(theme, items), width, theme)
    lines += _failures(workflow, width, theme)
    lines += _checks(workflow, thresholds_of(workflow, result), width, theme)
    usage = [each for each in result.usage if each.workflow == workflow.name]
    if usage:
        lines += _block("workers", _items(theme, _workers(usage)), width, theme)
    return lines


def _failures(workflow: WorkflowResult, width: int, theme: Theme) -> list[StyledLine]:
    """Return the most frequent messages of failed calls, each with the request of its sample."""
    found = [(step, each) for step in workflow.steps for each in step.failures]
    found.sort(key=lambda pair: -pair[1].count)
    lines: list[StyledLine] = []
    for step, each in found[:_FAILURES_SHOWN]:
        part = StyledLine(theme, f"{format_count(each.count)} ", "failed")
        part.add(f"{step.name}: {each.error}: {each.message}")
        if each.sample is not None and each.sample.request:
            part.add(f"  {each.sample.request}", "dim")
        lines += _block("" if lines else "failures", [part], width, theme)
    if (more := len(found) - _FAILURES_SHOWN) > 0:
        rest = StyledLine(theme, f"and {more} more messages", "dim")
        lines += _block("", [rest], width, theme)
    return lines


def _block(title: str, parts: Sequence[StyledLine], width: int, theme: Theme) -> list[StyledLine]:
    """Return `errors   timeout 12 · reset 3`, over as many lines as it takes."""
    head = StyledLine(theme, " " * INDENT).add_fit(title, _TITLE_WIDTH, "dim").add("  ")
    return wrap(theme, head, parts, width, gap=f" {theme.glyphs.separator} ")


def _items(theme: Theme, items: Sequence[tuple[str, str, str]]) -> list[StyledLine]:
    return [StyledLine(theme, name, role).add(f" {value}") for name, value, role in items]


_STEP_COLUMNS: tuple[Column[StepResult], ...] = (
    Column("step", step_label, lambda s: "" if s.kind else "dim", right=False, width_max=32),
    Column("ok", lambda s: format_count(s.ok)),
    Column("failed", lambda s: format_count(s.failed), lambda s: "failed" if s.failed else ""),
    Column("none", lambda s: format_count(s.none), rank=2, is_optional=True),
    Column("cut", lambda s: format_count(s.cut), lambda s: "warn" * bool(s.cut), rank=4),
    Column(
        "skipped", lambda s: format_count(s.skipped), lambda s: "warn" * bool(s.skipped), rank=9
    ),
    Column("sent", lambda s: format_count(s.sent), rank=8),
    Column("steps/s", lambda s: format_rate(s.rate_per_second), rank=3),
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
    tests = [step for step in workflow.steps if step.kind == "test"]
    return StepResult(
        name="all steps",
        kind="",
        total=workflow.total,
        ok=workflow.ok,
        failed=workflow.failed,
        none=workflow.none,
        cut=workflow.cut,
        skipped=sum(step.skipped for step in tests),
        sent=sum(step.sent for step in tests),
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
    if (cut := censoring(workflow)) is not None:
        notes.append(("cut", [(cut, "", "warn")]))
    if workflow.changes:
        notes.append(("changes", [(text, "", "") for text in changes_text(workflow)]))
    if workflow.arrivals:
        notes.append(("arrivals", _arrivals(workflow)))
    if workflow.iteration_ms.p99 is not None and (len(workflow.steps) > 1 or workflow.arrivals):
        took = workflow.iteration_ms
        items = [(name, format_ms(getattr(took, name)), "") for name in ("p50", "p95", "p99")]
        notes.append(("iteration", items))
    way = ("in Python", workflow.in_python) if workflow.in_python else ("native", "")
    notes.append(("engine", [(*way, "")]))
    received = sum(step.bytes_received for step in workflow.steps)
    sent = sum(step.bytes_sent for step in workflow.steps)
    if received or sent:
        items = [("received", format_bytes(received), ""), ("sent", format_bytes(sent), "")]
        notes.append(("bytes", items))
    if workflow.loop_held:
        notes.append(("loop held", _held(workflow)))
    if workflow.metrics:
        notes.append(("metrics", [(m.name, _metric(m), "") for m in workflow.metrics]))
    return notes


def _arrivals(workflow: WorkflowResult) -> list[tuple[str, str, str]]:
    """Return the arrivals of an open workflow, and its latencies from the send."""
    counts = {"late": workflow.late, "dropped": workflow.dropped}
    items = [("due", format_count(workflow.arrivals), "")]
    items += [(name, format_count(n), "warn" if n else "") for name, n in counts.items()]
    items.append(("p99 from the send", format_ms(workflow.service_ms.p99), ""))
    return items


def _held(workflow: WorkflowResult) -> list[tuple[str, str, str]]:
    """Return how long the code of the test held the event loop, and which steps did."""
    steps = sorted(workflow.steps, key=lambda step: -step.held_seconds)
    total = f"for {format_duration(workflow.held_seconds)} in all"
    items = [("latencies are suspect", total, "warn")]
    for step in steps:
        if step.held_seconds:
            held = f"{format_duration(step.held_seconds)}, up to {format_ms(step.held_max_ms)}"
            items.append((step.name, held, ""))
    return items


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


def _checks(
    workflow: WorkflowResult, thresholds: Sequence[ThresholdResult], width: int, theme: Theme
) -> list[StyledLine]:
    together: list[StyledLine] = []  # those of which there is nothing more to say
    blocks = [together]
    for check in workflow.checks:
        standing = check_standing(check, thresholds)
        symbol, role = theme.sign(standing)
        part = StyledLine(theme, f"{symbol} ", role)
        if standing is Standing.PASSED:
            together.append(part.add(f"{check.name} {format_count(check.passed)}"))
            continue
        part.add(check.name, role)
        if check.failed:
            total = format_count(check.passed + check.failed)
            part.add(f" {format_count(check.failed)} of {total} failed")
            if standing is Standing.ALLOWED:
                part.add(f" ({standing})", role)
            if check.first_failure:
                part.add(f"  first: {check.first_failure}", "dim")
        else:
            part.add(f" {standing}", role)
        blocks.append([part])
    lines: list[StyledLine] = []
    for parts in filter(None, blocks):
        lines += _block("" if lines else "checks", parts, width, theme)
    return lines


def _thresholds(
    thresholds: Sequence[ThresholdResult], width: int, theme: Theme
) -> list[StyledLine]:
    def symbol(threshold: ThresholdResult) -> str:
        return theme.sign(threshold_standing(threshold))[0]

    def role(threshold: ThresholdResult) -> str:
        return SIGNS[threshold_standing(threshold)].tone

    columns: list[Column[ThresholdResult]] = [
        Column("threshold", lambda t: f"{symbol(t)} {t.name}", role, right=False),
        Column("limit", lambda t: t.limit, right=False),
        Column("was", measured, role),
        Column("workflow", lambda t: t.workflow, rank=1, right=False),
    ]
    return table(theme, columns, thresholds, width, indent=INDENT)


def _warnings(result: RunResult, width: int, theme: Theme) -> list[StyledLine]:
    saturated = "the load generator itself was saturated, so latencies are suspect"
    symbol, role = theme.sign(Standing.SUSPECT)
    lines = []
    for warning in result.warnings or [saturated]:
        for index, part in enumerate(wrap_words(theme.clean(warning), width - 2)):
            mark = symbol if not index else " "
            lines.append(StyledLine(theme, f"{mark} ", role).add(part, role))
    return lines


def _outputs(outputs: Mapping[str, str], theme: Theme) -> list[StyledLine]:
    widest = max(len(theme.clean(kind)) for kind in outputs)
    return [
        StyledLine(theme).add_fit(kind, widest, "dim").add("  ").add(path, "title")
        for kind, path in sorted(outputs.items(), key=lambda item: _OUTPUT_ORDER.get(item[0], 9))
    ]


def _verdict(result: RunResult, width: int, theme: Theme) -> list[StyledLine]:
    standing = run_standing(result)
    symbol, role = theme.sign(standing)
    text = f"{symbol} {standing}"
    if result.elapsed_seconds:  # one that never began took no time
        preposition = "in" if result.status is RunStatus.COMPLETED else "after"
        text += f" {preposition} {format_duration(result.elapsed_seconds)}"
    if standing is Standing.FAILED:
        reasons = reasons_of(result)
        text += f": {'; '.join(reasons[:_REASONS_SHOWN])}"
        if more := len(reasons) - _REASONS_SHOWN:
            text += f"; and {more} more" if more > 0 else ""
    return [StyledLine(theme, part, role) for part in wrap_words(theme.clean(text), width)]
