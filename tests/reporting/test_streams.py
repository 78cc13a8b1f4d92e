"""Live streams: one short run sent to every kind of receiver; its totals arrive everywhere."""

import contextlib
import json
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperscale._native import Histogram, Target
from hyperscale.reporting.streams.snapshot import (
    SERIES_MAX,
    exponential,
    metrics_of,
    recorded,
    upper_bounds,
)
from tests.conftest import RunningTarget
from tests.lab.command import run, start, write
from tests.lab.ports import free_port
from tests.reporting.runs import shop_stats
from tests.services.base import PASSWORD
from tests.services.fixtures import GetService
from tests.services.monitoring import eventually, get

TEST = """
    class Shop(Workflow):
        vus = 4
        duration = "4s"
        interval = "20ms"
        thresholds = {{"home.p99": "<1ns", "gone.errors": "<1%"}}
        allow_failures = True
        @step()
        async def home(self, url: URL = "{url}/json") -> HTTPResponse:
            return await self.client.http.get(url)
        @step()
        async def gone(self, url: URL = "{url}/status/404") -> HTTPResponse:
            return await self.client.http.get(url)
"""


def test_a_histogram_keeps_its_counts_in_exponential_buckets() -> None:
    histogram = Histogram()
    values_ns = [100, 5_000, 250_000, 1_000_000, 12_345_678, 12_400_000, 90_000_000_000]
    for value_ns in values_ns:
        histogram.record(value_ns, 3)
    found = list(recorded(histogram))
    assert [count for _, count in found] == [3] * 7
    assert [value for value, _ in found] == pytest.approx(values_ns, rel=2e-3, abs=64)
    native = exponential(histogram)
    assert (native.count, sum(native.counts)) == (21, 21)
    assert native.sum == pytest.approx(sum(values_ns) * 3 / 1e9, rel=2e-3)
    bounds = [bound for bound, count in upper_bounds(native) for _ in range(count // 3)]
    for value_ns, bound in zip(values_ns, bounds, strict=True):
        assert bound / 2 ** (1 / 8) * 0.999 <= value_ns / 1e9 <= bound * 1.001 or value_ns == 100


def test_labels_are_names_of_the_test_and_classes() -> None:
    metrics = metrics_of("a-run", [shop_stats()])
    keys = {key for metric in metrics for key in metric.labels}
    assert keys <= {"run", "workflow", "step", "outcome", "status_class", "error", "quantile"}
    assert len({(each.name, *sorted(each.labels.items())) for each in metrics}) == len(metrics)
    assert len(metrics) < 100 < SERIES_MAX


@pytest.fixture(scope="module")
def streamed(service: GetService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run a test with every stream at once; return its results, output and directory."""
    place = tmp_path_factory.mktemp("streamed")
    server = Target()
    write(place / "shop.py", TEST.format(url=RunningTarget(server, "http").url))
    influx, prometheus = service("influxdb"), service("prometheus")
    scrape_port = free_port()
    (place / "streams.toml").write_text(
        f"""
[streams.otlp]
url = "{service("otlp").url}"
[streams.grpc]
type = "otlp"
protocol = "grpc"
url = "{service("otlp-grpc").url}"
[streams.prometheus]
url = "{prometheus.url}/api/v1/write"
[streams.scrape]
port = {scrape_port}
[streams.influxdb]
url = "{influx.url}"
database = "load"
username = "load"
password = "{PASSWORD}"
[streams.statsd]
host = "127.0.0.1"
port = {service("statsd").port}
[streams.dogstatsd]
host = "127.0.0.1"
port = {service("dogstatsd").port}
[streams.jsonl]
path = "{place}/stream.jsonl"
[streams.dead]
type = "influxdb"
url = "http://127.0.0.1:{free_port()}"
bucket = "none"
"""
    )
    process = start(
        *("run", "shop.py", "--out", "out", "--report-config", "streams.toml"),
        *("--stream-interval", "1s"),
        cwd=place,
    )
    scraped: list[str] = []

    def scrape() -> None:
        while process.poll() is None:
            with contextlib.suppress(OSError):  # not open yet, or not any more
                scraped.append(get(f"http://127.0.0.1:{scrape_port}/metrics").decode())
            threading.Event().wait(0.3)

    thread = threading.Thread(target=scrape)
    thread.start()
    stdout, stderr = process.communicate(timeout=60)
    thread.join()
    result = json.loads((place / "out/results.json").read_bytes())
    yield {
        "code": process.returncode,
        "stdout": stdout,
        "stderr": stderr,
        "result": result,
        "place": place,
        "scraped": scraped,
    }
    server.stop()


def expected(result: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    """Return the calls of the result by step and outcome."""
    return {
        (step["name"], "outcome", outcome): step[outcome]
        for step in result["workflows"][0]["steps"]
        for outcome in ("ok", "failed", "cut", "skipped", "none")
    }


@pytest.mark.parametrize("name", ["otlp", "otlp-grpc"])
def test_totals_by_otlp_are_those_of_the_result(
    streamed: Any, name: str, service: GetService
) -> None:
    collected, result = service(name).collected, streamed["result"]  # type: ignore[attr-defined]  # a collector
    assert collected.requests >= 4
    calls = {
        (labels["step"], "outcome", labels["outcome"]): value
        for (metric, pairs), value in collected.numbers.items()
        if metric == "hyperscale.calls" and (labels := dict(pairs))["run"] == result["run_id"]
    }
    assert calls == expected(result)
    timed = {
        dict(pairs)["step"]: point.count
        for (metric, pairs), point in collected.histograms.items()
        if metric == "hyperscale.latency.seconds"
    }
    assert timed == {step["name"]: step["total"] for step in result["workflows"][0]["steps"]}
    points = collected.numbers
    marks = [dict(pairs) for name, pairs in points if name == "hyperscale.annotation"]
    assert {mark["kind"] for mark in marks} == {"start", "end", "threshold"}


def test_totals_by_remote_write_are_those_of_the_result(streamed: Any, service: GetService) -> None:
    server: Any = service("prometheus")
    result = streamed["result"]
    found = server.query(f'hyperscale_calls_total{{run="{result["run_id"]}"}}')
    calls = {
        (each["metric"]["step"], "outcome", each["metric"]["outcome"]): float(each["value"][1])
        for each in found
    }
    assert calls == expected(result)
    query = f'histogram_count(hyperscale_latency_seconds{{run="{result["run_id"]}"}})'
    counts = {each["metric"]["step"]: float(each["value"][1]) for each in server.query(query)}
    assert counts == {step["name"]: step["total"] for step in result["workflows"][0]["steps"]}
    selected = f'hyperscale_latency_seconds{{run="{result["run_id"]}",step="home"}}'
    (quantile,) = server.query(f"histogram_quantile(0.5, {selected})")
    p50_s = result["workflows"][0]["steps"][0]["latency_ms"]["p50"] / 1000
    assert math.isclose(float(quantile["value"][1]), p50_s, rel_tol=0.1)
    marks = server.query(f'hyperscale_annotation{{run="{result["run_id"]}"}}')
    texts = {each["metric"]["kind"]: each["metric"]["text"] for each in marks}
    assert texts["end"] == "shop.py failed"
    assert texts.keys() == {"start", "end", "threshold"}


def test_totals_in_influxdb_are_those_of_the_result(streamed: Any, service: GetService) -> None:
    server: Any = service("influxdb")
    result = streamed["result"]
    series = server.query(
        "SELECT last(value) FROM hyperscale_calls_total "
        f"WHERE run = '{result['run_id']}' GROUP BY step, outcome"
    )
    calls = {
        (each["tags"]["step"], "outcome", each["tags"]["outcome"]): each["values"][0][1]
        for each in series
    }
    assert calls == expected(result)
    marks = server.query(
        f"SELECT text, kind FROM hyperscale_annotation WHERE run = '{result['run_id']}'"
    )
    assert {row[2] for row in marks[0]["values"]} == {"start", "end", "threshold"}


def test_statsd_gets_what_counters_gain(streamed: Any, service: GetService) -> None:
    result = streamed["result"]
    gained: dict[tuple[str, str, str], float] = {}
    server: Any = service("dogstatsd")
    assert not server.refused
    for line in server.lines:
        if line["name"] is None:
            continue  # an event
        tags = dict(tag.split(":", 1) for tag in line["tags"].split(","))
        if line["name"] == "hyperscale.calls_total" and tags["run"] == result["run_id"]:
            key = (tags["step"], "outcome", tags["outcome"])
            gained[key] = gained.get(key, 0) + float(line["value"])
    assert gained == {key: value for key, value in expected(result).items() if value}
    statsd: Any = service("statsd")
    name = "hyperscale.virtual_users.Shop"
    assert name in eventually(statsd.gauges, lambda gauges: name in gauges, 5.0)


def test_json_lines_have_snapshots_and_annotations(streamed: Any) -> None:
    lines = [
        json.loads(line) for line in (streamed["place"] / "stream.jsonl").read_text().splitlines()
    ]
    kinds = [line["kind"] for line in lines if line["type"] == "annotation"]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("threshold") == 2
    snapshots = [line for line in lines if line["type"] == "snapshot"]
    assert [each["is_final"] for each in snapshots] == [False] * (len(snapshots) - 1) + [True]
    calls = {
        (each["labels"]["step"], "outcome", each["labels"]["outcome"]): each["value"]
        for each in snapshots[-1]["metrics"]
        if each["name"] == "hyperscale_calls_total"
    }
    assert calls == expected(streamed["result"])


def test_the_endpoint_can_be_scraped_while_the_test_runs(streamed: Any) -> None:
    full = [text for text in streamed["scraped"] if "hyperscale_latency_seconds_bucket" in text]
    assert full
    assert re.search(r'hyperscale_calls_total\{.*step="home",outcome="ok"\} \d+', full[-1])
    assert "# TYPE hyperscale_latency_seconds histogram" in full[-1]


def test_a_dead_receiver_costs_one_line_and_not_the_verdict(streamed: Any) -> None:
    assert streamed["code"] == 1  # its thresholds, not its streams
    lines = [line for line in streamed["stderr"].splitlines() if "lost" in line]
    assert len(lines) == 1, streamed["stderr"]
    assert "stream InfluxDBStream: lost " in lines[0]
    assert "the totals did not arrive" in lines[0]


def test_a_stream_that_does_not_exist_is_refused(tmp_path: Path, target: RunningTarget) -> None:
    write(tmp_path / "shop.py", TEST.format(url=target.url))
    done = run("run", "shop.py", "--stream", "otpl", cwd=tmp_path)
    assert done.code == 2
    assert "there is no stream 'otpl'" in done.stderr
    assert "did you mean otlp?" in done.stderr


@pytest.mark.soak
def test_a_minute_by_otlp_and_remote_write_ends_with_the_totals_of_the_result(
    service: GetService, target: RunningTarget, tmp_path: Path
) -> None:
    write(tmp_path / "shop.py", TEST.format(url=target.url).replace('"4s"', '"60s"'))
    otlp: Any = service("otlp")
    prometheus: Any = service("prometheus")
    process = start(
        *("run", "shop.py", "--out", "out", "--stream", f"otlp={otlp.url}"),
        *("--stream", f"prometheus={prometheus.url}/api/v1/write"),
        cwd=tmp_path,
    )
    _, stderr = process.communicate(timeout=120)
    assert "lost" not in stderr
    result = json.loads((tmp_path / "out/results.json").read_bytes())
    by_otlp = {
        (labels["step"], "outcome", labels["outcome"]): value
        for (metric, pairs), value in otlp.collected.numbers.items()
        if metric == "hyperscale.calls" and (labels := dict(pairs))["run"] == result["run_id"]
    }
    by_remote_write = {
        (each["metric"]["step"], "outcome", each["metric"]["outcome"]): float(each["value"][1])
        for each in prometheus.query(f'hyperscale_calls_total{{run="{result["run_id"]}"}}')
    }
    assert by_otlp == by_remote_write == expected(result)
