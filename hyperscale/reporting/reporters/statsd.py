"""StatsD and the dialects of Datadog, Telegraf and Netdata: every metric a gauge."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import Batch, DeliverySink, packed
from hyperscale.reporting.lines import dogstatsd_line, statsd_line, telegraf_statsd_line
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import MetricRow, dotted_name, rows_of
from hyperscale.reporting.settings import DeliverySettings, host_and_more
from hyperscale.reporting.sockets import DATAGRAM_BYTES_MAX, LineBackend


class StatsdSettings(DeliverySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A StatsD server."""

    host: str = "localhost"
    port: int = 8125
    protocol: Literal["udp", "tcp"] = "udp"
    prefix: str = "hyperscale"

    def check(self) -> None:
        if self.protocol not in ("udp", "tcp"):
            raise InputError(f"{type(self).__name__}: protocol={self.protocol!r} is not udp or tcp")

    @classmethod
    def of_address(cls, address: str) -> dict[str, Any]:
        return host_and_more(address)

    @abstractmethod
    def line_of(self, row: MetricRow) -> bytes:
        """Return a metric in the dialect of the server."""

    def open_sink(self) -> DeliverySink:
        return DeliverySink(StatsdServer(self), self)


class StatsDConfig(StatsdSettings, frozen=True, kw_only=True):
    """Etsy's StatsD: names with dots, no tags."""

    def line_of(self, row: MetricRow) -> bytes:
        return statsd_line(dotted_name(self.prefix, row, with_run=False), row.value)


class NetdataConfig(StatsdSettings, frozen=True, kw_only=True):
    """The StatsD server that is part of every Netdata agent."""

    def line_of(self, row: MetricRow) -> bytes:
        return statsd_line(dotted_name(self.prefix, row, with_run=False), row.value)


class DogStatsDConfig(StatsdSettings, frozen=True, kw_only=True):
    """The StatsD server of a Datadog agent: tags behind the value."""

    def line_of(self, row: MetricRow) -> bytes:
        name = f"{self.prefix}.{row.metric_group}.{row.name}"
        return dogstatsd_line(name, row.value, "g", _tags(row))


class TelegrafStatsDConfig(StatsdSettings, frozen=True, kw_only=True):
    """The `statsd` input of Telegraf: tags behind the name."""

    def line_of(self, row: MetricRow) -> bytes:
        name = f"{self.prefix}.{row.metric_group}.{row.name}"
        return telegraf_statsd_line(name, row.value, "g", _tags(row))


def _tags(row: MetricRow) -> dict[str, str]:
    return {"run": row.run_id, "workflow": row.workflow, "step": row.step}


class StatsdServer(LineBackend):
    def __init__(self, config: StatsdSettings) -> None:
        super().__init__(config.host, config.port, is_stream=config.protocol == "tcp")
        self._config = config

    def batches(self, result: RunResult) -> Iterator[Batch[bytes]]:
        lines = map(self._config.line_of, rows_of(result))
        for group in packed(
            lines, bytes_max=DATAGRAM_BYTES_MAX, items_max=self._config.batch_items_max
        ):
            yield Batch(len(group), b"".join(group))
