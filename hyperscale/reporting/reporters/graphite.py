"""Graphite: the plaintext protocol of Carbon, over TCP."""

from collections.abc import Iterator
from typing import Any

from hyperscale.reporting.delivery import Batch, DeliverySink, chunks
from hyperscale.reporting.lines import graphite_line
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import dotted_name, rows_of
from hyperscale.reporting.settings import DeliverySettings, host_and_more
from hyperscale.reporting.sockets import LineBackend


class GraphiteConfig(DeliverySettings, frozen=True, kw_only=True):
    """A line receiver of Carbon or of a relay."""

    host: str = "localhost"
    port: int = 2003
    prefix: str = "hyperscale"
    path_per_run: bool = False  # True: prefix.RUN.workflow…, one set of files for each run

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return host_and_more(address)

    def open_sink(self) -> DeliverySink:
        return DeliverySink(Graphite(self), self)


class Graphite(LineBackend):
    def __init__(self, config: GraphiteConfig) -> None:
        super().__init__(config.host, config.port, is_stream=True)
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[bytes]]:
        for rows in chunks(rows_of(result), self._config.batch_items_max):
            lines = (
                graphite_line(
                    dotted_name(self._config.prefix, row, with_run=self._config.path_per_run),
                    row.value,
                    row.at_unix_ms // 1000,
                )
                for row in rows
            )
            yield Batch(len(rows), b"".join(lines))
