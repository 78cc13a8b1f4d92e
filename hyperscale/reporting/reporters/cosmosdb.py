"""Azure Cosmos DB (NoSQL API): a document for the run and for each workflow and step."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator
from email.utils import formatdate
from itertools import groupby
from typing import Annotated
from urllib.parse import quote

import msgspec

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import Batch, DeliverySink
from hyperscale.reporting.http import HttpBackend, HttpRequest, HttpSettings
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of, run_document, run_id_of
from hyperscale.reporting.settings import check_given, check_url, credential


class CosmosDBConfig(HttpSettings, frozen=True, kw_only=True):
    """A container whose partition key is `/run_id`."""

    url: str = ""  # https://ACCOUNT.documents.azure.com
    key: Annotated[str, credential("COSMOS_KEY")] = ""
    database: str = "hyperscale"
    container: str = "results"

    def check(self) -> None:
        check_given(self, "url", "key", "database", "container")
        check_url(self, self.url)
        try:
            base64.b64decode(self.key, validate=True)
        except binascii.Error:
            raise InputError("CosmosDBConfig: key is not base64", hint="copy it whole") from None

    def open_sink(self) -> DeliverySink:
        return DeliverySink(CosmosDB(self), self)


class CosmosDB(HttpBackend):
    noun = "documents"

    def __init__(self, config: CosmosDBConfig) -> None:
        super().__init__(config)
        self._config = config
        self._link = f"dbs/{config.database}/colls/{config.container}"

    def batches(self, result: RunResult) -> Iterator[Batch[HttpRequest]]:
        run_id = run_id_of(result)
        headers = {
            "Content-Type": "application/json",
            "x-ms-version": "2018-12-31",
            "x-ms-documentdb-is-upsert": "True",
            "x-ms-documentdb-partitionkey": msgspec.json.encode([run_id]).decode(),
        }
        url = f"{self._config.url.rstrip('/')}/{quote(self._link)}/docs"
        for document in documents_of(result):
            yield Batch(1, HttpRequest("POST", url, headers, msgspec.json.encode(document)))

    async def prepare(self, request: HttpRequest) -> HttpRequest:
        date = formatdate(usegmt=True)
        token = authorization_token(self._config.key, "post", "docs", self._link, date)
        return request.with_headers(x_ms_date=date, Authorization=token)


def documents_of(result: RunResult) -> Iterator[dict[str, object]]:
    """Yield the run, then its numbers by workflow and step. Ids hold no character that Cosmos DB
    forbids."""
    run_id = run_id_of(result)
    yield {"id": _id(run_id), "type": "run", **run_document(result)}
    ordered = sorted(rows_of(result), key=_subject)
    for (workflow, step), rows in groupby(ordered, key=_subject):
        yield {
            "id": _id(run_id, workflow, step),
            "type": "metrics",
            "run_id": run_id,
            "workflow": workflow,
            "step": step,
            "metrics": [
                {"group": row.metric_group, "name": row.name, "value": row.value, "unit": row.unit}
                for row in rows
            ],
        }


def _subject(row: MetricRow) -> tuple[str, str]:
    return row.workflow, row.step


def _id(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def authorization_token(key: str, verb: str, kind: str, link: str, date: str) -> str:
    """Return the header that proves knowledge of the account's key."""
    text = f"{verb.lower()}\n{kind.lower()}\n{link}\n{date.lower()}\n\n"
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), "sha256"))
    return quote(f"type=master&ver=1.0&sig={signature.decode()}", safe="")
