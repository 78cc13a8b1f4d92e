"""Datadog: the metrics API (`/api/v2/series`), every number a gauge."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from hyperscale.reporting.delivery import Batch, DeliverySink, chunks
from hyperscale.reporting.http import HttpBackend, HttpRequest, HttpSettings
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of
from hyperscale.reporting.settings import check_given, check_url, credential, from_environment

_GAUGE = 3
_UNITS = {"ms": "millisecond", "s": "second", "bytes": "byte"}


class DatadogConfig(HttpSettings, frozen=True, kw_only=True):
    """An API key and the site of the organization."""

    api_key: Annotated[str, credential("DD_API_KEY")] = ""
    site: Annotated[str, from_environment("DD_SITE")] = "datadoghq.com"
    url: str = ""  # empty: that of the site
    prefix: str = "hyperscale"
    tags: tuple[str, ...] = ()  # further tags, as in env:staging

    def check(self) -> None:
        check_given(self, "api_key")
        if self.url:
            check_url(self, self.url)

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return {"url": address} if "://" in address else {"site": address}

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Datadog(self), self)


class Datadog(HttpBackend):
    def __init__(self, config: DatadogConfig) -> None:
        super().__init__(config)
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        base = (self._config.url or f"https://api.{self._config.site}").rstrip("/")
        headers = {"Content-Type": "application/json", "DD-API-KEY": self._config.api_key}
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            body = msgspec.json.encode({"series": [self._series(row) for row in rows]})
            request = HttpRequest("POST", f"{base}/api/v2/series", headers, body)
            yield Batch(len(rows), request)

    def _series(self, row: MetricRow) -> dict[str, object]:
        tags = {"run": row.run_id, "workflow": row.workflow, "step": row.step}
        series: dict[str, object] = {
            "metric": f"{self._config.prefix}.{row.metric_group}.{row.name}",
            "type": _GAUGE,
            "points": [{"timestamp": row.at_unix_ms // 1000, "value": row.value}],
            "tags": [*(f"{key}:{tag}" for key, tag in tags.items() if tag), *self._config.tags],
        }
        if row.unit in _UNITS:
            series["unit"] = _UNITS[row.unit]
        return series
