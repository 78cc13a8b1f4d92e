"""InfluxDB, 1.x and 2.x and newer, over its line protocol: a measurement per group of metrics."""

import base64
from collections.abc import Iterable, Iterator
from typing import Annotated
from urllib.parse import urlencode

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import Batch, DeliverySink, chunks
from hyperscale.reporting.http import HttpBackend, HttpRequest, HttpSettings
from hyperscale.reporting.lines import influx_line
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, grouped, rows_of
from hyperscale.reporting.settings import check_url, credential, from_environment


class InfluxDBConfig(HttpSettings, frozen=True, kw_only=True):
    """A `bucket` and a `token` (2.x and newer), or a `database` (1.x)."""

    url: str = "http://localhost:8086"
    bucket: str = ""
    org: Annotated[str, from_environment("INFLUX_ORG")] = ""
    token: Annotated[str, credential("INFLUX_TOKEN")] = ""
    database: str = ""
    username: str = ""  # of 1.x
    password: Annotated[str, credential("INFLUX_PASSWORD")] = ""
    prefix: str = "hyperscale"  # of measurements: hyperscale_latency, hyperscale_counts, …

    def check(self) -> None:
        check_url(self, self.url)
        if bool(self.bucket) == bool(self.database):
            raise InputError(
                "InfluxDBConfig: neither bucket nor database is set, or both",
                hint="set bucket, org and token for InfluxDB 2, database for InfluxDB 1",
            )

    def open_sink(self) -> DeliverySink:
        return DeliverySink(InfluxDB(self), self)


class InfluxDB(HttpBackend):
    def __init__(self, config: InfluxDBConfig) -> None:
        super().__init__(config)
        self._config = config
        self.url, self.headers = write_endpoint(config)

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            body = b"".join(lines_of(rows, self._config.prefix))
            yield Batch(len(rows), HttpRequest("POST", self.url, self.headers, body))


def write_endpoint(config: InfluxDBConfig) -> tuple[str, dict[str, str]]:
    """Return the URL and the headers of a write."""
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    base = config.url.rstrip("/")
    if config.bucket:
        query = urlencode({"org": config.org, "bucket": config.bucket, "precision": "ns"})
        if config.token:
            headers["Authorization"] = f"Token {config.token}"
        return f"{base}/api/v2/write?{query}", headers
    if config.username:
        pair = base64.b64encode(f"{config.username}:{config.password}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    return f"{base}/write?{urlencode({'db': config.database, 'precision': 'ns'})}", headers


def lines_of(rows: Iterable[MetricRow], prefix: str) -> Iterator[bytes]:
    """Yield a line per workflow, step and group, with the metrics as fields."""
    for group in grouped(list(rows)):
        first = group[0]
        yield influx_line(
            f"{prefix}_{first.metric_group}",
            {"run": first.run_id, "workflow": first.workflow, "step": first.step},
            {row.name: row.value for row in group},
            first.at_unix_ms * 1_000_000,
        )
