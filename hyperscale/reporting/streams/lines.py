"""Streams of lines: InfluxDB's line protocol, StatsD and DogStatsD, JSON."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import packed
from hyperscale.reporting.http import HttpRequest, exchange, raise_for_status
from hyperscale.reporting.lines import (
    dogstatsd_event,
    dogstatsd_line,
    influx_event,
    influx_line,
    statsd_line,
)
from hyperscale.reporting.remote_write import NativeHistogram
from hyperscale.reporting.reporters.influxdb import InfluxDBConfig, write_endpoint
from hyperscale.reporting.settings import DeliverySettings, host_and_more
from hyperscale.reporting.sockets import DATAGRAM_BYTES_MAX, LineSocket
from hyperscale.reporting.streams.hub import LiveStream
from hyperscale.reporting.streams.snapshot import Snapshot, StreamMetric

_KINDS = {"counter": "c", "gauge": "g"}


class InfluxDBStreamConfig(InfluxDBConfig, frozen=True, kw_only=True):
    """As of the reporter. Each metric is a measurement with the field `value`."""

    def open_stream(self) -> "InfluxDBStream":
        return InfluxDBStream(self)


class InfluxDBStream(LiveStream):
    def __init__(self, config: InfluxDBStreamConfig) -> None:
        super().__init__(config)
        self._config = config
        self._url, self._headers = write_endpoint(config)

    async def send(self, snapshot: Snapshot) -> None:
        body = b"".join(_influx_lines(snapshot))
        request = HttpRequest("POST", self._url, self._headers, body)
        raise_for_status(request, await exchange(request, ca_file=self._config.ca_file))


def _influx_lines(snapshot: Snapshot) -> Iterator[bytes]:
    at_ns = snapshot.at_unix_ms * 1_000_000
    for metric in snapshot.metrics:
        value = metric.value
        if isinstance(value, NativeHistogram):
            fields = {"count": float(value.count), "sum": value.sum}
        else:
            fields = {"value": float(value)}
        yield influx_line(metric.name, metric.labels, fields, at_ns)
    for each in snapshot.annotations:
        labels = snapshot.labels_of(each)
        yield influx_event("hyperscale_annotation", labels, each.text, each.at_unix_ms * 1_000_000)


class StatsDStreamConfig(DeliverySettings, frozen=True, kw_only=True):
    """A StatsD server; `dialect = "datadog"` adds tags and events."""

    host: str = "localhost"
    port: int = 8125
    protocol: Literal["udp", "tcp"] = "udp"
    dialect: Literal["statsd", "datadog"] = "statsd"

    def check(self) -> None:
        if self.protocol not in ("udp", "tcp") or self.dialect not in ("statsd", "datadog"):
            raise InputError("StatsDStreamConfig: protocol or dialect is unknown")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return host_and_more(address)

    def open_stream(self) -> "StatsDStream":
        return StatsDStream(self)


class DogStatsDStreamConfig(StatsDStreamConfig, frozen=True, kw_only=True):
    """The StatsD server of a Datadog agent."""

    dialect: Literal["statsd", "datadog"] = "datadog"


class StatsDStream(LiveStream):
    """Sends what counters have gained since the last snapshot that was sent."""

    def __init__(self, config: StatsDStreamConfig) -> None:
        super().__init__(config)
        self._config = config
        self._socket = LineSocket(config.host, config.port, is_stream=config.protocol == "tcp")
        self._is_open = False
        self._sent: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    async def send(self, snapshot: Snapshot) -> None:
        if not self._is_open:
            await self._socket.connect()
            self._is_open = True
        try:
            lines = self._lines(snapshot)
            for group in packed(lines, bytes_max=DATAGRAM_BYTES_MAX, items_max=1000):
                await self._socket.write(b"".join(group))
        except OSError:
            self._is_open = False
            await self._socket.close()
            raise
        self._sent = {_key(each): each.value for each in snapshot.metrics if _is_counter(each)}  # type: ignore[misc]  # counters are numbers

    def _lines(self, snapshot: Snapshot) -> Iterator[bytes]:
        is_datadog = self._config.dialect == "datadog"
        for metric in snapshot.metrics:
            if isinstance(metric.value, NativeHistogram):
                continue  # its quantiles are gauges
            value = float(metric.value)
            if _is_counter(metric):
                value -= self._sent.get(_key(metric), 0.0)
                if not value:
                    continue
            name = metric.name.replace("_", ".", 1)
            if is_datadog:
                yield dogstatsd_line(name, value, _KINDS[metric.kind], metric.labels)
            else:
                parts = [v.replace(".", "_") for k, v in metric.labels.items() if k != "run"]
                yield statsd_line(".".join([name, *parts]), value, _KINDS[metric.kind])
        for each in snapshot.annotations:
            if is_datadog:
                yield dogstatsd_event(
                    f"load test: {each.kind}", each.text, snapshot.labels_of(each)
                )

    async def close(self) -> None:
        await self._socket.close()


def _is_counter(metric: StreamMetric) -> bool:
    return metric.kind == "counter"


def _key(metric: StreamMetric) -> tuple[str, tuple[tuple[str, str], ...]]:
    return metric.name, tuple(metric.labels.items())


class JSONLinesStreamConfig(DeliverySettings, frozen=True, kw_only=True):
    """A file that lines are appended to; `-` is stdout."""

    path: str = "stream.jsonl"

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return {"path": address}

    def open_stream(self) -> "JSONLinesStream":
        return JSONLinesStream(self)


class JSONLinesStream(LiveStream):
    """A line for each annotation and for each snapshot."""

    def __init__(self, config: JSONLinesStreamConfig) -> None:
        super().__init__(config)
        self._path = config.path
        self._file: BinaryIO | None = None

    async def open(self) -> None:
        if self._path == "-":
            self._file = sys.stdout.buffer
            return
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        self._file = Path(self._path).open("ab")  # noqa: SIM115, ASYNC230  closed by `close`; local

    async def send(self, snapshot: Snapshot) -> None:
        assert self._file is not None  # `open` came first
        self._file.write(b"".join(_json_lines(snapshot)))
        self._file.flush()

    async def close(self) -> None:
        if self._file is not None and self._path != "-":
            self._file.close()


def _json_lines(snapshot: Snapshot) -> Iterator[bytes]:
    head = {"run": snapshot.run_id, "file": snapshot.file}
    for each in snapshot.annotations:
        yield _line({"type": "annotation", **head, **msgspec.to_builtins(each)})
    yield _line(
        {
            "type": "snapshot",
            **head,
            "at_unix_ms": snapshot.at_unix_ms,
            "is_final": snapshot.is_final,
            "metrics": [
                {
                    "name": each.name,
                    "kind": each.kind,
                    "labels": each.labels,
                    "value": msgspec.to_builtins(each.value),
                }
                for each in snapshot.metrics
            ],
        }
    )


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"
