"""Destinations in clouds and at services that nobody can run; see `destinations`."""

import json
from typing import Any

import msgspec

from hyperscale.reporting.json_report import decode_json
from hyperscale.reporting.reporter import ReporterTypes
from hyperscale.reporting.reporters import (
    aws_lambda,
    bigquery,
    bigtable,
    cloudwatch,
    cosmosdb,
    datadog,
    honeycomb,
    influxdb,
    newrelic,
    objects,
    statsd,
    timestream,
)
from hyperscale.reporting.rows import MetricRow, rows_of
from tests.reporting.destinations import Destination, Stored, exact, wrong
from tests.services.monitoring import eventually, get
from tests.services.recording import KEY, Call

_AWS = {"region": "eu-west-1", "access_key_id": "load", "secret_access_key": "secret"}


def _aws(server: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {"endpoint_url": server.url, **_AWS, **given}


# --- stores of files: the whole result is there -----------------------------------------------


def _numbers(content: bytes) -> Stored:
    return {exact(row): row.value for row in rows_of(decode_json(content))}


def read_s3(server: Any, rows: list[MetricRow]) -> Stored:
    key = f"hyperscale/{rows[0].run_id}/results.json"
    return _numbers(server.client("s3").get_object(Bucket="load", Key=key)["Body"].read())


def read_gcs(server: Any, rows: list[MetricRow]) -> Stored:
    return _numbers(get(f"{server.url}/load/hyperscale/{rows[0].run_id}/results.json"))


# --- AWS --------------------------------------------------------------------------------------


def cloudwatch_key(row: MetricRow) -> tuple[str, str, str]:
    return row.workflow, row.step, f"{row.metric_group}.{row.name}"


def read_cloudwatch(server: Any, rows: list[MetricRow]) -> Stored:
    client = server.client("cloudwatch")
    metrics = client.list_metrics(Namespace="Hyperscale")["Metrics"]
    queries = [
        {
            "Id": f"m{place}",
            "MetricStat": {
                "Metric": {
                    name: metric[name] for name in ("Namespace", "MetricName", "Dimensions")
                },
                "Period": 1,
                "Stat": "Average",
            },
        }
        for place, metric in enumerate(metrics)
    ]
    at_s = rows[0].at_unix_ms / 1000
    results = client.get_metric_data(
        MetricDataQueries=queries, StartTime=at_s - 60, EndTime=at_s + 60
    )["MetricDataResults"]
    found: Stored = {}
    for metric, values in zip(metrics, results, strict=True):
        place = {each["Name"]: each["Value"] for each in metric["Dimensions"]}
        if place.get("Run") == rows[0].run_id:
            key = place.get("Workflow", ""), place.get("Step", ""), metric["MetricName"]
            found[key] = values["Values"][0]
    return found


def read_timestream(server: Any, rows: list[MetricRow]) -> Stored:
    found: Stored = {}
    for table in server.model("timestreamwrite", "TimestreamTable"):
        for record in table["records"]:
            place = {each["Name"]: each["Value"] for each in record["Dimensions"]}
            assert record["Time"] == str(rows[0].at_unix_ms)
            subject = place.get("workflow", ""), place.get("step", "")
            key = (*subject, place["group"], record["MeasureName"])
            found[key] = float(record["MeasureValue"])
    return found


def read_lambda(server: Any, rows: list[MetricRow]) -> Stored:
    events = [call.json() for call in server.accepted]
    assert {event["run"]["run_id"] for event in events} == {rows[0].run_id}
    return {
        exact(row): row.value
        for event in events
        for row in msgspec.convert(event["metrics"], list[MetricRow])
    }


# --- Google -----------------------------------------------------------------------------------


def read_bigtable(server: Any, rows: list[MetricRow]) -> Stored:
    return {
        (*json.loads(row)[1:], column): float(value)
        for (row, column), value in server.cells().items()
        if json.loads(row)[0] == rows[0].run_id
    }


def read_bigquery(server: Any, rows: list[MetricRow]) -> Stored:
    """Read the rows as BigQuery keeps them: one for each insert id."""
    by_id = {
        row["insertId"]: row["json"]
        for call in server.accepted
        if call.path.endswith("/insertAll")
        for row in call.json()["rows"]
    }
    names = ("workflow", "step", "metric_group", "name")
    return {tuple(row[name] for name in names): row["value"] for row in by_id.values()}


# --- recordings -------------------------------------------------------------------------------


def _subject(tags: dict[str, str]) -> tuple[str, str]:
    return tags.get("workflow", ""), tags.get("step", "")


def read_datadog(server: Any, rows: list[MetricRow]) -> Stored:
    found: Stored = {}
    for call in server.accepted:
        for series in call.json()["series"]:
            tags = dict(tag.split(":", 1) for tag in series["tags"])
            assert tags["run"] == rows[0].run_id
            found[(*_subject(tags), series["metric"])] = series["points"][0]["value"]
    return found


def dotted_key(row: MetricRow) -> tuple[str, str, str]:
    return row.workflow, row.step, f"hyperscale.{row.metric_group}.{row.name}"


def read_newrelic(server: Any, rows: list[MetricRow]) -> Stored:
    found: Stored = {}
    for call in server.accepted:
        for metric in call.json()[0]["metrics"]:
            labels = metric["attributes"]
            found[(*_subject(labels), labels["group"], labels["metric"])] = metric["value"]
    return found


def read_honeycomb(server: Any, rows: list[MetricRow]) -> Stored:
    found: Stored = {}
    for call in server.accepted:
        for event in call.json():
            data = event["data"]
            subject = _subject(data)
            for name in ("run", "file", "workflow", "step"):
                data.pop(name, None)
            found |= {(*subject, name): value for name, value in data.items()}
    return found


def read_cosmosdb(server: Any, rows: list[MetricRow]) -> Stored:
    documents = {call.json()["id"]: call.json() for call in server.accepted}
    assert [each["status"] for each in documents.values() if each["type"] == "run"] == ["completed"]
    return {
        (each["workflow"], each["step"], metric["group"], metric["name"]): metric["value"]
        for each in documents.values()
        if each["type"] == "metrics"
        for metric in each["metrics"]
    }


def read_influxdb2(server: Any, rows: list[MetricRow]) -> Stored:
    """Return the fields of the lines; the grammar itself is tested at InfluxDB 1."""
    found: Stored = {}
    calls: list[Call] = server.accepted
    for line in (line for call in calls for line in call.body.decode().splitlines()):
        head, fields, at = line.rsplit(" ", 2)
        name, *pairs = head.split(",")
        tags = dict(pair.split("=") for pair in pairs)
        assert tags["run"] == rows[0].run_id
        assert at == str(rows[0].at_unix_ms * 1_000_000)
        for field in fields.split(","):
            key, value = field.split("=")
            subject = (*_subject(tags), name.removeprefix("hyperscale_"))
            found[(*subject, key.replace("\\", ""))] = float(value)
    return found


def read_datagrams(server: Any, rows: list[MetricRow]) -> Stored:
    eventually(lambda: len(server.lines), lambda count: count >= len(rows), 5.0)
    assert not server.refused
    found: Stored = {}
    for line in server.lines:
        pairs = [pair for pair in (line["tags"] or "").split(",") if pair]
        tags = dict(pair.replace("=", ":", 1).split(":", 1) for pair in pairs)
        assert (tags["run"], line["kind"]) == (rows[0].run_id, "g")
        found[(*_subject(tags), line["name"])] = float(line["value"])
    return found


def _bearer(server: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {"endpoint_url": server.url, "access_token": KEY, **given}


CLOUD_DESTINATIONS = [
    Destination(
        ReporterTypes.S3,
        "aws",
        lambda server, given: objects.S3Config(bucket="load", **_aws(server, given)),
        read_s3,
        exact,
    ),
    Destination(
        ReporterTypes.Cloudwatch,
        "aws",
        lambda server, given: cloudwatch.CloudwatchConfig(
            dimension_per_run=True, **_aws(server, given)
        ),
        read_cloudwatch,
        cloudwatch_key,
    ),
    Destination(
        ReporterTypes.AWSTimestream,
        "aws",
        lambda server, given: timestream.AWSTimestreamConfig(
            database="load", **_aws(server, given)
        ),
        read_timestream,
        exact,
    ),
    Destination(
        ReporterTypes.AWSLambda,
        "lambda",
        lambda server, given: aws_lambda.AWSLambdaConfig(
            function="results", invocation="RequestResponse", **_aws(server, given)
        ),
        read_lambda,
        exact,
    ),
    Destination(
        ReporterTypes.GCS,
        "gcs",
        lambda server, given: objects.GCSConfig(bucket="load", endpoint_url=server.url, **given),
        read_gcs,
        exact,
    ),
    Destination(
        ReporterTypes.BigTable,
        "bigtable",
        lambda server, given: bigtable.BigTableConfig(
            project="shop", instance="load", endpoint_url=server.url, **given
        ),
        read_bigtable,
        cloudwatch_key,
    ),
    Destination(
        ReporterTypes.BigQuery,
        "bigquery",
        lambda server, given: bigquery.BigQueryConfig(
            project="shop", dataset="load", **_bearer(server, given)
        ),
        read_bigquery,
        exact,
        misconfigure=wrong(access_token="not the token"),
    ),
    Destination(
        ReporterTypes.Datadog,
        "datadog",
        lambda server, given: datadog.DatadogConfig(url=server.url, api_key=KEY, **given),
        read_datadog,
        dotted_key,
        misconfigure=wrong(api_key="not the key"),
    ),
    Destination(
        ReporterTypes.NewRelic,
        "newrelic",
        lambda server, given: newrelic.NewRelicConfig(
            url=f"{server.url}/metric/v1", license_key=KEY, **given
        ),
        read_newrelic,
        exact,
        misconfigure=wrong(license_key="not the key"),
    ),
    Destination(
        ReporterTypes.Honeycomb,
        "honeycomb",
        lambda server, given: honeycomb.HoneycombConfig(url=server.url, api_key=KEY, **given),
        read_honeycomb,
        cloudwatch_key,
        misconfigure=wrong(api_key="not the key"),
    ),
    Destination(
        ReporterTypes.CosmosDB,
        "cosmosdb",
        lambda server, given: cosmosdb.CosmosDBConfig(url=server.url, key=KEY, **given),
        read_cosmosdb,
        exact,
        misconfigure=wrong(key="bm90IHRoZSBrZXk="),
    ),
    Destination(
        ReporterTypes.InfluxDB,
        "influxdb2",
        lambda server, given: influxdb.InfluxDBConfig(
            url=server.url, org="acme", bucket="load", token=KEY, **given
        ),
        read_influxdb2,
        exact,
        misconfigure=wrong(token="not the token"),
    ),
    Destination(
        ReporterTypes.DogStatsD,
        "dogstatsd",
        lambda server, given: statsd.DogStatsDConfig(host="127.0.0.1", port=server.port, **given),
        read_datagrams,
        lambda row: (row.workflow, row.step, f"hyperscale.{row.metric_group}.{row.name}"),
    ),
    Destination(
        ReporterTypes.TelegrafStatsD,
        "telegraf-statsd",
        lambda server, given: statsd.TelegrafStatsDConfig(
            host="127.0.0.1", port=server.port, **given
        ),
        read_datagrams,
        lambda row: (row.workflow, row.step, f"hyperscale.{row.metric_group}.{row.name}"),
    ),
]
