"""Honeycomb: a wide event for the run, each workflow and each step, with all numbers as fields."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated
from urllib.parse import quote

import msgspec

from hyperscale.reporting.delivery import Batch, DeliverySink, RejectedError, chunks
from hyperscale.reporting.http import (
    HttpBackend,
    HttpReply,
    HttpRequest,
    HttpSettings,
    raise_for_status,
)
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of
from hyperscale.reporting.settings import check_given, check_url, credential


class HoneycombConfig(HttpSettings, frozen=True, kw_only=True):
    """An API key that may send events, and the dataset they go to."""

    api_key: Annotated[str, credential("HONEYCOMB_API_KEY")] = ""
    dataset: str = "hyperscale"
    url: str = "https://api.honeycomb.io"

    def check(self) -> None:
        check_given(self, "api_key", "dataset")
        check_url(self, self.url)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Honeycomb(self), self)


class Honeycomb(HttpBackend):
    noun = "events"

    def __init__(self, config: HoneycombConfig) -> None:
        super().__init__(config)
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        dataset = quote(self._config.dataset, safe="")
        url = f"{self._config.url.rstrip('/')}/1/batch/{dataset}"
        headers = {"Content-Type": "application/json", "X-Honeycomb-Team": self._config.api_key}
        for events in chunks(list(wide_events(rows_of(result))), self._config.batch_items_max):
            request = HttpRequest("POST", url, headers, msgspec.json.encode(events))
            yield Batch(len(events), request)

    def check(self, request: HttpRequest, reply: HttpReply) -> None:
        """Also read the status of each event: the request succeeds even if all of them fail."""
        raise_for_status(request, reply)
        failed = [each for each in json.loads(reply.body) if each.get("status") != 202]
        if failed:
            raise RejectedError(f"{len(failed)} events were refused, the first: {failed[0]}")


def wide_events(rows: list[MetricRow]) -> Iterator[dict[str, object]]:
    ordered = sorted(rows, key=_subject)
    for (workflow, step), own in groupby(ordered, key=_subject):
        metrics = list(own)
        first = metrics[0]
        at = datetime.fromtimestamp(first.at_unix_ms / 1000, UTC)
        data: dict[str, object] = {"run": first.run_id, "file": first.file}
        data |= {"workflow": workflow, "step": step} if step else {"workflow": workflow}
        data |= {f"{row.metric_group}.{row.name}": row.value for row in metrics}
        yield {"time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "data": data}


def _subject(row: MetricRow) -> tuple[str, str]:
    return row.workflow, row.step
