"""OpenTelemetry metrics (OTLP), over HTTP or gRPC, with exponential histograms."""

from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from hyperscale.errors import InputError
from hyperscale.reporting.http import HttpRequest, HttpSettings, exchange, raise_for_status
from hyperscale.reporting.protobuf import (
    double_field,
    fixed64_field,
    message_field,
    packed_varints,
    sint_field,
    text_field,
    uint_field,
)
from hyperscale.reporting.remote_write import NativeHistogram
from hyperscale.reporting.settings import check_url, credential, from_environment
from hyperscale.reporting.streams.hub import LiveStream
from hyperscale.reporting.streams.snapshot import Snapshot, StreamMetric

_METHOD = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_CUMULATIVE = 2


class OTLPStreamConfig(HttpSettings, frozen=True, kw_only=True):
    """A collector. `headers` is a list as in `api-key=abc,tenant=shop`."""

    EXTRA: ClassVar[str] = "grpc"

    url: Annotated[str, from_environment("OTEL_EXPORTER_OTLP_ENDPOINT")] = "http://localhost:4318"
    protocol: Literal["http", "grpc"] = "http"
    headers: Annotated[str, credential("OTEL_EXPORTER_OTLP_HEADERS")] = ""
    service_name: Annotated[str, from_environment("OTEL_SERVICE_NAME")] = "hyperscale"

    def check(self) -> None:
        check_url(self, self.url)
        if self.protocol not in ("http", "grpc"):
            raise InputError(f"OTLPStreamConfig: protocol={self.protocol!r} is not http or grpc")
        self.header_pairs()

    def drivers(self) -> tuple[str, ...]:
        return ("grpc",) if self.protocol == "grpc" else ()

    def header_pairs(self) -> dict[str, str]:
        """Return the headers by name."""
        pairs = [pair.partition("=") for pair in self.headers.split(",") if pair.strip()]
        if any(not name.strip() or not separator for name, separator, _ in pairs):
            raise InputError(
                "OTLPStreamConfig: headers is not a list of names and values",
                hint="as in api-key=abc,tenant=shop",
            )
        return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}

    def open_stream(self) -> "OTLPStream":
        return OTLPStream(self)


class OTLPStream(LiveStream):
    def __init__(self, config: OTLPStreamConfig) -> None:
        super().__init__(config)
        self._config = config
        self._channel: Any = None  # grpc.aio.Channel; the package has no types

    async def send(self, snapshot: Snapshot) -> None:
        body = encode_request(snapshot, self._config.service_name)
        if self._config.protocol == "grpc":
            await self._call(body)
            return
        headers = {"Content-Type": "application/x-protobuf", **self._config.header_pairs()}
        url = f"{self._config.url.rstrip('/')}/v1/metrics"
        request = HttpRequest("POST", url, headers, body)
        raise_for_status(request, await exchange(request, ca_file=self._config.ca_file))

    async def _call(self, body: bytes) -> None:
        import grpc  # noqa: PLC0415  a driver is imported when it is used

        if self._channel is None:
            parts = urlsplit(self._config.url)
            if parts.scheme == "http":
                self._channel = grpc.aio.insecure_channel(parts.netloc)
            else:
                secure = grpc.ssl_channel_credentials()
                self._channel = grpc.aio.secure_channel(parts.netloc, secure)
        metadata = list(self._config.header_pairs().items())
        await self._channel.unary_unary(_METHOD)(body, metadata=metadata, wait_for_ready=True)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


def encode_request(snapshot: Snapshot, service_name: str) -> bytes:
    """Encode an ExportMetricsServiceRequest."""
    resource = message_field(
        1, _attributes(1, {"service.name": service_name, "run": snapshot.run_id})
    )
    metrics = sorted(snapshot.metrics, key=lambda metric: (metric.name, metric.kind))
    encoded = b"".join(
        message_field(2, _metric(name, kind, list(points), snapshot))
        for (name, kind), points in groupby(metrics, key=lambda metric: (metric.name, metric.kind))
    )
    marks = [
        StreamMetric(
            "hyperscale_annotation",
            "gauge",
            {**snapshot.labels_of(each), "text": each.text},
            each.at_unix_ms / 1000,
        )
        for each in snapshot.annotations
    ]
    if marks:
        encoded += message_field(2, _metric("hyperscale_annotation", "gauge", marks, snapshot))
    scope = message_field(1, text_field(1, "hyperscale"))
    return message_field(1, resource + message_field(2, scope + encoded))


def _metric(name: str, kind: str, points: list[StreamMetric], snapshot: Snapshot) -> bytes:
    dotted = name.replace("_", ".")
    if kind == "counter":
        dotted = dotted.removesuffix(".total")
    unit = "s" if name.endswith("_seconds") else "By" if "_bytes" in name else "1"
    head = text_field(1, dotted) + text_field(3, unit)
    times = fixed64_field(2, snapshot.started_unix_ms * 1_000_000)
    times += fixed64_field(3, snapshot.at_unix_ms * 1_000_000)
    if kind == "histogram":
        data = b"".join(message_field(1, _histogram_point(each, times)) for each in points)
        return head + message_field(10, data + uint_field(2, _CUMULATIVE))
    data = b"".join(message_field(1, _number_point(each, times)) for each in points)
    if kind == "counter":
        return head + message_field(7, data + uint_field(2, _CUMULATIVE) + uint_field(3, 1))
    return head + message_field(5, data)


def _number_point(metric: StreamMetric, times: bytes) -> bytes:
    assert not isinstance(metric.value, NativeHistogram)
    if metric.kind == "counter":
        value = fixed64_field(6, int(metric.value), is_oneof=True)
    else:
        value = double_field(4, metric.value, is_oneof=True)
    return times + value + _attributes(7, metric.labels)


def _histogram_point(metric: StreamMetric, times: bytes) -> bytes:
    value = metric.value
    assert isinstance(value, NativeHistogram)
    buckets = sint_field(1, value.offset) + packed_varints(2, value.counts)
    return b"".join(
        [
            _attributes(1, metric.labels),
            times,
            fixed64_field(4, value.count),
            double_field(5, value.sum),
            sint_field(6, value.scale),
            fixed64_field(7, value.zero_count),
            message_field(8, buckets),
        ]
    )


def _attributes(number: int, labels: Mapping[str, str]) -> bytes:
    """Encode labels as KeyValue messages."""
    return b"".join(
        message_field(
            number,
            text_field(1, key)
            + message_field(2, message_field(1, value.encode("utf-8", "replace"))),
        )
        for key, value in sorted(labels.items())
    )
