"""Receivers of OpenTelemetry metrics: the protocol's own message types, over HTTP and gRPC."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.services.base import Service
from tests.services.recording import Call, Recording, Reply

Point = tuple[str, tuple[tuple[str, str], ...]]  # name, labels


class Collected:
    """The last value of each time series; a counter that falls is an error."""

    def __init__(self) -> None:
        self.numbers: dict[Point, float] = {}
        self.histograms: dict[Point, Any] = {}
        self.requests = 0

    def take(self, request: ExportMetricsServiceRequest) -> None:
        self.requests += 1
        for resource in request.resource_metrics:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert names["service.name"] == "hyperscale"
            for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
                self._take_metric(metric)

    def _take_metric(self, metric: Any) -> None:
        kind = metric.WhichOneof("data")
        data = getattr(metric, kind)
        if kind != "gauge":
            assert data.aggregation_temporality == 2  # cumulative
        for point in data.data_points:
            assert point.time_unix_nano > 0
            key = (
                metric.name,
                tuple((each.key, each.value.string_value) for each in point.attributes),
            )
            if kind == "exponential_histogram":
                assert sum(point.positive.bucket_counts) + point.zero_count == point.count
                self.histograms[key] = point
            else:
                value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
                if kind == "sum":
                    assert data.is_monotonic
                    assert value >= self.numbers.get(key, 0)
                self.numbers[key] = value


class OtlpHttp(Recording):
    name = "otlp"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.collected = Collected()

    def answer(self, call: Call) -> Reply:
        assert call.path == "/v1/metrics"
        assert call.headers["content-type"] == "application/x-protobuf"
        self.collected.take(ExportMetricsServiceRequest.FromString(call.body))
        return 200, {}, ExportMetricsServiceResponse().SerializeToString()


class OtlpGrpc(Service):
    name = "otlp-grpc"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        raise AssertionError("a recording server has no process")

    def start_first(self) -> None:
        import grpc  # noqa: PLC0415  an extra

        self.collected = Collected()

        def export(request: ExportMetricsServiceRequest, _: Any) -> ExportMetricsServiceResponse:
            self.collected.take(request)
            return ExportMetricsServiceResponse()

        handler = grpc.unary_unary_rpc_method_handler(
            export,
            request_deserializer=ExportMetricsServiceRequest.FromString,
            response_serializer=ExportMetricsServiceResponse.SerializeToString,
        )
        name = "opentelemetry.proto.collector.metrics.v1.MetricsService"
        self._server = grpc.server(ThreadPoolExecutor(max_workers=2))
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, {"Export": handler})]
        )
        self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()
