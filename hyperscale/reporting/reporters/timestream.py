"""Amazon Timestream: `WriteRecords`, a record per metric."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from hyperscale.reporting.aws import AwsBackend, AwsSettings, json_request, region_of_address, sign
from hyperscale.reporting.delivery import Batch, DeliverySink, chunks
from hyperscale.reporting.http import HttpRequest, exchange, raise_for_status
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of
from hyperscale.reporting.settings import check_given

_RECORDS_MAX = 100  # of one call
_TARGET = "Timestream_20181101"


class AWSTimestreamConfig(AwsSettings, frozen=True, kw_only=True):
    """A table of a Timestream database."""

    SERVICE: ClassVar[str] = "ingest.timestream"

    database: str = ""
    table: str = "hyperscale"

    def check(self) -> None:
        AwsSettings.check(self)
        check_given(self, "database")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return region_of_address(address)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Timestream(self), self)


class Timestream(AwsBackend):
    def __init__(
        self, config: AWSTimestreamConfig, *, clock_ms: Callable[[], int] | None = None
    ) -> None:
        super().__init__(config, service="timestream")
        self._config = config
        self._host = urlsplit(config.endpoint).netloc
        self._version = (clock_ms or _wall_clock_ms)()

    async def connect(self) -> None:
        """Ask which host takes the records of this account, as Timestream demands."""
        if self._config.endpoint_url:
            return
        request = json_request(self._config, f"{_TARGET}.DescribeEndpoints", "1.0", b"{}")
        request = sign(request, self._config, service="timestream", now=self._now())
        reply = await exchange(request, ca_file=self._config.ca_file)
        raise_for_status(request, reply)
        self._host = json.loads(reply.body)["Endpoints"][0]["Address"]

    async def prepare(self, request: HttpRequest) -> HttpRequest:
        parts = urlsplit(request.url)
        url = parts._replace(netloc=self._host).geturl()
        return await super().prepare(
            HttpRequest(request.method, url, request.headers, request.body)
        )

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        for rows in chunks(rows_of(result), min(self._config.batch_items_max, _RECORDS_MAX)):
            body = {
                "DatabaseName": self._config.database,
                "TableName": self._config.table,
                # A later version replaces what an earlier delivery of the run left.
                "CommonAttributes": {"Version": self._version},
                "Records": [_record(row) for row in rows],
            }
            target = f"{_TARGET}.WriteRecords"
            request = json_request(self._config, target, "1.0", msgspec.json.encode(body))
            yield Batch(len(rows), request)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _record(row: MetricRow) -> dict[str, object]:
    labels = row.labels()
    name = labels.pop("metric")
    return {
        "Dimensions": [{"Name": key, "Value": value} for key, value in labels.items()],
        "MeasureName": name,
        "MeasureValue": repr(row.value),
        "MeasureValueType": "DOUBLE",
        "Time": str(row.at_unix_ms),
        "TimeUnit": "MILLISECONDS",
    }
