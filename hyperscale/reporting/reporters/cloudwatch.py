"""CloudWatch: `PutMetricData`, a metric per number with its workflow and step as dimensions."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from hyperscale.reporting.aws import AwsBackend, AwsSettings, region_of_address
from hyperscale.reporting.delivery import Batch, DeliverySink, chunks
from hyperscale.reporting.http import HttpRequest
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of

_UNITS = {"ms": "Milliseconds", "s": "Seconds", "bytes": "Bytes", "/s": "Count/Second"}


class CloudwatchConfig(AwsSettings, frozen=True, kw_only=True):
    """A namespace of CloudWatch. With `dimension_per_run` each run has metrics of its own."""

    SERVICE: ClassVar[str] = "monitoring"

    namespace: str = "Hyperscale"
    dimension_per_run: bool = False

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return region_of_address(address)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Cloudwatch(self), self)


class Cloudwatch(AwsBackend):
    def __init__(self, config: CloudwatchConfig) -> None:
        super().__init__(config, service="monitoring")
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        # CloudWatch takes 1,000 metrics and 1 MB in one call.
        for rows in chunks(rows_of(result), min(self._config.batch_items_max, 1000)):
            yield Batch(len(rows), self._call(rows))

    def _call(self, rows: Sequence[MetricRow]) -> HttpRequest:
        fields = {"Action": "PutMetricData", "Version": "2010-08-01"}
        fields["Namespace"] = self._config.namespace
        for place, row in enumerate(rows, start=1):
            at = datetime.fromtimestamp(row.at_unix_ms / 1000, UTC)
            member = f"MetricData.member.{place}"
            fields[f"{member}.MetricName"] = f"{row.metric_group}.{row.name}"
            fields[f"{member}.Timestamp"] = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            fields[f"{member}.Value"] = repr(row.value)
            fields[f"{member}.Unit"] = _UNITS.get(row.unit, "None")
            for number, (name, value) in enumerate(self._dimensions(row).items(), start=1):
                dimension = f"{member}.Dimensions.member.{number}"
                fields[f"{dimension}.Name"] = name
                fields[f"{dimension}.Value"] = value
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        return HttpRequest("POST", f"{self._config.endpoint}/", headers, urlencode(fields).encode())

    def _dimensions(self, row: MetricRow) -> dict[str, str]:
        found = {"Workflow": row.workflow, "Step": row.step}
        if self._config.dimension_per_run:
            found["Run"] = row.run_id
        return {name: value for name, value in found.items() if value}
