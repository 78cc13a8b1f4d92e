"""The datacenters of a job: how they compare, and a section for each with its own figures."""

from hyperscale.reporting.html.charts import ChartLine, time_chart
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
    table,
)
from hyperscale.reporting.html.overview import CURVES_MAX, callout, series_of, whole_intervals
from hyperscale.reporting.results import DatacenterResult, RunResult, WorkflowResult
from hyperscale.stats.standing import Standing

_STANDINGS = {
    "completed": Standing.PASSED,
    "partial": Standing.PARTIAL,
    "cancelled": Standing.CANCELLED,
    "timeout": Standing.TIMEOUT,
}


def datacenters_section(result: RunResult) -> Html | None:
    """Return how the datacenters compare, then one after the other; None for a single cluster."""
    parts = result.datacenter_results
    if not parts:
        return None
    skew = result.start_skew_ms
    return h(
        "section.workflow",
        h("h2", "Datacenters"),
        None if skew is None else h("p.muted", f"They started within {millis(skew)}."),
        _comparison(parts),
        _requests_chart(parts),
        [_datacenter(f"d{number}", part) for number, part in enumerate(parts)],
        id="datacenters",
    )


def _comparison(parts: list[DatacenterResult]) -> Html | None:
    columns = (
        *("datacenter", "workflow", "ended as", "vus", "requests", "requests/s", "failed"),
        *("p50", "p95", "p99", "max", "up to more"),
    )
    rows: list[list[Child]] = []
    for number, part in enumerate(parts):
        name = h("a", part.datacenter, href=f"#d{number}")
        for workflow in part.workflows:
            missing = sum(g.requests_max for g in part.gaps if g.workflow == workflow.name)
            latency = workflow.latency_ms
            rows.append(
                [
                    name,
                    workflow.name,
                    badge(_STANDINGS.get(part.status, Standing.FAILED), part.status),
                    count(workflow.vus),
                    count(workflow.sent),
                    rate(workflow.requests_per_second),
                    percent(workflow.failed, workflow.total),
                    *(millis(each) for each in (latency.p50, latency.p95, latency.p99)),
                    millis(latency.max),
                    count(missing) if missing else NOTHING,
                ]
            )
    return table("By datacenter", columns, rows, words=3)


def _requests_chart(parts: list[DatacenterResult]) -> Html | None:
    """Return the requests of each datacenter over time, from the start of its own load."""
    lines = []
    for number, part in enumerate(parts[:CURVES_MAX]):
        ran = [workflow for workflow in part.workflows if workflow.sent]
        if ran:
            longest = max(ran, key=lambda workflow: workflow.sent)
            name = part.datacenter if len(ran) == 1 else f"{part.datacenter}: {longest.name}"
            intervals = whole_intervals(
                longest.series, longest.series_interval_seconds, longest.elapsed_seconds
            )
            points = series_of(intervals, lambda point, width_s: point.sent / width_s)
            lines.append(ChartLine(name, f"c{number}", points))
    if not lines:
        return None
    until_s = max(
        (workflow.elapsed_seconds for part in parts for workflow in part.workflows), default=1.0
    )
    chart = time_chart(
        "Requests per second",
        lines,
        until_s=max(1.0, until_s),
        unit="/s",
        empty="Nothing was sent.",
    )
    return h("div.charts", chart)


def _datacenter(anchor: str, part: DatacenterResult) -> Html:
    facts = [f"{seconds(part.elapsed_seconds)} in all"]
    if part.began_seconds is not None:
        facts.append(f"load began {seconds(part.began_seconds)} after the start")
    if part.job_id:
        facts.append(f"job {part.job_id}")
    notes = [part.reason] if part.reason else []
    if part.joined_late:
        notes.append("It was not ready at the start and joined for the remaining time.")
    if part.replaces:
        notes.append(f"It runs the part that {part.replaces} refused.")
    if part.replaced_by:
        notes.append(f"{part.replaced_by} got its part.")
    if part.late:
        notes.append("Its result came after the job had ended: it is in no total.")
    if missing := sum(gap.requests_max for gap in part.gaps):
        notes.append(f"Up to {count(missing)} more requests may have been sent from here.")
    standing = _STANDINGS.get(part.status, Standing.FAILED)
    return h(
        "details.panel",
        h("summary", h("b", part.datacenter), badge(standing, part.status)),
        h("p.muted", " · ".join(facts)),
        [callout(Standing.SUSPECT, note) for note in notes],
        [_steps(workflow) for workflow in part.workflows],
        id=anchor,
    )


def _steps(workflow: WorkflowResult) -> Html | None:
    columns = ("step", "total", "failed", "cut", "sent", "p50", "p90", "p95", "p99", "max")
    rows: list[list[Child]] = [
        [
            step.name,
            count(step.total),
            count(step.failed),
            count(step.cut),
            count(step.sent),
            *(millis(getattr(step.latency_ms, key)) for key in ("p50", "p90", "p95", "p99", "max")),
        ]
        for step in workflow.steps
        if step.total or step.sent
    ]
    return table(workflow.name, columns, rows)
