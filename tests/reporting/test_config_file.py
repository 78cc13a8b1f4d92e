"""Reporters that are named on a command line or in a TOML file."""

from pathlib import Path
from typing import Any

import pytest

from hyperscale.errors import InputError
from hyperscale.reporting import (
    DatadogConfig,
    InfluxDBConfig,
    JSONConfig,
    KafkaConfig,
    PostgresConfig,
    S3Config,
    SQLiteConfig,
    XMLConfig,
)
from hyperscale.reporting.config_file import NAMED_TYPES, load_reporters, load_streams
from hyperscale.reporting.reporter import BACKENDS, ReporterTypes, config_type
from hyperscale.reporting.settings import DeliverySettings
from tests.figures import ROOT

AWS = {"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


def load(*named: str, file: Path | None = None, **environment: str) -> list[Any]:
    return [each.config for each in load_reporters(named, file, environment)]


def test_there_are_31_reporters() -> None:
    assert len(ReporterTypes) == len(BACKENDS) == 31
    for kind in NAMED_TYPES.values():
        made = config_type(kind)
        assert made.__doc__ or kind is ReporterTypes.JSON
        if kind.value not in ("json", "csv", "xml"):
            assert issubclass(made, DeliverySettings)


@pytest.mark.parametrize(
    ("named", "config"),
    [
        ("json=out.json", JSONConfig(path="out.json")),
        ("xml", XMLConfig()),
        ("sqlite=results.db", SQLiteConfig(path="results.db")),
        (
            "postgres=postgresql://load@db.internal:5433/results",
            PostgresConfig(host="db.internal", port=5433, username="load", database="results"),
        ),
        ("kafka=a:9092,b:9092/load", KafkaConfig(servers=("a:9092", "b:9092"), topic="load")),
        (
            "s3=results/nightly",
            S3Config(
                bucket="results",
                prefix="nightly",
                region="eu-west-1",
                access_key_id="a",
                secret_access_key="b",
            ),
        ),
    ],
)
def test_an_address_fills_the_configuration(named: str, config: Any) -> None:
    assert load(named, **AWS) == [config]


def test_credentials_come_from_the_environment() -> None:
    assert load("datadog", DD_API_KEY="key", DD_SITE="datadoghq.eu") == [
        DatadogConfig(api_key="key", site="datadoghq.eu")
    ]


def test_a_file_names_reporters_and_variables(tmp_path: Path) -> None:
    file = tmp_path / "reporters.toml"
    file.write_text(
        """
[reporters.influxdb]
bucket = "load"
token = "${LOAD_TOKEN}"
deadline_s = 12.5

[reporters.archive]
type = "sqlite"
path = "archive.db"
"""
    )
    influx = InfluxDBConfig(bucket="load", token="t0ken", deadline_s=12.5)
    archive = SQLiteConfig(path="archive.db")
    assert load(file=file, LOAD_TOKEN="t0ken") == [influx, archive]
    assert load("archive", file=file) == [archive]
    assert load("archive=other.db", "json", file=file) == [
        SQLiteConfig(path="other.db"),
        JSONConfig(),
    ]
    with pytest.raises(InputError, match=r"reporters\.influxdb.* LOAD_TOKEN is not set"):
        load(file=file)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("influx", r"there is no reporter 'influx'.*did you mean influxdb"),
        ("custom", "there is no reporter 'custom'"),
        ("sqlite=", "the address is empty"),
        ("postgres=postgresql://load:secret@db/x", "contains a password.*command line is public"),
        ("influxdb=http://u:p@db", "the URL contains a password"),
        ("influxdb=db:8086", "is not an http or https URL"),
        ("influxdb", "neither bucket nor database"),
        ("datadog", "api_key is missing.*DD_API_KEY"),
        ("s3=bucket", "region is missing"),
        ("bigquery=a.b", "no credentials"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(named: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load(named)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[reporters.sqlite]\npaht = 'x'", "unknown setting paht.*known are .*path"),
        ("[reporters.sqlite]\npath = 3.5", "sqlite: Expected `str`"),
        ("[reporters.sqlite]\ndeadline_s = -1", r"deadline_s=-1.* must be seconds"),
        ("[reporter.sqlite]", r"unknown section \[reporter\]"),
        ("reporters = 3", r"\[reporters\] must have tables"),
        ("[", "is not TOML"),
    ],
)
def test_mistakes_in_a_file_are_named(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "reporters.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=reason):
        load(file=file)


def test_the_example_names_reporters_and_streams() -> None:
    example = ROOT / "examples/reporters.toml"
    environment = {**AWS, "INFLUX_TOKEN": "t0ken"}
    reporters = load_reporters([], example, environment)
    assert [each.reporter_type.value for each in reporters] == ["sqlite", "influxdb", "s3"]
    streams = load_streams([], example, environment)
    assert [repr(each) for each in streams] == [
        "JSONLinesStream",
        "OTLPStream",
        "RemoteWriteStream",
    ]
