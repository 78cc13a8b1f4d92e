"""The APIs of clouds on loopback: AWS by moto, Cloud Storage and Bigtable by their emulators."""

import io
import json
import sys
import zipfile
from typing import Any
from urllib.request import Request, urlopen

from hyperscale.reporting.protobuf import message_field, text_field
from hyperscale.reporting.reporters.bigtable import fields_of
from tests.services.base import Service
from tests.services.downloads import cached
from tests.services.monitoring import get


class Moto(Service):
    """S3, CloudWatch, Timestream and Lambda."""

    name = "aws"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def model(self, service: str, name: str) -> list[dict[str, Any]]:
        """Return everything of one kind that the server holds."""
        found: list[dict[str, Any]] = json.loads(get(f"{self.url}/moto-api/data.json"))[service][
            name
        ]
        return found

    def client(self, name: str) -> Any:
        import boto3  # noqa: PLC0415  half a second

        return boto3.client(
            name,
            endpoint_url=self.url,
            region_name="eu-west-1",
            aws_access_key_id="load",
            aws_secret_access_key="secret",
        )

    def set_up(self) -> None:
        config = json.dumps({"lambda": {"use_docker": False}}).encode()
        headers = {"Content-Type": "application/json"}
        urlopen(Request(f"{self.url}/moto-api/config", data=config, headers=headers)).close()
        where = {"LocationConstraint": "eu-west-1"}
        self.client("s3").create_bucket(Bucket="load", CreateBucketConfiguration=where)
        timestream = self.client("timestream-write")
        timestream.create_database(DatabaseName="load")
        timestream.create_table(DatabaseName="load", TableName="hyperscale")

    def create_function(self, name: str) -> None:
        """Make a Lambda function that does nothing."""
        policy = json.dumps({"Version": "2012-10-17", "Statement": []})
        role = self.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=policy)
        with io.BytesIO() as code:
            with zipfile.ZipFile(code, "w") as package:
                package.writestr("main.py", "def handle(event, context): pass")
            self.client("lambda").create_function(
                FunctionName=name,
                Runtime="python3.12",
                Role=role["Role"]["Arn"],
                Handler="main.handle",
                Code={"ZipFile": code.getvalue()},
            )


class CloudStorage(Service):
    name = "gcs"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [
            str(cached("fake-gcs-server") / "server"),
            *("-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)),
            *("-backend", "memory", "-public-host", f"127.0.0.1:{self.port}"),
        ]

    def set_up(self) -> None:
        body = json.dumps({"name": "load"}).encode()
        headers = {"Content-Type": "application/json"}
        urlopen(Request(f"{self.url}/storage/v1/b?project=x", data=body, headers=headers)).close()


class BigTable(Service):
    """Google's own emulator, with one table."""

    name = "bigtable"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        program = str(cached("bigtable") / "server")
        return [program, "-host", "127.0.0.1", "-port", str(self.port)]

    def call(self, method: str, request: bytes) -> list[bytes]:
        """Call a method of the emulator; request and replies are encoded messages."""
        import grpc  # noqa: PLC0415  only those who use the emulator need it

        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            return list(channel.unary_stream(method)(request, timeout=10))

    def set_up(self) -> None:
        families = message_field(3, text_field(1, "metrics") + message_field(2, b""))
        parent = text_field(1, "projects/shop/instances/load") + text_field(2, "hyperscale")
        method = "/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable"
        self.call(method, parent + message_field(3, families))

    def cells(self) -> dict[tuple[str, str], bytes]:
        """Return the latest value of each column of each row."""
        table = "projects/shop/instances/load/tables/hyperscale"
        replies = self.call("/google.bigtable.v2.Bigtable/ReadRows", text_field(1, table))
        found: dict[tuple[str, str], bytes] = {}
        row = ""
        for reply in replies:
            for number, chunk in fields_of(reply):
                if number != 1:
                    continue
                fields = dict(fields_of(chunk))
                row = fields[1].decode() if fields.get(1) else row
                qualifier = dict(fields_of(fields[3]))[1].decode()
                found.setdefault((row, qualifier), fields[6])
        return found
