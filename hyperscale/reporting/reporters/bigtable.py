"""Google Bigtable over gRPC: a row per workflow and step of a run, a column per metric."""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from hyperscale.reporting.delivery import Backend, Batch, DeliverySink, RejectedError
from hyperscale.reporting.google import AccessTokens, GoogleSettings
from hyperscale.reporting.protobuf import bytes_field, message_field, text_field, uint_field
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, rows_of
from hyperscale.reporting.settings import check_given

_METHOD = "/google.bigtable.v2.Bigtable/MutateRows"
_TRANSIENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED", "INTERNAL")


class BigTableConfig(GoogleSettings, frozen=True, kw_only=True):
    """A table with the column family `metrics`. `endpoint_url` names an emulator:
    `http://localhost:9000` speaks without TLS."""

    EXTRA: ClassVar[str] = "grpc"
    DRIVERS: ClassVar[tuple[str, ...]] = ("grpc",)

    project: str = ""
    instance: str = ""
    table: str = "hyperscale"
    family: str = "metrics"

    def check(self) -> None:
        GoogleSettings.check(self)
        check_given(self, "project", "instance", "table", "family")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        names = address.split("/")
        return dict(zip(("project", "instance", "table"), names, strict=False))

    def open_sink(self) -> DeliverySink:
        return DeliverySink(BigTable(self), self)


class BigTable(Backend[list[list[MetricRow]]]):
    """Each batch is one `MutateRows` call of whole rows."""

    def __init__(self, config: BigTableConfig) -> None:
        self._config = config
        self._tokens = AccessTokens(config)
        self._channel: Any = None  # grpc.aio.Channel; the package has no types

    def batches(self, result: RunResult) -> Iterator[Batch[list[list[MetricRow]]]]:
        ordered = sorted(rows_of(result), key=row_key)
        batch: list[list[MetricRow]] = []
        size = 0
        for _, own in groupby(ordered, key=row_key):
            cells = list(own)
            if batch and size + len(cells) > self._config.batch_items_max:
                yield Batch(size, batch)
                batch, size = [], 0
            batch.append(cells)
            size += len(cells)
        if batch:
            yield Batch(size, batch)

    async def connect(self) -> None:
        import grpc  # noqa: PLC0415  a driver is imported when it is used

        config = self._config
        parts = urlsplit(config.endpoint_url or "https://bigtable.googleapis.com:443")
        if parts.scheme == "http":
            self._channel = grpc.aio.insecure_channel(parts.netloc)
        else:
            self._channel = grpc.aio.secure_channel(parts.netloc, grpc.ssl_channel_credentials())

    async def send(self, batch: Batch[list[list[MetricRow]]]) -> None:
        config = self._config
        table = f"projects/{config.project}/instances/{config.instance}/tables/{config.table}"
        metadata = [("x-goog-request-params", f"table_name={table}")]
        metadata += [(k.lower(), value) for k, value in (await self._tokens.header()).items()]
        call = self._channel.unary_stream(_METHOD)(
            encode_request(table, config.family, batch.payload),
            metadata=metadata,
            timeout=config.request_timeout_s,
        )
        async for reply in call:
            check_reply(reply)

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    def is_transient(self, error: Exception) -> bool:
        code = getattr(error, "code", None)
        if callable(code):  # grpc.aio.AioRpcError
            return code().name in _TRANSIENT
        return super().is_transient(error)

    def preview(self, batch: Batch[list[list[MetricRow]]]) -> str:
        return "\n".join(
            msgspec.json.encode(
                {row_key(cells[0]): {column(cell): cell.value for cell in cells}}
            ).decode()
            for cells in batch.payload
        )


def row_key(row: MetricRow) -> str:
    return json.dumps([row.run_id, row.workflow, row.step], ensure_ascii=False)


def column(row: MetricRow) -> str:
    return f"{row.metric_group}.{row.name}"


def encode_request(table: str, family: str, batch: list[list[MetricRow]]) -> bytes:
    """Encode a google.bigtable.v2.MutateRowsRequest. Values are text, exact to the last digit."""
    entries = b""
    for cells in batch:
        mutations = b"".join(
            message_field(
                2,
                message_field(
                    1,
                    text_field(1, family)
                    + bytes_field(2, column(cell).encode("utf-8", "replace"))
                    + uint_field(3, cell.at_unix_ms * 1000)
                    + bytes_field(4, repr(cell.value).encode()),
                ),
            )
            for cell in cells
        )
        key = bytes_field(1, row_key(cells[0]).encode("utf-8", "replace"))
        entries += message_field(2, key + mutations)
    return text_field(1, table) + entries


def check_reply(reply: bytes) -> None:
    """Raise if a google.bigtable.v2.MutateRowsResponse has a status other than OK."""
    for number, entry in fields_of(reply):
        if number != 1:  # entries
            continue
        for entry_number, status in fields_of(entry):
            if entry_number != 2:  # status
                continue
            found = dict(fields_of(status))
            if found.get(1):  # code
                text = found.get(2, b"").decode("utf-8", "replace")
                raise RejectedError(f"a row was refused: {text}")


def fields_of(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a message; a varint that is 0 as no bytes."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        if tag & 7 == 0:
            value, place = _varint(message, place)
            yield tag >> 3, b"" if not value else value.to_bytes(10, "little")
        elif tag & 7 == 2:
            size, place = _varint(message, place)
            yield tag >> 3, message[place : place + size]
            place += size
        else:
            place += 8 if tag & 7 == 1 else 4


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while place < len(message):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, place
