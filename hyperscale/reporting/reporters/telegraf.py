"""Telegraf: the line protocol to its `socket_listener` (UDP, TCP) or `http_listener_v2`."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import Backend, Batch, DeliverySink, chunks, packed
from hyperscale.reporting.http import HttpBackend, HttpRequest, HttpSettings
from hyperscale.reporting.reporters.influxdb import lines_of
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import rows_of
from hyperscale.reporting.settings import refuse_password
from hyperscale.reporting.sockets import DATAGRAM_BYTES_MAX, LineBackend

_PORTS = {"udp": 8094, "tcp": 8094, "http": 8186, "https": 8186}


class TelegrafConfig(HttpSettings, frozen=True, kw_only=True):
    """Where a listener of Telegraf with `data_format = "influx"` is."""

    url: str = "udp://localhost:8094"  # or tcp://…, http://localhost:8186/telegraf
    prefix: str = "hyperscale"

    def check(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise InputError(
                f"TelegrafConfig: url={self.url!r} is not a udp, tcp, http or https URL"
            )
        refuse_password(self.url, where="TelegrafConfig.url")

    def open_sink(self) -> DeliverySink:
        is_http = self.url.startswith("http")
        backend: Backend[Any] = TelegrafHttp(self) if is_http else TelegrafSocket(self)
        return DeliverySink(backend, self)


class TelegrafHttp(HttpBackend):
    def __init__(self, config: TelegrafConfig) -> None:
        super().__init__(config)
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            body = b"".join(lines_of(rows, self._config.prefix))
            yield Batch(len(rows), HttpRequest("POST", self._config.url, headers, body))


class TelegrafSocket(LineBackend):
    noun = "lines"

    def __init__(self, config: TelegrafConfig) -> None:
        parts = urlsplit(config.url)
        port = parts.port or _PORTS[parts.scheme]
        super().__init__(parts.hostname or "", port, is_stream=parts.scheme == "tcp")
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[bytes]]:
        lines = lines_of(rows_of(result), self._config.prefix)
        for group in packed(
            lines, bytes_max=DATAGRAM_BYTES_MAX, items_max=self._config.batch_items_max
        ):
            yield Batch(len(group), b"".join(group))
