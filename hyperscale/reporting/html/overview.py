"""The run as a whole: when each workflow ran, its users and requests over time, what went wrong."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from hyperscale.reporting.html.charts import ChartLine, Point, time_chart, time_ticks
from hyperscale.reporting.html.markup import (
    Child,
    Html,
    badge,
    count,
    h,
    percent,
    seconds,
    table,
)
from hyperscale.reporting.results import RunResult, SeriesResult, StepResult, WorkflowResult
from hyperscale.reporting.samples import describe_sample
from hyperscale.reporting.verdict import reasons_of, run_standing, workflow_standing
from hyperscale.stats.shared_cores import cores_text
from hyperscale.stats.standing import SIGNS, Standing

CURVES_MAX = 6  # as many colours as a reader can tell apart


def overview(result: RunResult) -> Html:
    """Return what a reader needs first: the verdict and its reasons, warnings, the timeline."""
    standing = run_standing(result)
    reasons = reasons_of(result) if standing is not Standing.PASSED else []
    return h(
        "section.overview",
        [callout(standing, reason) for reason in reasons],
        [callout(Standing.SUSPECT, warning) for warning in result.warnings],
        _timeline(result),
        _run_charts(result) if len(result.workflows) > 1 else None,
        _errors(result),
        aria_label="Overview",
    )


def callout(standing: Standing, text: str) -> Html:
    sign = SIGNS[standing]
    symbol = h("span.symbol", sign.symbol, aria_hidden="true")
    return h(f"p.callout.{sign.tone}", symbol, text)


def _timeline(result: RunResult) -> Html | None:
    """Return a lane per workflow: when it ran, on how many cores."""
    if not result.workflows:
        return None
    until_s = _end_of(result)
    lanes = [
        h("li.lane", *_lane(number, workflow, until_s))
        for number, workflow in enumerate(result.workflows)
    ]
    ticks = [
        h("span", label, style=f"left: {100 * at_s / until_s:.2f}%")
        for at_s, label in time_ticks(until_s)
        if at_s <= 0.97 * until_s  # further on, it would be cut off
    ]
    return h(
        "figure.timeline",
        h("figcaption", h("b", "Timeline")),
        h("ol.lanes", lanes),
        h("div.lane.axis", h("span"), h("div.ticks", ticks), h("span")),
    )


def _end_of(result: RunResult) -> float:
    ends = [(w.began_seconds or 0.0) + w.elapsed_seconds for w in result.workflows]
    return max(1.0, result.elapsed_seconds, *ends)


def _lane(number: int, workflow: WorkflowResult, until_s: float) -> tuple[Html, Html, Html]:
    standing = workflow_standing(workflow)
    name = h("a.lane-name", workflow.name, href=f"#w{number}")
    if workflow.began_seconds is None:
        return name, h("span"), h("span.lane-note", badge(standing), " did not run")
    begin_s, end_s = workflow.began_seconds, workflow.began_seconds + workflow.elapsed_seconds
    at, width = (100 * value / until_s for value in (begin_s, workflow.elapsed_seconds))
    cores = cores_text(workflow.cores, workflow.shared_cores)
    said = f"{workflow.name}: {standing}, {seconds(begin_s)} to {seconds(end_s)}, {cores}"
    bar = h(
        "svg.lane-bar",
        h("title", said),
        h("rect.bar-back", width=100, height=10),
        h(
            f"rect.fill.{SIGNS[standing].tone}",
            x=f"{at:.2f}",
            width=f"{max(width, 0.4):.2f}",
            height=10,
        ),
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
    )
    note = f"{seconds(workflow.elapsed_seconds)} · {cores}"
    return name, bar, h("span.lane-note", badge(standing), " ", note)


def _run_charts(result: RunResult) -> Html | None:
    """Return users and requests of the workflows over the time of the run."""
    ran = [workflow for workflow in result.workflows if workflow.began_seconds is not None]
    largest = sorted(ran, key=lambda workflow: -workflow.sent)[:CURVES_MAX]
    shown = [workflow for workflow in ran if workflow in largest]
    left_out = f" of the {CURVES_MAX} largest workflows" if len(ran) > len(shown) else ""
    until_s = _end_of(result)

    def lines(value: Callable[[SeriesResult, float], float | None]) -> list[ChartLine]:
        return [
            ChartLine(
                workflow.name,
                f"c{number}",
                [
                    (at_s + (workflow.began_seconds or 0.0), value(point, width_s))
                    for at_s, width_s, point in whole_intervals(
                        workflow.series, workflow.series_interval_seconds, workflow.elapsed_seconds
                    )
                ],
            )
            for number, workflow in enumerate(shown)
        ]

    if not shown:
        return None
    users = lines(lambda point, _: point.vus)
    requests = lines(lambda point, width_s: point.sent / width_s)
    return h(
        "div.charts",
        time_chart(
            f"Requests per second{left_out}",
            requests,
            until_s=until_s,
            unit="/s",
            empty="No request was sent.",
        ),
        time_chart(
            f"Virtual users{left_out}",
            users,
            until_s=until_s,
            unit="",
            empty="Users were not counted.",
        ),
    )


def whole_intervals(
    series: Sequence[SeriesResult], interval_s: int, elapsed_s: float
) -> list[tuple[float, float, SeriesResult]]:
    """Return the middle and the width of each interval that can be shown as a rate.

    The last interval is seldom whole. As a rate it counts for the time it had, and if that was
    short it says nothing.
    """
    found = []
    for point in series:
        width_s = min(interval_s, elapsed_s - point.at_seconds)
        if width_s < interval_s / 2 and len(series) > 1:
            continue
        at_s = point.at_seconds + max(width_s, 0.0) / 2
        found.append((at_s, width_s if width_s > 0 else float(interval_s), point))
    return found


def series_of(
    intervals: Sequence[tuple[float, float, SeriesResult]],
    value: Callable[[SeriesResult, float], float | None],
) -> list[Point]:
    return [(at_s, value(point, width_s)) for at_s, width_s, point in intervals]


def _errors(result: RunResult) -> Html | None:
    """Return the failures of all workflows by step and message, the most frequent first."""
    rows: list[tuple[int, list[Child]]] = []
    for workflow in result.workflows:
        for step in workflow.steps:
            name = step.name if len(result.workflows) == 1 else f"{workflow.name}.{step.name}"
            for error, message, failures in _messages(step):
                share = percent(failures, step.total)
                rows.append((failures, [name, error, message, count(failures), share]))
    rows.sort(key=lambda row: -row[0])
    columns = ("step", "error", "message", "failed", "of the step's calls")
    return table("Errors", columns, [cells for _, cells in rows], words=3)


def _messages(step: StepResult) -> Iterator[tuple[str, Child, int]]:
    """Yield class, message and count of the failures of a step: those without a message last."""
    left = Counter(step.errors)
    for each in step.failures:
        left[each.error] -= each.count
        message: Child = each.message
        if each.sample is not None and (text := describe_sample(each.sample)):
            message = h("details", h("summary", each.message), h("pre", text))
        yield each.error, message, each.count
    for error, failures in left.items():
        if failures > 0:
            yield error, _codes(step) if error == "status" else "", failures


def _codes(step: StepResult) -> str:
    """Return the failed status codes of a step."""
    codes = [f"{code}: {count(n)}" for code, n in step.status_codes.items() if code >= "400"]
    return ", ".join(codes)
