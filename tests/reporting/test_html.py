import json
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.reporting.runs import hostile, hostile_results, shop_result

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
    assert "failed thresholds or checks" in page.texts
    titles = [text for text in page.texts if text in ("Rate", "Latency", "Outcomes")]
    assert {"Rate", "Latency", "Outcomes"} <= set(titles)


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
