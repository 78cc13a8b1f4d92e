"""BigQuery: streaming inserts (`tabledata.insertAll`), a row per metric."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from hyperscale.reporting.delivery import Batch, DeliverySink, RejectedError, chunks
from hyperscale.reporting.google import GoogleBackend, GoogleSettings
from hyperscale.reporting.http import HttpReply, HttpRequest, exchange, raise_for_status
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of
from hyperscale.reporting.settings import check_given, check_identifier

_TYPES = {"at": "TIMESTAMP", "value": "FLOAT"}
_COLUMNS = ("run_id", "at", "file", "workflow", "step", "metric_group", "name", "value", "unit")


class BigQueryConfig(GoogleSettings, frozen=True, kw_only=True):
    """A table; it is created unless `create_table` is false."""

    project: str = ""
    dataset: str = ""
    table: str = "hyperscale_metrics"
    create_table: bool = True

    def check(self) -> None:
        GoogleSettings.check(self)
        check_given(self, "project", "dataset")
        check_identifier(self, self.table, name="table")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        names = address.split(".")
        return dict(zip(("project", "dataset", "table"), names, strict=False))

    def open_sink(self) -> DeliverySink:
        return DeliverySink(BigQuery(self), self)


class BigQuery(GoogleBackend):
    def __init__(self, config: BigQueryConfig) -> None:
        super().__init__(config)
        self._config = config
        base = (config.endpoint_url or "https://bigquery.googleapis.com").rstrip("/")
        project, dataset = quote(config.project, safe=""), quote(config.dataset, safe="")
        self._tables = f"{base}/bigquery/v2/projects/{project}/datasets/{dataset}/tables"

    async def connect(self) -> None:
        if not self._config.create_table:
            return
        reference = {
            "projectId": self._config.project,
            "datasetId": self._config.dataset,
            "tableId": self._config.table,
        }
        fields = [{"name": each, "type": _TYPES.get(each, "STRING")} for each in _COLUMNS]
        request = await self.prepare(
            _post(self._tables, {"tableReference": reference, "schema": {"fields": fields}})
        )
        reply = await exchange(request, ca_file=self._config.ca_file)
        if reply.status != 409:  # it exists
            raise_for_status(request, reply)

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        url = f"{self._tables}/{self._config.table}/insertAll"
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            body = {"rows": [{"insertId": _id(row), "json": _record(row)} for row in rows]}
            yield Batch(len(rows), _post(url, body))

    def check(self, request: HttpRequest, reply: HttpReply) -> None:
        raise_for_status(request, reply)
        if errors := json.loads(reply.body or b"{}").get("insertErrors"):
            raise RejectedError(f"{len(errors)} rows were refused, the first: {errors[0]}")


def _post(url: str, body: object) -> HttpRequest:
    return HttpRequest("POST", url, {"Content-Type": "application/json"}, msgspec.json.encode(body))


def _id(row: MetricRow) -> str:
    """Return what BigQuery recognizes a row by that is sent again within a minute."""
    key = "\0".join((row.run_id, row.workflow, row.step, row.metric_group, row.name))
    return hashlib.sha256(key.encode()).hexdigest()


def _record(row: MetricRow) -> dict[str, object]:
    record = msgspec.structs.asdict(row)
    return {"at": record.pop("at_unix_ms") / 1000, **record}
