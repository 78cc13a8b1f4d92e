"""The result of a run, and the forms and places it goes to.

The public names are here; the rest of the package is imported from its modules. Names are loaded
when they are first used, so that a program that only needs the model of a result does not load
every report format.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyperscale.reporting.delivery import DeliveryError
    from hyperscale.reporting.files import OutputError
    from hyperscale.reporting.json_report import decode_json, encode_json
    from hyperscale.reporting.metrics import (
        CheckSet,
        MetricsSet,
        ResultSet,
        StepMetricSet,
        WorkflowMetric,
        WorkflowMetricSet,
        result_set,
    )
    from hyperscale.reporting.reporter import (
        Reporter,
        ReporterFailure,
        ReporterTypes,
        Sink,
        as_reporters,
        submit_all,
    )
    from hyperscale.reporting.reporters.aws_lambda import AWSLambdaConfig
    from hyperscale.reporting.reporters.bigquery import BigQueryConfig
    from hyperscale.reporting.reporters.bigtable import BigTableConfig
    from hyperscale.reporting.reporters.cassandra import CassandraConfig
    from hyperscale.reporting.reporters.cloudwatch import CloudwatchConfig
    from hyperscale.reporting.reporters.cosmosdb import CosmosDBConfig
    from hyperscale.reporting.reporters.datadog import DatadogConfig
    from hyperscale.reporting.reporters.graphite import GraphiteConfig
    from hyperscale.reporting.reporters.honeycomb import HoneycombConfig
    from hyperscale.reporting.reporters.influxdb import InfluxDBConfig
    from hyperscale.reporting.reporters.kafka import KafkaConfig
    from hyperscale.reporting.reporters.mongodb import MongoDBConfig
    from hyperscale.reporting.reporters.mysql import MySQLConfig
    from hyperscale.reporting.reporters.newrelic import NewRelicConfig
    from hyperscale.reporting.reporters.objects import (
        GCSConfig,
        S3Config,
    )
    from hyperscale.reporting.reporters.postgres import (
        PostgresConfig,
        TimescaleDBConfig,
    )
    from hyperscale.reporting.reporters.prometheus import PrometheusConfig
    from hyperscale.reporting.reporters.redis import RedisConfig
    from hyperscale.reporting.reporters.sqlite import SQLiteConfig
    from hyperscale.reporting.reporters.statsd import (
        DogStatsDConfig,
        NetdataConfig,
        StatsDConfig,
        TelegrafStatsDConfig,
    )
    from hyperscale.reporting.reporters.telegraf import TelegrafConfig
    from hyperscale.reporting.reporters.timestream import AWSTimestreamConfig
    from hyperscale.reporting.results import (
        CheckResult,
        LatencyMs,
        MetricResult,
        RunResult,
        RunStatus,
        SeriesResult,
        StepResult,
        ThresholdResult,
        WorkflowResult,
    )
    from hyperscale.reporting.sinks import (
        CSVConfig,
        CustomConfig,
        CustomReporter,
        JSONConfig,
        XMLConfig,
    )

_NAMES = {  # module -> its public names
    "files": "OutputError",
    "json_report": "decode_json encode_json",
    "metrics": (
        "CheckSet MetricsSet ResultSet StepMetricSet WorkflowMetric WorkflowMetricSet result_set"
    ),
    "reporter": "Reporter ReporterFailure ReporterTypes Sink as_reporters submit_all",
    "results": (
        "CheckResult LatencyMs MetricResult RunResult RunStatus SeriesResult StepResult"
        " ThresholdResult WorkflowResult"
    ),
    "reporters.aws_lambda": "AWSLambdaConfig",
    "reporters.bigquery": "BigQueryConfig",
    "reporters.bigtable": "BigTableConfig",
    "reporters.cassandra": "CassandraConfig",
    "reporters.cloudwatch": "CloudwatchConfig",
    "reporters.cosmosdb": "CosmosDBConfig",
    "reporters.datadog": "DatadogConfig",
    "reporters.graphite": "GraphiteConfig",
    "reporters.honeycomb": "HoneycombConfig",
    "reporters.influxdb": "InfluxDBConfig",
    "reporters.kafka": "KafkaConfig",
    "reporters.mongodb": "MongoDBConfig",
    "reporters.mysql": "MySQLConfig",
    "reporters.newrelic": "NewRelicConfig",
    "reporters.objects": "GCSConfig S3Config",
    "reporters.postgres": "PostgresConfig TimescaleDBConfig",
    "reporters.prometheus": "PrometheusConfig",
    "reporters.redis": "RedisConfig",
    "reporters.sqlite": "SQLiteConfig",
    "reporters.statsd": "DogStatsDConfig NetdataConfig StatsDConfig TelegrafStatsDConfig",
    "reporters.telegraf": "TelegrafConfig",
    "reporters.timestream": "AWSTimestreamConfig",
    "delivery": "DeliveryError",
    "sinks": "CSVConfig CustomConfig CustomReporter JSONConfig XMLConfig",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AWSLambdaConfig",
    "AWSTimestreamConfig",
    "BigQueryConfig",
    "BigTableConfig",
    "CSVConfig",
    "CassandraConfig",
    "CheckResult",
    "CheckSet",
    "CloudwatchConfig",
    "CosmosDBConfig",
    "CustomConfig",
    "CustomReporter",
    "DatadogConfig",
    "DeliveryError",
    "DogStatsDConfig",
    "GCSConfig",
    "GraphiteConfig",
    "HoneycombConfig",
    "InfluxDBConfig",
    "JSONConfig",
    "KafkaConfig",
    "LatencyMs",
    "MetricResult",
    "MetricsSet",
    "MongoDBConfig",
    "MySQLConfig",
    "NetdataConfig",
    "NewRelicConfig",
    "OutputError",
    "PostgresConfig",
    "PrometheusConfig",
    "RedisConfig",
    "Reporter",
    "ReporterFailure",
    "ReporterTypes",
    "ResultSet",
    "RunResult",
    "RunStatus",
    "S3Config",
    "SQLiteConfig",
    "SeriesResult",
    "Sink",
    "StatsDConfig",
    "StepMetricSet",
    "StepResult",
    "TelegrafConfig",
    "TelegrafStatsDConfig",
    "ThresholdResult",
    "TimescaleDBConfig",
    "WorkflowMetric",
    "WorkflowMetricSet",
    "WorkflowResult",
    "XMLConfig",
    "as_reporters",
    "decode_json",
    "encode_json",
    "result_set",
    "submit_all",
]


def __getattr__(name: str) -> object:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
