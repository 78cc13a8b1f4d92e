"""Where the contract of reporters is tested: for each, a server, a configuration, a way to read.

`read` returns what the server has of a run, by the name that the reporter gave each number;
`key` is that name. A destination with `service` is a real server; see also `recording`.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hyperscale.reporting.reporter import ReporterTypes
from hyperscale.reporting.reporters import (
    cassandra,
    graphite,
    influxdb,
    kafka,
    mongodb,
    mysql,
    postgres,
    prometheus,
    redis,
    statsd,
    telegraf,
)
from hyperscale.reporting.rows import MetricRow, dotted_name
from tests.services.base import PASSWORD, Service
from tests.services.monitoring import eventually, get

Stored = dict[Any, float]
FAST: dict[str, Any] = {"request_timeout_s": 5.0, "deadline_s": 10.0, "retry_first_s": 0.05}


@dataclass(frozen=True)
class Destination:
    kind: ReporterTypes
    service: str
    configure: Callable[[Any, dict[str, Any]], msgspec.Struct]
    read: Callable[[Any, list[MetricRow]], Stored]
    key: Callable[[MetricRow], Any]
    tolerance: float = 0.0  # relative, of servers that store less than a float
    # The configuration with a wrong credential; None: there is none to get wrong.
    misconfigure: Callable[[msgspec.Struct], msgspec.Struct] | None = None

    def __str__(self) -> str:
        """Return what the fixture of servers looks for in parameters of tests."""
        return self.service


def exact(row: MetricRow) -> tuple[str, str, str, str]:
    return row.workflow, row.step, row.metric_group, row.name


def wrong(**fields: Any) -> Callable[[msgspec.Struct], msgspec.Struct]:
    return lambda config: msgspec.structs.replace(config, **fields)


# --- SQL --------------------------------------------------------------------------------------

_SELECT = "SELECT workflow, step, metric_group, name, value FROM hyperscale_metrics WHERE run_id = "


def read_postgres(server: Any, rows: list[MetricRow]) -> Stored:
    text = server.psql(f"SELECT json_agg(x) FROM ({_SELECT}'{rows[0].run_id}') x")
    runs = server.psql(f"SELECT count(*) FROM hyperscale_runs WHERE run_id = '{rows[0].run_id}'")
    assert runs == "1"
    return {tuple(list(each.values())[:4]): each["value"] for each in json.loads(text or "[]")}


def read_timescale(server: Any, rows: list[MetricRow]) -> Stored:
    text = server.psql(
        f"SELECT json_agg(x) FROM ({_SELECT.replace('hyperscale_m', 'timescale_m')}"
        f"'{rows[0].run_id}') x"
    )
    return {tuple(list(each.values())[:4]): each["value"] for each in json.loads(text or "[]")}


def read_sqlite(path: Path, rows: list[MetricRow]) -> Stored:
    with sqlite3.connect(path) as connection:
        found = connection.execute(f"{_SELECT}?", [rows[0].run_id]).fetchall()
        runs = connection.execute(
            "SELECT count(*) FROM hyperscale_runs WHERE run_id = ?", [rows[0].run_id]
        )
        assert runs.fetchone() == (1,)
    connection.close()
    return {tuple(row[:4]): row[4] for row in found}


def read_mysql(server: Any, rows: list[MetricRow]) -> Stored:
    return {tuple(row[:4]): float(row[4]) for row in server.rows(f"{_SELECT}'{rows[0].run_id}'")}


def read_cassandra(server: Any, rows: list[MetricRow]) -> Stored:
    query = _SELECT.replace("hyperscale_m", "hyperscale.hyperscale_m")
    found = server.query(f"{query}'{rows[0].run_id}'")
    return {tuple(row[:4]): row[4] for row in found}


def read_mongodb(server: Any, rows: list[MetricRow]) -> Stored:
    query = {"run_id": rows[0].run_id}
    assert len(server.documents("hyperscale_runs", query)) == 1
    names = ("workflow", "step", "metric_group", "name")
    found = server.documents("hyperscale_metrics", query)
    return {tuple(each[name] for name in names): each["value"] for each in found}


def read_kafka(server: Any, rows: list[MetricRow]) -> Stored:
    return {
        tuple(key[1:]): value["value"]
        for key, value in server.messages("hyperscale-results")
        if key[0] == rows[0].run_id
    }


# --- key-value --------------------------------------------------------------------------------


def read_redis(server: Any, rows: list[MetricRow]) -> Stored:
    lines = server.cli("HGETALL", f"hyperscale:metrics:{rows[0].run_id}").splitlines()
    assert rows[0].run_id in server.cli("ZRANGE", "hyperscale:runs", "0", "-1").split()
    return {
        tuple(json.loads(key)): float(value)
        for key, value in zip(lines[::2], lines[1::2], strict=True)
    }


# --- time series ------------------------------------------------------------------------------


def read_influx(server: Any, rows: list[MetricRow], *, database: str = "load") -> Stored:
    query = f"SELECT * FROM /hyperscale_.*/ WHERE run = '{rows[0].run_id}'"
    return dict(_influx_points(server.query(query, database)))


def _influx_points(series: list[dict[str, Any]]) -> Iterator[tuple[Any, float]]:
    for each in series:
        for values in each["values"]:
            point = dict(zip(each["columns"], values, strict=True))
            subject = point.pop("workflow", None) or "", point.pop("step", None) or ""
            del point["time"], point["run"]
            group = each["name"].removeprefix("hyperscale_")
            for name, value in point.items():
                if value is not None:
                    yield (*subject, group, name), value


def read_telegraf(server: Any, rows: list[MetricRow]) -> Stored:
    found: Stored = eventually(
        lambda: read_influx(server, rows, database="telegraf"), lambda it: len(it) == len(rows), 5.0
    )
    return found


def read_prometheus(server: Any, rows: list[MetricRow]) -> Stored:
    query = f'{{__name__=~"hyperscale_result_.*",run="{rows[0].run_id}"}}'
    found = server.query(query, at_s=rows[0].at_unix_ms / 1000 + 1)
    return {_prometheus_key(each["metric"]): float(each["value"][1]) for each in found}


def _prometheus_key(labels: dict[str, str]) -> tuple[str, str, str, str]:
    group = labels["__name__"].removeprefix("hyperscale_result_")
    return labels.get("workflow", ""), labels.get("step", ""), group, labels["metric"]


def read_pushgateway(server: Any, rows: list[MetricRow]) -> Stored:
    families = json.loads(get(f"{server.url}/api/v1/metrics"))["data"]
    found: Stored = {}
    for group in families:
        if group["labels"].get("run") != rows[0].run_id:
            continue
        for name, family in group.items():
            if name.startswith("hyperscale_result_"):
                for metric in family["metrics"]:
                    key = _prometheus_key({"__name__": name, **metric["labels"]})
                    found[key] = float(metric["value"])
    return found


def read_graphite(server: Any, rows: list[MetricRow]) -> Stored:
    found: Stored = eventually(
        server.stored,
        lambda it: len([name for name in it if rows[0].run_id in name]) == len(rows),
        10.0,
    )
    return {name: value for name, value in found.items() if rows[0].run_id in name}


def read_statsd(server: Any, rows: list[MetricRow]) -> Stored:
    wanted = {dotted_name(f"run.{rows[0].run_id}", row, with_run=False) for row in rows}
    found = eventually(server.gauges, lambda it: wanted <= it.keys(), 10.0)
    return {name: value for name, value in found.items() if name in wanted}


def statsd_name(row: MetricRow) -> str:
    return dotted_name(f"run.{row.run_id}", row, with_run=False)


def read_netdata(server: Any, rows: list[MetricRow]) -> Stored:
    wanted = {netdata_name(row): row.value for row in rows}

    def is_enough(found: Stored) -> bool:
        return all(
            abs(found.get(name, 1e99) - value) <= 1e-3 + 1e-5 * abs(value)
            for name, value in wanted.items()
        )

    found = eventually(server.gauges, is_enough, 15.0)
    return {name: value for name, value in found.items() if name in wanted}


def netdata_name(row: MetricRow) -> str:
    """Return the name that Netdata makes of a gauge's name: in lower case."""
    return statsd_name(row).lower()


def _login(server: Service, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": server.port,
        "username": "load",
        "password": PASSWORD,
        **given,
    }


DESTINATIONS = [
    Destination(
        ReporterTypes.Postgres,
        "postgres",
        lambda server, given: postgres.PostgresConfig(database="shop", **_login(server, given)),
        read_postgres,
        exact,
        misconfigure=wrong(password="not the password"),
    ),
    Destination(
        ReporterTypes.TimescaleDB,
        "postgres",
        lambda server, given: postgres.TimescaleDBConfig(
            database="shop", table_prefix="timescale", **_login(server, given)
        ),
        read_timescale,
        exact,
        misconfigure=wrong(password="not the password"),
    ),
    Destination(
        ReporterTypes.MySQL,
        "mysql",
        lambda server, given: mysql.MySQLConfig(database="shop", **_login(server, given)),
        read_mysql,
        exact,
        misconfigure=wrong(password="not the password"),
    ),
    Destination(
        ReporterTypes.Cassandra,
        "cassandra",
        lambda server, given: cassandra.CassandraConfig(
            hosts=("127.0.0.1",),
            port=server.port,
            username="cassandra",
            password="cassandra",
            **given,
        ),
        read_cassandra,
        exact,
        misconfigure=wrong(password="not the password"),
    ),
    Destination(
        ReporterTypes.MongoDB,
        "mongodb",
        lambda server, given: mongodb.MongoDBConfig(host="127.0.0.1", port=server.port, **given),
        read_mongodb,
        exact,
    ),
    Destination(
        ReporterTypes.Kafka,
        "kafka",
        lambda server, given: kafka.KafkaConfig(
            servers=(f"127.0.0.1:{server.port}",),
            username="load",
            password=PASSWORD,
            sasl_mechanism="PLAIN",
            **given,
        ),
        read_kafka,
        exact,
        misconfigure=wrong(password="not the password"),
    ),
    Destination(
        ReporterTypes.Redis,
        "redis",
        lambda server, given: redis.RedisConfig(
            host="127.0.0.1", port=server.port, password=PASSWORD, **given
        ),
        read_redis,
        exact,
        misconfigure=wrong(password="not the password"),
    ),
    Destination(
        ReporterTypes.InfluxDB,
        "influxdb",
        lambda server, given: influxdb.InfluxDBConfig(
            url=server.url, database="load", username="load", password=PASSWORD, **given
        ),
        read_influx,
        exact,
        misconfigure=wrong(password="not the password"),
    ),
    Destination(
        ReporterTypes.Telegraf,
        "influxdb",
        lambda server, given: telegraf.TelegrafConfig(
            url=f"udp://127.0.0.1:{server.udp_port}", **given
        ),
        read_telegraf,
        exact,
    ),
    Destination(
        ReporterTypes.Prometheus,
        "prometheus",
        lambda server, given: prometheus.PrometheusConfig(
            url=f"{server.url}/api/v1/write", **given
        ),
        read_prometheus,
        exact,
    ),
    Destination(
        ReporterTypes.Prometheus,
        "pushgateway",
        lambda server, given: prometheus.PrometheusConfig(
            url=server.url, protocol="pushgateway", **given
        ),
        read_pushgateway,
        exact,
    ),
    Destination(
        ReporterTypes.Graphite,
        "graphite",
        lambda server, given: graphite.GraphiteConfig(
            host="127.0.0.1", port=server.port, path_per_run=True, **given
        ),
        read_graphite,
        lambda row: dotted_name("hyperscale", row, with_run=True),
    ),
    Destination(
        ReporterTypes.StatsD,
        "statsd",
        lambda server, given: statsd.StatsDConfig(
            host="127.0.0.1", port=server.port, prefix="run.a-statsd", **given
        ),
        read_statsd,
        statsd_name,
    ),
    Destination(
        ReporterTypes.Netdata,
        "netdata",
        lambda server, given: statsd.NetdataConfig(
            host="127.0.0.1",
            port=server.statsd_port,
            prefix="run.a-netdata",
            protocol="tcp",
            **given,
        ),
        read_netdata,
        netdata_name,
        tolerance=1e-3,
    ),
]
