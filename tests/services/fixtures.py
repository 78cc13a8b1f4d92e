"""Session fixtures of servers: those that the selected tests need start together."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.services import guard
from tests.services.base import Service
from tests.services.brokers import Kafka, Mosquitto, RabbitMQ
from tests.services.cassandra import Cassandra
from tests.services.clouds import BigTable, CloudStorage, Moto
from tests.services.collectors import OtlpGrpc, OtlpHttp
from tests.services.databases import FerretDB, MariaDB, Postgres, Redis
from tests.services.files import FTPServer, OpenSSH, OpenSSHCopies
from tests.services.mail import MailServer
from tests.services.monitoring import (
    Graphite,
    InfluxDB,
    Netdata,
    Prometheus,
    Pushgateway,
    StatsD,
)
from tests.services.pages import WebSite
from tests.services.recording import RECORDINGS

SERVICES: dict[str, type[Service]] = {
    each.name: each
    for each in (
        *(Postgres, MariaDB, Redis, FerretDB, Kafka, RabbitMQ, Mosquitto),
        *(MailServer, FTPServer, OpenSSH, OpenSSHCopies, WebSite),
        *(InfluxDB, Prometheus, Pushgateway, Graphite, Netdata, StatsD),
        *(Moto, CloudStorage, BigTable, Cassandra),
        *RECORDINGS,
        *(OtlpHttp, OtlpGrpc),
    )
}

GetService = Callable[[str], Service]


def _needed(session: pytest.Session) -> set[str]:
    """Return the names of the services in the parameters and fixtures of the selected tests."""
    names: set[str] = set()
    for item in session.items:
        callspec = getattr(item, "callspec", None)
        words = {*getattr(item, "fixturenames", ()), *getattr(item, "keywords", ())}
        values = callspec.params.values() if callspec else ()
        words |= {value for value in values if isinstance(value, str)}
        words |= {mark.args[0] for mark in item.iter_markers("service")}
        names |= words & SERVICES.keys()
    return names


@pytest.fixture(scope="session")
def service(request: pytest.FixtureRequest) -> Iterator[GetService]:
    """Return a function that gives a running server by its name."""
    started: dict[str, Future[Service]] = {}
    # Not pytest's directory: only its owner may look into it, and some servers have accounts.
    with (
        guard.watch(),
        TemporaryDirectory(prefix="hyperscale-services-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(max_workers=16) as threads,
    ):
        Path(folder).chmod(0o755)

        def begin(name: str) -> None:
            server = SERVICES[name](Path(folder) / name)

            def start() -> Service:
                try:
                    server.start_first()
                except BaseException:
                    server.stop()  # a server that started and could not be set up
                    raise
                return server

            started[name] = threads.submit(start)

        for name in sorted(_needed(request.session)):
            begin(name)

        def get(name: str) -> Service:
            if name not in started:
                begin(name)
            return started[name].result()

        yield get
        for future in started.values():
            if future.exception() is None:
                future.result().stop()
