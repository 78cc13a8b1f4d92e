"""Prometheus: remote write with native histograms, and an endpoint to scrape."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from http import HTTPStatus
from itertools import accumulate
from typing import Annotated, Any

from hyperscale.reporting.http import HttpSettings, exchange, raise_for_status
from hyperscale.reporting.remote_write import NativeHistogram, RemoteSeries, write_request
from hyperscale.reporting.reporters.prometheus import authorization
from hyperscale.reporting.settings import (
    DeliverySettings,
    check_url,
    credential,
    host_and_more,
)
from hyperscale.reporting.streams.hub import LiveStream
from hyperscale.reporting.streams.snapshot import Snapshot, StreamMetric, upper_bounds
from hyperscale.telemetry.http import Response, bind_http, serve_http
from hyperscale.telemetry.metrics import CONTENT_TYPE, Family, Labels, render

_TEXT_MAX = 200  # characters of an annotation


class PrometheusStreamConfig(HttpSettings, frozen=True, kw_only=True):
    """The URL of a remote-write endpoint."""

    url: str = "http://localhost:9090/api/v1/write"
    username: str = ""
    password: Annotated[str, credential("PROMETHEUS_PASSWORD")] = ""
    token: Annotated[str, credential("PROMETHEUS_TOKEN")] = ""  # instead of a password
    job: str = "hyperscale"

    def check(self) -> None:
        check_url(self, self.url)

    def open_stream(self) -> "RemoteWriteStream":
        return RemoteWriteStream(self)


class RemoteWriteStream(LiveStream):
    def __init__(self, config: PrometheusStreamConfig) -> None:
        super().__init__(config)
        self._config = config
        self._headers = authorization(config.username, config.password, config.token)

    async def send(self, snapshot: Snapshot) -> None:
        series = [
            RemoteSeries(
                {"__name__": metric.name, "job": self._config.job, **metric.labels},
                metric.value,
                snapshot.at_unix_ms,
            )
            for metric in _with_annotations(snapshot)
        ]
        request = write_request(self._config.url, series, self._headers)
        raise_for_status(request, await exchange(request, ca_file=self._config.ca_file))


def _with_annotations(snapshot: Snapshot) -> Iterator[StreamMetric]:
    yield from snapshot.metrics
    for each in snapshot.annotations:
        labels = {**snapshot.labels_of(each), "text": each.text[:_TEXT_MAX]}
        yield StreamMetric("hyperscale_annotation", "gauge", labels, each.at_unix_ms / 1000)


class ScrapeStreamConfig(DeliverySettings, frozen=True, kw_only=True):
    """Where to serve /metrics while the test runs. With `linger_s` it is served that long after
    the end, so that the totals are scraped too."""

    host: str = "127.0.0.1"
    port: int = 9464
    linger_s: float = 0.0

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        if address.isdigit():
            return {"port": address}
        return host_and_more(address)

    def open_stream(self) -> "ScrapeStream":
        return ScrapeStream(self)


class ScrapeStream(LiveStream):
    """Serves the last snapshot in the text format, its histograms in classic buckets."""

    def __init__(self, config: ScrapeStreamConfig) -> None:
        super().__init__(config)
        self._config = config
        self._stack = AsyncExitStack()
        self._body = b""

    async def open(self) -> None:
        bound = bind_http(self._config.host, self._config.port)
        await self._stack.enter_async_context(serve_http(bound, {"/metrics": self._answer}))

    def _answer(self) -> Response:
        return Response(HTTPStatus.OK, CONTENT_TYPE, self._body)

    async def send(self, snapshot: Snapshot) -> None:
        families = list(families_of(snapshot))
        self._body = render([lambda: families])

    async def close(self) -> None:
        await asyncio.sleep(self._config.linger_s)
        await self._stack.aclose()


def families_of(snapshot: Snapshot) -> Iterator[Family]:
    """Yield the metrics of a snapshot by name."""
    by_name: dict[str, list[StreamMetric]] = {}
    for metric in _with_annotations(snapshot):
        by_name.setdefault(metric.name, []).append(metric)
    for name, metrics in by_name.items():
        samples = [sample for metric in metrics for sample in _samples(metric)]
        yield Family(name, metrics[0].kind, "Of a running load test.", samples)


def _samples(metric: StreamMetric) -> Iterator[tuple[str, Labels, float]]:
    labels, value = dict(metric.labels), metric.value
    if not isinstance(value, NativeHistogram):
        yield "", labels, value
        return
    bounds = list(upper_bounds(value))
    running = accumulate(count for _, count in bounds)
    for (bound, _), count in zip(bounds, running, strict=True):
        yield "_bucket", {**labels, "le": f"{bound:.9g}"}, count
    yield "_bucket", {**labels, "le": "+Inf"}, value.count
    yield "_sum", labels, value.sum
    yield "_count", labels, value.count
