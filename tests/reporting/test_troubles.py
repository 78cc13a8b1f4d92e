"""Every reporter in trouble: unreachable, silent, wrong credentials, flapping. All reporters are
tried at once, each against its own trouble; one deadline bounds them all."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from hyperscale.errors import InputError
from hyperscale.reporting import (
    PostgresConfig,
    RedisConfig,
    Reporter,
    ReporterFailure,
    RunResult,
    as_reporters,
    submit_all,
)
from hyperscale.reporting.rows import rows_of
from tests.lab.ports import free_port
from tests.reporting.destinations import Destination
from tests.reporting.test_destinations import ALL, fresh_result, start
from tests.services.fixtures import GetService

QUICK: dict[str, Any] = {"request_timeout_s": 0.6, "deadline_s": 1.5, "retry_first_s": 0.05}
DATAGRAMS = ("statsd", "telegraf", "dogstatsd", "telegraf-statsd")


class Elsewhere:
    """Stands for a server at another port."""

    def __init__(self, port: int) -> None:
        self.port = self.udp_port = self.statsd_port = port
        self.url = f"http://127.0.0.1:{port}"


def report(
    reporters: dict[str, Reporter[Any]], result: RunResult | None = None
) -> dict[str, ReporterFailure]:
    """Deliver to all at once; return the failures by the name of the reporter."""
    result = result or fresh_result("a-trouble")
    before = msgspec.json.encode(result)

    async def run() -> dict[str, list[ReporterFailure]]:
        found = await asyncio.gather(*(submit_all([each], result) for each in reporters.values()))
        return dict(zip(reporters, found, strict=True))

    outcome = asyncio.run(run())
    assert msgspec.json.encode(result) == before
    return {name: failures[0] for name, failures in outcome.items() if failures}


def name_of(destination: Destination) -> str:
    return f"{destination.kind.value} at {destination.service}"


def test_a_server_that_is_not_there_is_reported_within_the_deadline() -> None:
    reporters = {
        name_of(each): Reporter(each.kind, each.configure(Elsewhere(free_port()), QUICK))
        for each in ALL
    }
    failures = report(reporters)
    assert failures.keys() == reporters.keys()
    for name, failure in failures.items():
        is_named = "nothing was sent" in failure.error or "lost " in failure.error
        assert is_named, f"{name}: {failure}"
        assert "not done within" not in failure.error, name


# The thread of a driver that was given up on leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_is_silent_is_reported_within_the_deadline() -> None:
    with contextlib.ExitStack() as stack:
        reporters = {}
        for each in ALL:
            if each.kind.value in (*DATAGRAMS, "netdata", "graphite"):
                continue  # these protocols have no answer that could be missing
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            place = Elsewhere(listener.getsockname()[1])
            reporters[name_of(each)] = Reporter(each.kind, each.configure(place, QUICK))
        failures = report(reporters)
    assert failures.keys() == reporters.keys()
    for name, failure in failures.items():
        assert "not done within" not in failure.error, f"{name}: {failure}"


def test_wrong_credentials_are_reported_at_once_and_not_retried(service: GetService) -> None:
    guarded = [each for each in ALL if each.misconfigure]
    reporters = {}
    for each in guarded:
        config = each.configure(start(each.service, service), {"deadline_s": 20.0})
        assert each.misconfigure is not None
        reporters[name_of(each)] = Reporter(each.kind, each.misconfigure(config))
    failures = report(reporters)
    assert failures.keys() == reporters.keys()
    for name, failure in failures.items():
        assert "tries" not in failure.error, f"{name}: {failure}"
        assert "not the" not in failure.error, f"{name} shows the credential: {failure}"


class Flapping:
    """A relay to a server that resets the first connections."""

    def __init__(self, target: int, resets: int) -> None:
        self._target = target
        self._resets = resets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                link, _ = self._listener.accept()
                if self._resets > 0:
                    self._resets -= 1
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    link.close()
                    continue
                onward = socket.create_connection(("127.0.0.1", self._target))
                self._links += [link, onward]
                for one, other in ((link, onward), (onward, link)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listener, *self._links):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextlib.contextmanager
def flapping(target: int) -> Iterator[Elsewhere]:
    relay = Flapping(target, resets=2)
    try:
        yield Elsewhere(relay.port)
    finally:
        relay.close()


def test_a_server_that_flaps_gets_everything(service: GetService) -> None:
    result = fresh_result("a-trouble")
    with contextlib.ExitStack() as stack:
        reporters, chosen = {}, []
        for each in ALL:
            # Over UDP, and to Carbon, which answers nothing, a loss cannot be noticed.
            if each.kind.value in (*DATAGRAMS, "netdata", "graphite"):
                continue
            server = start(each.service, service)
            place = stack.enter_context(flapping(server.port))
            settings = {"request_timeout_s": 5.0, "deadline_s": 15.0, "retry_first_s": 0.05}
            reporters[name_of(each)] = Reporter(each.kind, each.configure(place, settings))
            if hasattr(server, "accepted"):
                server.accepted.clear()
            chosen.append(each)
        assert report(reporters, result) == {}
    rows = rows_of(result)
    for each in chosen:
        if each.kind.value not in ("cloudwatch", "timestream", "prometheus"):  # keyed by time
            found = each.read(start(each.service, service), rows)
            assert found == {each.key(row): row.value for row in rows}, name_of(each)


@pytest.mark.parametrize(
    ("reporter", "driver"),
    [
        (Reporter("postgres", PostgresConfig()), "asyncpg"),
        (Reporter("redis", RedisConfig()), "redis"),
    ],
)
def test_a_missing_driver_is_named_with_the_command_that_installs_it(
    reporter: Reporter[Any], driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperscale.reporting.settings.find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"needs the Python package {driver}.*pip install"):
        as_reporters([reporter], where="shop.py: reporters")
