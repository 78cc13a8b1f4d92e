"""Servers for services that nobody can run: each checks what it gets against the published
description of the API, answers as described, and keeps what it accepted."""

import base64
import hmac
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import jsonschema

from tests.services.base import Service

KEY = base64.b64encode(b"a key of sixteen").decode()
Reply = tuple[int, dict[str, str], bytes]


class Call:
    """A request as it came."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = urlsplit(target).path
        self.target = target
        self.headers = headers  # names in lower case
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


class Recording(Service):
    """An HTTP server in this process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.accepted: list[Call] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        raise AssertionError("a recording server has no process")

    def answer(self, call: Call) -> Reply:
        raise NotImplementedError

    def start_first(self) -> None:
        recording = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                call = Call(self.command, self.path, headers, body)
                try:
                    status, extra, reply = recording.answer(call)
                except (jsonschema.ValidationError, AssertionError, KeyError, ValueError) as error:
                    text = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
                    status, extra, reply = 400, {}, text.encode()
                if status < 300:
                    recording.accepted.append(call)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(reply)), **extra}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply)

            do_GET = do_POST = do_PUT = _answer

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT, _NUMBER, _WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_TEXTS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


class Datadog(Recording):
    """`POST /api/v2/series`: MetricPayload of Datadog's OpenAPI description."""

    name = "datadog"
    schema: ClassVar = _object(
        {
            "series": {
                "type": "array",
                "items": _object(
                    {
                        "metric": {"type": "string", "maxLength": 200},
                        "points": {
                            "type": "array",
                            "items": _object({"timestamp": _WHOLE, "value": _NUMBER}),
                        },
                    },
                    type={"enum": [0, 1, 2, 3]},
                    tags={"type": "array", "items": _TEXT},
                    unit=_TEXT,
                    interval=_WHOLE,
                    source_type_name=_TEXT,
                    resources={"type": "array"},
                    metadata={"type": "object"},
                ),
            }
        }
    )

    def answer(self, call: Call) -> Reply:
        if call.headers.get("dd-api-key") != KEY:
            return 403, {}, b'{"errors":["Forbidden"]}'
        assert (call.method, call.path) == ("POST", "/api/v2/series")
        assert call.headers["content-type"] == "application/json"
        jsonschema.validate(call.json(), self.schema)
        return 202, {"Content-Type": "application/json"}, b'{"errors":[]}'


class NewRelic(Recording):
    """`POST /metric/v1`: the JSON of New Relic's Metric API."""

    name = "newrelic"
    schema: ClassVar = {
        "type": "array",
        "items": _object(
            {
                "metrics": {
                    "type": "array",
                    "items": _object(
                        {"name": {"type": "string", "maxLength": 255}, "value": _NUMBER},
                        type={"enum": ["gauge", "count", "summary"]},
                        timestamp=_WHOLE,
                        attributes=_TEXTS,
                        **{"interval.ms": _WHOLE},
                    ),
                }
            },
            common={"type": "object"},
        ),
    }

    def answer(self, call: Call) -> Reply:
        if call.headers.get("api-key") != KEY:
            return 403, {}, b"{}"
        assert (call.method, call.path) == ("POST", "/metric/v1")
        jsonschema.validate(call.json(), self.schema)
        return 202, {}, b'{"requestId":"1"}'


class Honeycomb(Recording):
    """`POST /1/batch/DATASET`: Honeycomb's API for batches of events."""

    name = "honeycomb"
    schema: ClassVar = {
        "type": "array",
        "items": _object(
            {"data": {"type": "object"}},
            time={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
            samplerate=_WHOLE,
        ),
    }

    def answer(self, call: Call) -> Reply:
        if call.headers.get("x-honeycomb-team") != KEY:
            return 401, {}, b'{"error":"unknown API key - check your credentials"}'
        assert re.fullmatch(r"/1/batch/[^/]+", call.path)
        jsonschema.validate(call.json(), self.schema)
        return 200, {}, json.dumps([{"status": 202}] * len(call.json())).encode()


class CosmosDB(Recording):
    """`POST /dbs/…/colls/…/docs`: Create Document of the REST API, with a master key."""

    name = "cosmosdb"

    def answer(self, call: Call) -> Reply:
        link = re.fullmatch(r"/(dbs/[^/]+/colls/[^/]+)/docs", call.path)
        assert link
        text = f"post\ndocs\n{link[1]}\n{call.headers['x-ms-date'].lower()}\n\n"
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256"))
        expected = f"type=master&ver=1.0&sig={signature.decode()}"
        if unquote(call.headers["authorization"]) != expected:
            return 401, {}, b'{"code":"Unauthorized"}'
        assert call.headers["x-ms-version"] == "2018-12-31"
        assert call.headers["x-ms-documentdb-is-upsert"] == "True"
        document = call.json()
        assert json.loads(call.headers["x-ms-documentdb-partitionkey"]) == [document["run_id"]]
        assert isinstance(document["id"], str)
        assert not set(document["id"]) & set("/\\?#")
        assert len(call.body) < 2 * 1024 * 1024
        return 201, {}, call.body


class BigQuery(Recording):
    """`tables.insert` and `tabledata.insertAll` of the BigQuery API, version 2."""

    name = "bigquery"
    table = "/bigquery/v2/projects/shop/datasets/load/tables"
    insert: ClassVar = _object(
        {
            "rows": {
                "type": "array",
                "items": _object({"json": {"type": "object"}}, insertId={"maxLength": 128}),
            }
        },
        kind=_TEXT,
        skipInvalidRows={"type": "boolean"},
        ignoreUnknownValues={"type": "boolean"},
        templateSuffix=_TEXT,
        traceId=_TEXT,
    )

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.columns: dict[str, str] = {}

    def answer(self, call: Call) -> Reply:
        if call.headers.get("authorization") != f"Bearer {KEY}":
            return 401, {}, b'{"error":{"code":401,"message":"Invalid Credentials"}}'
        if call.path == self.table:
            table = call.json()
            assert table["tableReference"]["tableId"] == "hyperscale_metrics"
            if self.columns:
                return 409, {}, b'{"error":{"code":409,"message":"Already Exists"}}'
            self.columns = {each["name"]: each["type"] for each in table["schema"]["fields"]}
            return 200, {}, call.body
        assert call.path == f"{self.table}/hyperscale_metrics/insertAll"
        jsonschema.validate(call.json(), self.insert)
        for row in call.json()["rows"]:
            assert row["json"].keys() == self.columns.keys()
            for name, value in row["json"].items():
                is_number = self.columns[name] in ("FLOAT", "TIMESTAMP")
                assert isinstance(value, int | float if is_number else str)
        return 200, {}, b'{"kind":"bigquery#tableDataInsertAllResponse"}'


class InfluxDB2(Recording):
    """`POST /api/v2/write` of InfluxDB 2."""

    name = "influxdb2"

    def answer(self, call: Call) -> Reply:
        if call.headers.get("authorization") != f"Token {KEY}":
            return 401, {}, b'{"code":"unauthorized","message":"unauthorized access"}'
        assert call.path == "/api/v2/write"
        assert call.target.partition("?")[2] == "org=acme&bucket=load&precision=ns"
        return 204, {}, b""


class Lambda(Recording):
    """Keeps the events of invocations on their way to a server of the Lambda API."""

    name = "lambda"
    upstream = ""

    def answer(self, call: Call) -> Reply:
        request = Request(f"{self.upstream}{call.target}", data=call.body, method=call.method)
        for name in ("authorization", "x-amz-date", "x-amz-invocation-type", "content-type"):
            request.add_header(name, call.headers[name])
        with urlopen(request, timeout=10) as reply:
            return reply.status, {}, reply.read()


class Datagrams(Service):
    """A UDP socket that keeps every line, and checks it against the grammar of a dialect."""

    grammar: re.Pattern[str]

    @property
    def url(self) -> str:
        return f"udp://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        raise AssertionError("a recording server has no process")

    def start_first(self) -> None:
        self.lines: list[re.Match[str]] = []
        self.refused: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.bind(("127.0.0.1", self.port))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            datagram = self._socket.recv(65536)
            if datagram == b"stop":
                return
            for line in datagram.decode().splitlines():
                match = self.grammar.fullmatch(line)
                if match:
                    self.lines.append(match)
                else:
                    self.refused.append(line)

    def stop(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"stop", ("127.0.0.1", self.port))
        self._socket.close()


class DogStatsD(Datagrams):
    """Datadog's datagram format, version 1.0: NAME:VALUE|TYPE|#TAG:VALUE,…"""

    name = "dogstatsd"
    grammar = re.compile(
        r"(?P<name>[^:|@#\s]+):(?P<value>-?[0-9.]+)\|(?P<kind>[a-z]+)"
        r"(\|@[0-9.]+)?(\|#(?P<tags>[^|\s]*))?"
        r"|_e\{\d+,\d+\}:[^|]+\|[^|]*(\|#[^|]*)?"  # an event
    )


class TelegrafStatsD(Datagrams):
    """What Telegraf's statsd input reads with tags behind the name: NAME,TAG=VALUE:VALUE|TYPE."""

    name = "telegraf-statsd"
    grammar = re.compile(
        r"(?P<name>[^:|,=\s]+)(?P<tags>(,[^:|,=\s]+=[^:|,=\s]+)*):(?P<value>-?[0-9.]+)"
        r"\|(?P<kind>g|c|s|ms|h)"
    )


RECORDINGS: tuple[type[Service], ...] = (
    Datadog,
    NewRelic,
    Honeycomb,
    CosmosDB,
    BigQuery,
    InfluxDB2,
    Lambda,
    DogStatsD,
    TelegrafStatsD,
)
