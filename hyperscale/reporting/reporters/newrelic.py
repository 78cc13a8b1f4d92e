"""New Relic: the Metric API, every number a gauge."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from hyperscale.reporting.delivery import Batch, DeliverySink, chunks
from hyperscale.reporting.http import HttpBackend, HttpRequest, HttpSettings
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of
from hyperscale.reporting.settings import check_given, check_url, credential


class NewRelicConfig(HttpSettings, frozen=True, kw_only=True):
    """A licence key; accounts in the EU have the URL metric-api.eu.newrelic.com."""

    license_key: Annotated[str, credential("NEW_RELIC_LICENSE_KEY")] = ""
    url: str = "https://metric-api.newrelic.com/metric/v1"
    prefix: str = "hyperscale"

    def check(self) -> None:
        check_given(self, "license_key")
        check_url(self, self.url)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(NewRelic(self), self)


class NewRelic(HttpBackend):
    def __init__(self, config: NewRelicConfig) -> None:
        super().__init__(config)
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        headers = {"Content-Type": "application/json", "Api-Key": self._config.license_key}
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            body = msgspec.json.encode([{"metrics": [self._metric(row) for row in rows]}])
            yield Batch(len(rows), HttpRequest("POST", self._config.url, headers, body))

    def _metric(self, row: MetricRow) -> dict[str, object]:
        return {
            "name": f"{self._config.prefix}.{row.metric_group}",
            "type": "gauge",
            "value": row.value,
            "timestamp": row.at_unix_ms,
            "attributes": row.labels(),
        }
