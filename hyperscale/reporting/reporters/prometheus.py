"""Prometheus: remote write to a server (or Mimir, Thanos, VictoriaMetrics), or a Pushgateway."""

import base64
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import quote

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import Batch, DeliverySink, chunks
from hyperscale.reporting.http import HttpBackend, HttpRequest, HttpSettings
from hyperscale.reporting.remote_write import RemoteSeries, write_request
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of, run_id_of
from hyperscale.reporting.settings import check_url, credential
from hyperscale.telemetry.metrics import CONTENT_TYPE, Sample, gauge, render


class PrometheusConfig(HttpSettings, frozen=True, kw_only=True):
    """The URL of a remote-write endpoint, or of a Pushgateway."""

    url: str = "http://localhost:9090/api/v1/write"
    protocol: Literal["remote-write", "pushgateway"] = "remote-write"
    username: str = ""
    password: Annotated[str, credential("PROMETHEUS_PASSWORD")] = ""
    token: Annotated[str, credential("PROMETHEUS_TOKEN")] = ""  # instead of a password
    job: str = "hyperscale"

    def check(self) -> None:
        check_url(self, self.url)
        if self.protocol not in ("remote-write", "pushgateway"):
            raise InputError(
                f"PrometheusConfig: protocol={self.protocol!r} is unknown",
                hint='use "remote-write" or "pushgateway"',
            )

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Prometheus(self), self)


class Prometheus(HttpBackend):
    def __init__(self, config: PrometheusConfig) -> None:
        super().__init__(config)
        self._config = config
        self._headers = authorization(config.username, config.password, config.token)

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        rows = rows_of(result)
        if self._config.protocol == "pushgateway":
            yield Batch(len(rows), self._push(rows, run_id_of(result)))
            return
        for some in chunks(rows, self._config.batch_items_max):
            series = [
                RemoteSeries(
                    {"__name__": series_name(row), "job": self._config.job, **series_labels(row)},
                    row.value,
                    row.at_unix_ms,
                )
                for row in some
            ]
            yield Batch(len(some), write_request(self._config.url, series, self._headers))

    def _push(self, rows: list[MetricRow], run_id: str) -> HttpRequest:
        """Replace the metrics of the run: a Pushgateway keeps one group for each job and run."""
        by_name: dict[str, list[Sample]] = {}
        for row in rows:
            by_name.setdefault(series_name(row), []).append((series_labels(row), row.value))
        about = "Result of a load test."
        families = [gauge(name, about, *samples) for name, samples in by_name.items()]
        group = f"job/{quote(self._config.job, safe='')}/run/{quote(run_id, safe='')}"
        url = f"{self._config.url.rstrip('/')}/metrics/{group}"
        headers = {"Content-Type": CONTENT_TYPE, **self._headers}
        return HttpRequest("PUT", url, headers, render([lambda: families]))


def series_name(row: MetricRow) -> str:
    return f"hyperscale_result_{row.metric_group}"


def series_labels(row: MetricRow) -> dict[str, str]:
    labels = row.labels()
    del labels["group"]
    return labels


def authorization(username: str, password: str, token: str) -> dict[str, str]:
    """Return the header for a bearer token or a password; empty without either."""
    if token:
        return {"Authorization": f"Bearer {token}"}
    if username:
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {}
