import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale._native import Histogram
from hyperscale.reporting.build import WorkflowOutcome, build_result
from hyperscale.reporting.html.charts import ChartLine, nice_ticks, percentile_chart, time_chart
from hyperscale.reporting.html.markup import (
    Html,
    h,
    join,
    millis,
    percent,
    rate,
    seconds,
    short,
    size,
)
from hyperscale.reporting.html.page import encode_html
from hyperscale.reporting.results import RunResult, RunStatus
from hyperscale.reporting.xml_report import xml_text
from hyperscale.stats.attempt_results import SegmentResult, UsageResult
from hyperscale.stats.workflow import WorkflowStats
from tests.lab.reports import native, read
from tests.reporting.runs import STARTED_AT, hostile, hostile_results, shop_result
from tests.stats.parts import Part, make_plan
from tests.ui import scenes

VOID = {"meta"}
TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "div",
    "span",
    "h1",
    "h2",
    "h3",
    "button",
    "dl",
    "dt",
    "dd",
    "main",
    "nav",
    "a",
    "i",
    "p",
    "section",
    "figure",
    "figcaption",
    "b",
    "svg",
    "path",
    "line",
    "text",
    "ol",
    "li",
    "circle",
    "rect",
    "small",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "pre",
    "script",
}


class Page(HTMLParser):
    """What a browser would see: elements, attributes, text; fails on unbalanced markup."""

    def __init__(self, content: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(content.decode("utf-8"))
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("style", "script"):
            self.texts.append(data)


def test_the_page_shows_the_run() -> None:
    page = Page(encode_html(shop_result(("login.p99", "<250ms"), ("errors", "<1%"))))
    for word in ("shop.py", "Shop", "login", "pay", "<250ms", "is_fast", "carts", "timeout"):
        assert word in page.texts
    assert "failed" in page.texts
    titles = {"Timeline", "Requests per second", "Virtual users", "Latency", "Outcomes", "Errors"}
    assert titles <= set(page.texts)
    assert {"p50", "p90", "p95", "p99"} <= set(page.texts)


def test_the_page_counts_requests_as_sent_and_says_where_percentiles_are_censored() -> None:
    stats = WorkflowStats(make_plan())
    part, taken = Part(), Histogram()
    for _ in range(10):
        part.request("login", 10_000_000, at_s=0.5, sent=4)
    part.counts["login"].none, part.counts["login"].cut = 7, 2
    taken.record(1_500_000_000)
    taken.record(2_500_000_000)
    report = read(part.report())
    (report.steps[0].phases or {})["cut"] = taken.encode()
    stats.apply(native(report))
    outcome = WorkflowOutcome(stats=stats, status=RunStatus.COMPLETED, cores=1)
    result = build_result(
        file="shop.py",
        status=RunStatus.COMPLETED,
        started_at=STARTED_AT,
        elapsed_s=1.0,
        outcomes=[outcome],
    )
    page = Page(encode_html(result))
    tile = page.texts.index("requests")
    assert page.texts[tile + 1] == "40"
    censored = "2 calls cut at the end, after 1.5s to 2.5s: percentiles are censored from 1.5s on"
    assert page.texts.count(censored) == 2  # of the workflow and of its step
    assert "none" in page.texts
    assert "7" in page.texts


def test_the_page_of_a_job_shows_the_cpu_and_memory_use_of_its_workers() -> None:
    result = shop_result()
    used = UsageResult(
        workflow="Shop",
        part=0,
        attempt=1,
        worker="<w1>",
        cores=2,
        cpu=0.97,
        memory_bytes=41_000_000,
    )
    again = msgspec.structs.replace(used, attempt=2, worker="w2", saturated=True)
    lost = SegmentResult(workflow="Shop", part=0, attempt=1, worker="<w1>", reason="<w1> died")
    page = Page(
        encode_html(
            msgspec.structs.replace(
                result, job_id="default.1-abc", usage=[used, again], segments=[lost]
            )
        )
    )
    for word in ("default.1-abc", "Workers", "<w1>", "w2", "97%", "given up: <w1> died"):
        assert word in page.texts, word
    assert page.texts.count("saturated") == 1
    assert "Workers" not in Page(encode_html(result)).texts


def test_the_report_marks_a_held_loop_and_the_step_that_held_it() -> None:
    result = shop_result()
    shop = result.workflows[0]
    first, *others = shop.steps
    held = msgspec.structs.replace(first, held_seconds=1.5, held_max_ms=31.0)
    marked = msgspec.structs.replace(shop, steps=[held, *others], loop_held=True, held_seconds=1.5)
    page = encode_html(msgspec.structs.replace(result, workflows=[marked])).decode()
    assert page.count("loop held: latencies are suspect") == 1
    assert page.count("held the loop for 1.5 s") == 1
    assert "loop held" not in encode_html(result).decode()


def test_the_page_of_a_global_job_has_a_section_per_datacenter() -> None:
    page = encode_html(scenes.global_result()).decode()
    assert "They started within 12.5 ms." in page
    for text in ('id="d0"', 'id="d1"', "not heard", "Up to 321 more requests", 'href="#d1"'):
        assert text in page, text


def test_the_page_loads_nothing_from_elsewhere() -> None:
    content = encode_html(shop_result()).decode()
    page = Page(content.encode())
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "srcset", "data", "action", "formaction", "xlink:href"}
    assert all(str(value).startswith("#") for name, value in page.attributes if name == "href")
    policies = [str(value) for name, value in page.attributes if name == "content"]
    assert any(value.startswith("default-src 'none'; ") for value in policies)
    assert "@import" not in content
    assert "url(" not in content


@given(hostile_results)
@settings(max_examples=60)
def test_hostile_names_stay_text(result: RunResult) -> None:
    page = Page(encode_html(result))
    assert set(page.tags) <= TAGS
    assert page.tags.count("script") == 1
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    shown = "".join(page.texts)
    for workflow in result.workflows:
        assert normalised(workflow.name) in normalised(shown)
        for step in workflow.steps:
            assert normalised(step.name) in normalised(shown)


def normalised(text: str) -> str:
    return xml_text(text).replace("\r\n", "\n").replace("\r", "\n")


@given(st.lists(hostile))
def test_text_is_escaped_and_markup_is_not(texts: list[str]) -> None:
    joined = join([*texts, h("b", texts, title="".join(texts))])
    assert isinstance(joined, Html)
    assert joined.count("<") == 2
    assert Page(f"<p>{joined}</p>".encode("utf-8", "replace")).tags == ["p", "b"]


@pytest.mark.parametrize("status", list(RunStatus))
def test_every_status_has_a_page(status: RunStatus) -> None:
    page = Page(encode_html(shop_result(("checks", ">=75%"), status=status)))
    assert ("passed" if status is RunStatus.COMPLETED else status.value) in page.texts


def test_a_result_without_workflows_has_a_page() -> None:
    empty = RunResult(
        status=RunStatus.FAILED, file="x.py", started_at="2026-03-01T12:00:00Z", elapsed_seconds=0
    )
    assert "x.py" in Page(encode_html(empty)).texts


def test_the_numbers_of_the_page_are_those_of_the_results() -> None:
    result = shop_result(("errors", "<1%"))
    (workflow,) = result.workflows
    page = Page(encode_html(result))
    for step in workflow.steps:
        for number in (step.total, step.ok, step.failed, step.cut, step.sent):
            assert f"{number:,}" in page.texts
        for key in ("p50", "p90", "p95", "p99", "max"):
            assert millis(getattr(step.latency_ms, key)) in page.texts
    drawn = [json.loads(value or "") for name, value in page.attributes if name == "data-plot"]
    curves = {line["label"]: line["points"] for line in drawn[2]}  # requests, users, latency
    for key in ("p50", "p90", "p95", "p99"):
        shown = [point[2] for point in curves[key]]
        assert shown == [millis(getattr(point, f"{key}_ms")) for point in workflow.series]
    users = [point[2] for point in drawn[1][0]["points"]]
    assert users == [str(point.vus) for point in workflow.series]


def test_the_timeline_has_a_lane_for_every_workflow_and_where_it_ran() -> None:
    result = shop_result(("checks", ">=75%"))
    (first,) = result.workflows
    replace = msgspec.structs.replace
    first = replace(first, began_seconds=0.5)
    second = replace(first, name="Later", began_seconds=2.0, elapsed_seconds=2.0, cores=1)
    never = replace(first, name="Never", began_seconds=None, status=RunStatus.CANCELLED)
    result = replace(result, workflows=[first, second, never], elapsed_seconds=5.0)
    page = Page(encode_html(result))
    assert page.tags.count("li") == 3
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert "Shop: passed, 0.5 s to 4.5 s, 2 cores" in labels
    assert "Later: passed, 2 s to 4 s, 1 core" in labels
    bars = [value for name, value in page.attributes if name == "x" and "." in str(value)]
    assert bars[:2] == ["10.00", "40.00"]
    assert "did not run" in "".join(page.texts)


def test_errors_are_listed_by_step_and_class_the_most_frequent_first() -> None:
    result = shop_result(("checks", ">=75%"))
    (workflow,) = result.workflows
    login, pay, *others = workflow.steps
    codes, errors = {"200": 300, "503": 100}, {"status": 100, "reset": 2}
    login = msgspec.structs.replace(login, failed=102, status_codes=codes, errors=errors)
    workflow = msgspec.structs.replace(workflow, steps=[login, pay, *others])
    texts = Page(encode_html(msgspec.structs.replace(result, workflows=[workflow]))).texts
    start = texts.index("Errors")
    cells = texts[start : texts.index("Shop", start)]
    assert cells[6:] == [
        *("login", "status", "503: 100", "100", "25 %"),
        *("pay", "timeout", "16", "4 %"),
        *("login", "reset", "2", "0.5 %"),
    ]


def test_latencies_that_are_not_to_be_trusted_are_marked_wherever_they_stand() -> None:
    result = shop_result()
    (workflow,) = result.workflows
    assert "suspect" not in Page(encode_html(result)).texts
    suspect = msgspec.structs.replace(workflow, saturated=True)
    warned = msgspec.structs.replace(result, workflows=[suspect], warnings=["Shop: <saturated>"])
    texts = Page(encode_html(warned)).texts
    assert texts.index("Shop: <saturated>") < texts.index("Timeline")
    assert texts.count("latencies suspect") == 2  # the workflow and its step table
    assert texts.count("suspect") == 1 + sum(bool(step.total) for step in workflow.steps)  # plots


def test_every_cell_of_a_table_names_its_column_for_narrow_screens() -> None:
    content = encode_html(shop_result(("errors", "<1%"))).decode()
    assert content.count("<td") == content.count("<td data-label=")
    assert "@media (max-width: 640px)" in content
    assert "@media print" in content
    assert "prefers-color-scheme: dark" in content


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_has_enough_contrast_in_light_and_dark() -> None:
    content = encode_html(shop_result()).decode()
    themes = re.findall(r"--page: .*?--live-soft: #\w+;", content, re.DOTALL)
    assert len(themes) == 3  # light, dark by the system's setting, dark by the button
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        pairs = [(tone, f"{tone}-soft") for tone in ("ok", "warn", "bad", "live")]
        pairs += [("ink", "page"), ("ink", "panel"), ("muted", "page"), ("muted", "panel")]
        for text, ground in pairs:
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def plotted(svg: str) -> list[list[object]]:
    """The points the script is given, line by line."""
    (value,) = [value for name, value in Page(svg.encode()).attributes if name == "data-plot"]
    return [line["points"] for line in json.loads(value or "")]


def test_a_gap_in_the_numbers_is_a_gap_in_the_line() -> None:
    line = ChartLine(
        "p50", "c0", [(0, 1.0), (1, 2.0), (2, None), (3, 3.0), (4, None), (5, 1), (6, 1)]
    )
    svg = time_chart("Latency", [line], until_s=7, unit="ms", empty="")
    tags = Page(svg.encode()).tags
    assert tags.count("path") == 2
    assert tags.count("circle") == 1
    assert [len(points) for points in plotted(svg)] == [5]


def test_a_chart_without_data_says_so() -> None:
    svg = percentile_chart(
        "Latency by percentile", [ChartLine("all", "c0", [])], empty="Nothing timed."
    )
    assert Page(svg.encode()).texts == ["Latency by percentile", "Nothing timed."]


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_ticks_are_few_rise_from_zero_and_cover_the_highest(highest: float) -> None:
    ticks = nice_ticks(highest)
    assert ticks[0] == 0
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 6
    assert ticks[-1] >= highest * (1 - 1e-6)


def test_numbers_read_as_people_write_them() -> None:
    assert [millis(v) for v in (None, 0, 0.25, 1.234, 56.78, 1500)] == [
        "\N{EN DASH}",
        "0 ms",
        "250 µs",
        "1.23 ms",
        "56.8 ms",
        "1.5 s",
    ]
    assert [short(v) for v in (0, 7, 0.5, 1234, 12_345, 1_234_567, 5e9)] == [
        "0",
        "7",
        "0.5",
        "1,234",
        "12.3k",
        "1.23M",
        "5G",
    ]
    assert [seconds(v) for v in (0.5, 59, 60, 3725)] == ["0.5 s", "59 s", "1m", "1h 2m 5s"]
    assert [size(v) for v in (0, 999, 1500, 2_000_000)] == ["0 B", "999 B", "1.5 kB", "2 MB"]
    assert [percent(*v) for v in ((0, 0), (0, 9), (9, 9), (1, 10**5), (99_999, 10**5))] == [
        "\N{EN DASH}",
        "0 %",
        "100 %",
        "0.001 %",
        "99.99 %",
    ]
    assert rate(1.234) == "1.23/s"
