"""Reporters: a backend and its configuration behind one interface, and delivery to them.

A reporter that fails or hangs costs the run nothing but a line in the list of failures. `BACKENDS`
says where each backend is; it is imported when it is first used.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib import import_module
from typing import Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.settings import DeliverySettings

DELIVERY_TIMEOUT_S = 30.0
DEADLINE_MARGIN_S = 5.0  # a reporter with a deadline of its own says itself what was lost
CLOSE_TIMEOUT_S = 5.0


class ReporterTypes(Enum):
    JSON = "json"
    CSV = "csv"
    XML = "xml"
    Custom = "custom"
    AWSLambda = "lambda"
    AWSTimestream = "timestream"
    BigQuery = "bigquery"
    BigTable = "bigtable"
    Cassandra = "cassandra"
    Cloudwatch = "cloudwatch"
    CosmosDB = "cosmosdb"
    Datadog = "datadog"
    DogStatsD = "dogstatsd"
    GCS = "gcs"
    Graphite = "graphite"
    Honeycomb = "honeycomb"
    InfluxDB = "influxdb"
    Kafka = "kafka"
    MongoDB = "mongodb"
    MySQL = "mysql"
    Netdata = "netdata"
    NewRelic = "newrelic"
    Postgres = "postgres"
    Prometheus = "prometheus"
    Redis = "redis"
    S3 = "s3"
    SQLite = "sqlite"
    StatsD = "statsd"
    Telegraf = "telegraf"
    TelegrafStatsD = "telegraf-statsd"
    TimescaleDB = "timescaledb"


# Module under hyperscale.reporting, and its configuration class.
BACKENDS: dict[ReporterTypes, tuple[str, str]] = {
    ReporterTypes.JSON: ("sinks", "JSONConfig"),
    ReporterTypes.CSV: ("sinks", "CSVConfig"),
    ReporterTypes.XML: ("sinks", "XMLConfig"),
    ReporterTypes.Custom: ("sinks", "CustomConfig"),
    ReporterTypes.AWSLambda: ("reporters.aws_lambda", "AWSLambdaConfig"),
    ReporterTypes.AWSTimestream: ("reporters.timestream", "AWSTimestreamConfig"),
    ReporterTypes.BigQuery: ("reporters.bigquery", "BigQueryConfig"),
    ReporterTypes.BigTable: ("reporters.bigtable", "BigTableConfig"),
    ReporterTypes.Cassandra: ("reporters.cassandra", "CassandraConfig"),
    ReporterTypes.Cloudwatch: ("reporters.cloudwatch", "CloudwatchConfig"),
    ReporterTypes.CosmosDB: ("reporters.cosmosdb", "CosmosDBConfig"),
    ReporterTypes.Datadog: ("reporters.datadog", "DatadogConfig"),
    ReporterTypes.DogStatsD: ("reporters.statsd", "DogStatsDConfig"),
    ReporterTypes.GCS: ("reporters.objects", "GCSConfig"),
    ReporterTypes.Graphite: ("reporters.graphite", "GraphiteConfig"),
    ReporterTypes.Honeycomb: ("reporters.honeycomb", "HoneycombConfig"),
    ReporterTypes.InfluxDB: ("reporters.influxdb", "InfluxDBConfig"),
    ReporterTypes.Kafka: ("reporters.kafka", "KafkaConfig"),
    ReporterTypes.MongoDB: ("reporters.mongodb", "MongoDBConfig"),
    ReporterTypes.MySQL: ("reporters.mysql", "MySQLConfig"),
    ReporterTypes.Netdata: ("reporters.statsd", "NetdataConfig"),
    ReporterTypes.NewRelic: ("reporters.newrelic", "NewRelicConfig"),
    ReporterTypes.Postgres: ("reporters.postgres", "PostgresConfig"),
    ReporterTypes.Prometheus: ("reporters.prometheus", "PrometheusConfig"),
    ReporterTypes.Redis: ("reporters.redis", "RedisConfig"),
    ReporterTypes.S3: ("reporters.objects", "S3Config"),
    ReporterTypes.SQLite: ("reporters.sqlite", "SQLiteConfig"),
    ReporterTypes.StatsD: ("reporters.statsd", "StatsDConfig"),
    ReporterTypes.Telegraf: ("reporters.telegraf", "TelegrafConfig"),
    ReporterTypes.TelegrafStatsD: ("reporters.statsd", "TelegrafStatsDConfig"),
    ReporterTypes.TimescaleDB: ("reporters.postgres", "TimescaleDBConfig"),
}


@runtime_checkable
class Sink(Protocol):
    """What a run delivers its result to: a `Reporter` or a `CustomReporter`."""

    async def connect(self) -> None: ...
    async def submit(self, result: RunResult, /) -> None: ...
    async def close(self) -> None: ...


@runtime_checkable
class Previewing(Protocol):
    """A sink that can show what it would deliver."""

    def preview(self, result: RunResult, /) -> Iterator[str]: ...


class ReporterFailure(Struct, frozen=True, kw_only=True):
    reporter: str
    stage: str  # connect, submit or close
    error: str


ConfigT = TypeVar("ConfigT", bound=Struct)


class Reporter(Generic[ConfigT]):
    """`Reporter[JSONConfig](reporter_type=ReporterTypes.JSON, config=JSONConfig("out.json"))`."""

    def __init__(self, reporter_type: ReporterTypes | str, config: ConfigT) -> None:
        self.reporter_type = _known_type(reporter_type)
        self.config = config
        self._sink = _open(self.reporter_type, config)
        self._is_connected = False

    async def connect(self) -> None:
        await self._sink.connect()
        self._is_connected = True

    async def submit(self, result: RunResult) -> None:
        if not self._is_connected:
            raise RunError(f"{self!r} is not connected", hint="await connect() before submit()")
        await self._sink.submit(result)

    async def close(self) -> None:
        self._is_connected = False
        await self._sink.close()

    @property
    def deadline_s(self) -> float:
        """How long a delivery may take."""
        own = getattr(self.config, "deadline_s", 0.0)
        return max(DELIVERY_TIMEOUT_S, own + DEADLINE_MARGIN_S)

    def preflight(self) -> None:
        """Raise InputError if what the reporter needs is not installed."""
        if isinstance(self.config, DeliverySettings):
            self.config.preflight()

    def preview(self, result: RunResult) -> Iterator[str]:
        """Yield what would be delivered, as text, request by request."""
        if isinstance(self._sink, Previewing):
            yield from self._sink.preview(result)

    def __repr__(self) -> str:
        return f"Reporter[{type(self.config).__name__}]"


def _known_type(reporter_type: ReporterTypes | str) -> ReporterTypes:
    try:
        return ReporterTypes(
            reporter_type.lower() if isinstance(reporter_type, str) else reporter_type
        )
    except ValueError:
        names = ", ".join(f"ReporterTypes.{known.name}" for known in ReporterTypes)
        raise InputError(
            f"unknown reporter {reporter_type!r}", hint=f"available are {names}"
        ) from None


def _open(reporter_type: ReporterTypes, config: Struct) -> Sink:
    known = config_type(reporter_type)
    if not isinstance(config, known):
        raise InputError(
            f"ReporterTypes.{reporter_type.name} takes a {known.__name__}, "
            f"not a {type(config).__name__}"
        )
    sink: Sink = config.open_sink()  # type: ignore[attr-defined]  # every class in BACKENDS has it
    return sink


def config_type(reporter_type: ReporterTypes) -> type[Struct]:
    """Return the configuration class of a backend."""
    module_name, config_name = BACKENDS[reporter_type]
    try:
        module = import_module(f"hyperscale.reporting.{module_name}")
    except ImportError as error:
        raise InputError(
            f"ReporterTypes.{reporter_type.name} is not available: {error}",
            hint="install what it needs, or remove the reporter",
        ) from error
    found: type[Struct] = getattr(module, config_name)
    return found


def as_reporters(value: object, *, where: str) -> tuple[Sink, ...]:
    """Return what a user gave as `reporters`, checked. `where` is the file or the argument."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InputError(
            f"{where}: {value!r} is not a list of reporters",
            hint="write reporters = [Reporter(...), ...]",
        )
    for item in value:
        if isinstance(item, type) or not isinstance(item, Sink):
            raise InputError(
                f"{where}: {item!r} is not a reporter",
                hint="use Reporter(reporter_type=..., config=...) or an instance of your "
                "CustomReporter",
            )
        if isinstance(item, Reporter):
            item.preflight()
    return tuple(value)


async def submit_all(
    reporters: Sequence[Sink], result: RunResult, *, timeout_s: float | None = None
) -> list[ReporterFailure]:
    """Deliver `result` to every reporter at once; return what went wrong, raise nothing.

    Each reporter has a thread and an event loop of its own: a reporter that blocks instead of
    awaiting delays neither the others nor the caller beyond the timeout. Without `timeout_s`, each
    has the time that its configuration says.
    """
    loop = asyncio.get_running_loop()
    deliveries: list[tuple[Sink, float, asyncio.Future[ReporterFailure | None]]] = []
    for reporter in reporters:
        limit_s = _timeout_of(reporter) if timeout_s is None else timeout_s
        outcome: asyncio.Future[ReporterFailure | None] = loop.create_future()
        deliveries.append((reporter, limit_s, outcome))
        threading.Thread(
            target=_deliver_in_thread,
            args=(reporter, result, limit_s, loop, outcome),
            name=f"reporter:{_name(reporter)}",
            daemon=True,  # a reporter that never returns must not keep the process alive
        ).start()
    if deliveries:
        patience_s = max(limit_s for _, limit_s, _ in deliveries) + CLOSE_TIMEOUT_S + 1.0
        await asyncio.wait([outcome for *_, outcome in deliveries], timeout=patience_s)
    failures = []
    for reporter, limit_s, outcome in deliveries:
        late = _failure(reporter, "submit", _late(limit_s))
        failure = outcome.result() if outcome.done() else late
        if failure is not None:
            failures.append(failure)
    return failures


def _deliver_in_thread(
    reporter: Sink,
    result: RunResult,
    timeout_s: float,
    loop: asyncio.AbstractEventLoop,
    outcome: "asyncio.Future[ReporterFailure | None]",
) -> None:
    try:
        failure = asyncio.run(_deliver(reporter, result, timeout_s))
    except BaseException as error:  # noqa: BLE001  even sys.exit() in user code is its failure only
        failure = _failure(reporter, "submit", _text(error))

    def settle() -> None:
        if not outcome.done():
            outcome.set_result(failure)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the caller's loop has closed: it stopped waiting long ago


async def _deliver(reporter: Sink, result: RunResult, timeout_s: float) -> ReporterFailure | None:
    stage, failure = "connect", None
    try:
        async with asyncio.timeout(timeout_s):
            await reporter.connect()
            stage = "submit"
            await reporter.submit(result)
    except Exception as error:  # noqa: BLE001  whatever user code raises is its failure, not the run's
        # A TimeoutError of the reporter itself has a text.
        is_late = isinstance(error, TimeoutError) and not str(error)
        failure = _failure(reporter, stage, _late(timeout_s) if is_late else _text(error))
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await reporter.close()
    except Exception as error:  # noqa: BLE001  as above
        failure = failure or _failure(reporter, "close", _text(error))
    return failure


def _timeout_of(reporter: Sink) -> float:
    return reporter.deadline_s if isinstance(reporter, Reporter) else DELIVERY_TIMEOUT_S


def _failure(reporter: Sink, stage: str, error: str) -> ReporterFailure:
    return ReporterFailure(reporter=_name(reporter), stage=stage, error=error)


def _late(timeout_s: float) -> str:
    return f"not done within {timeout_s:g} s"


def _text(error: BaseException) -> str:
    if isinstance(error, HyperscaleError):  # says by itself what is wrong
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _name(reporter: Sink) -> str:
    return repr(reporter) if isinstance(reporter, Reporter) else type(reporter).__name__
