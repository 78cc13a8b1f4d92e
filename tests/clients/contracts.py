"""What the contract tests need to know about each client that uses a library."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urljoin

from hyperscale.clients import Client
from hyperscale.testing.responses import LibraryResponse
from tests.services.base import Service
from tests.services.brokers import Kafka, Mosquitto, RabbitMQ
from tests.services.databases import FerretDB, MariaDB, Postgres, Redis
from tests.services.files import FTPServer, OpenSSH
from tests.services.mail import MailServer
from tests.services.pages import WebSite

Call = Callable[[Client, str, Any], Awaitable[LibraryResponse]]


@dataclass(frozen=True)
class Contract:
    """One client: a call, its reply, and how its server counts such calls."""

    name: str
    response: str  # the annotation of a step
    step: str  # the expression of a call in a step, with `url`
    call: Call  # the same with a number that the reply has to have
    reads: Callable[[LibraryResponse], Any]  # that number
    count: Callable[[Any], int]  # calls of `step` that the server has counted
    has_login: bool = True
    patience: int = 1  # how many times longer than most a call may take on a busy machine
    users: int = 8
    replies: Callable[[int], Any] = int  # what `reads` gives for a number
    errors: frozenset[str] = frozenset({"connect", "reset", "timeout"})  # while it is down


def _postgres_count(service: Service) -> int:
    counted = cast(Postgres, service).psql(
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE 'SELECT name%'"
    )
    return int(counted)


def _redis_count(service: Service) -> int:
    for line in cast(Redis, service).cli("INFO", "commandstats").splitlines():
        if line.startswith("cmdstat_get:"):
            return int(line.partition("calls=")[2].partition(",")[0])
    return 0


def _mysql_count(service: Service) -> int:
    shown = cast(MariaDB, service).rows("SHOW GLOBAL STATUS LIKE 'Com_select'")
    return int(shown[0][1])


def _mongodb_count(service: Service) -> int:
    return cast(FerretDB, service).commands("find")


def _kafka_count(service: Service) -> int:
    return cast(Kafka, service).offset("counted")


def _rabbitmq_count(service: Service) -> int:
    return cast(RabbitMQ, service).messages("counted")


def _mqtt_count(service: Service) -> int:
    return cast(Mosquitto, service).published()


_MAIL = {"from": "load@x.test", "to": "shop@x.test", "subject": "load", "text": "load"}
_COUNTED = "f'counted/{self.vu}-{self.iteration}'"  # a name for every call


async def _file_of(client: Any, url: str, number: int) -> LibraryResponse:
    """Write a number to a file of its own, and read it."""
    await client.upload(url, f"n{number}", str(number))
    return cast(LibraryResponse, await client.download(url, f"n{number}"))


CONTRACTS = {
    each.name: each
    for each in (
        Contract(
            name="postgres",
            response="PostgresResponse",
            step='self.client.postgres.query(url, "SELECT name FROM items WHERE id = $1", 7)',
            call=lambda client, url, n: client.postgres.query(url, "SELECT $1::int", n),
            reads=lambda response: cast(Any, response).scalar,
            count=_postgres_count,
        ),
        Contract(
            name="redis",
            response="RedisResponse",
            step='self.client.redis.get(url, "item")',
            call=lambda client, url, n: client.redis.command(url, "ECHO", n),
            reads=lambda response: int(response.value),
            count=_redis_count,
        ),
        Contract(
            name="mysql",
            response="MySQLResponse",
            step='self.client.mysql.query(url, "SELECT name FROM items WHERE id = %s", 1)',
            call=lambda client, url, n: client.mysql.query(url, "SELECT %s", n),
            reads=lambda response: cast(Any, response).scalar,
            count=_mysql_count,
        ),
        Contract(
            name="mongodb",
            response="MongoDBResponse",
            step='self.client.mongodb.find_one(url, "items", {"_id": 7})',
            call=lambda client, url, n: client.mongodb.insert(url, "numbers", {"n": n}),
            reads=lambda response: int(response.value["inserted"]),
            count=_mongodb_count,
            has_login=False,
            replies=lambda n: 1,
        ),
        Contract(
            name="kafka",
            response="KafkaResponse",
            step='self.client.kafka.produce(url, "counted", b"load")',
            call=lambda client, url, n: client.kafka.produce(url, "numbers", str(n)),
            reads=lambda response: len(response.value),
            count=_kafka_count,
            replies=lambda n: 1,
        ),
        Contract(
            name="rabbitmq",
            response="RabbitMQResponse",
            step='self.client.rabbitmq.publish(url, "counted", b"load")',
            call=lambda client, url, n: client.rabbitmq.publish(
                url, "numbers", str(n), mandatory=False
            ),
            reads=lambda response: cast(Any, response.value).delivery_tag > 0,
            count=_rabbitmq_count,
            replies=lambda n: True,
        ),
        Contract(
            name="mqtt",
            response="MQTTResponse",
            step='self.client.mqtt.publish(url, "counted", b"load")',
            call=lambda client, url, n: client.mqtt.publish(url, "numbers", str(n)),
            reads=lambda response: response.bytes_sent > 0,
            count=_mqtt_count,
            replies=lambda n: True,
        ),
        Contract(
            name="smtp",
            response="SMTPResponse",
            step=f"self.client.smtp.send(url, {_MAIL!r})",
            call=lambda client, url, n: client.smtp.send(url, {**_MAIL, "subject": str(n)}),
            reads=lambda response: response.bytes_sent > 0,
            count=lambda service: cast(MailServer, service).mails(),
            replies=lambda n: True,
        ),
        Contract(
            name="ftp",
            response="FTPResponse",
            step=f"self.client.ftp.upload(url, {_COUNTED}, 'load')",
            call=lambda client, url, n: _file_of(client.ftp, url, n),
            reads=lambda response: int(response.value),
            count=lambda service: cast(FTPServer, service).uploads(),
        ),
        Contract(
            name="sftp",
            response="SFTPResponse",
            step=f"self.client.sftp.upload(url, {_COUNTED}, 'load')",
            call=lambda client, url, n: _file_of(client.sftp, url, n),
            reads=lambda response: int(response.value),
            count=lambda service: cast(OpenSSH, service).uploads(),
            has_login=False,  # with a key: see test_sftp.py
        ),
        Contract(
            name="scp",
            response="SCPResponse",
            step=f"self.client.scp.upload(url, {_COUNTED}, 'load')",
            call=lambda client, url, n: _file_of(client.scp, url, n),
            reads=lambda response: int(response.value),
            count=lambda service: cast(OpenSSH, service).uploads(),
            has_login=False,  # with a key: see test_sftp.py
        ),
        Contract(
            name="browser",
            response="PlaywrightResult",
            step="self.client.browser.visit(url)",
            call=lambda client, url, n: client.browser.visit(urljoin(url, str(n))),
            reads=lambda response: int(cast(Any, response).title),
            count=lambda service: cast(WebSite, service).visits(),
            has_login=False,
            patience=5,
            users=2,
        ),
    )
}
