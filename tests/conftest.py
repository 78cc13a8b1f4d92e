"""The built-in target server as fixtures: what tests send to, and the truth to compare with."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hyperscale._native import Target, self_signed
from tests.lab.ports import free_port
from tests.services.fixtures import service  # noqa: F401 - a fixture


def pytest_configure() -> None:
    # A shell starts jobs in the background with these ignored, and what tests start would
    # inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@dataclass(frozen=True)
class RunningTarget:
    """A target server in this process, on threads of its own."""

    server: Target
    scheme: str
    certificate_pem: str | None = None

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def counts(self) -> dict[str, Any]:
        """What `/counts` answers."""
        counts: dict[str, Any] = json.loads(self.server.counts())
        return counts

    def reset(self) -> None:
        self.server.reset()


@pytest.fixture
def target() -> Iterator[RunningTarget]:
    server = Target()
    yield RunningTarget(server, "http")
    server.stop()


@pytest.fixture(scope="session")
def target_identity() -> tuple[str, str]:
    """Certificate and key of `tls_target`, in PEM; valid for localhost, 127.0.0.1 and ::1."""
    return self_signed(["localhost", "127.0.0.1", "::1"])


@pytest.fixture
def tls_target(target_identity: tuple[str, str]) -> Iterator[RunningTarget]:
    certificate_pem, key_pem = target_identity
    server = Target(tls_cert_pem=certificate_pem.encode(), tls_key_pem=key_pem.encode())
    yield RunningTarget(server, "https", certificate_pem)
    server.stop()


@pytest.fixture
def http3_target(target_identity: tuple[str, str]) -> Iterator[RunningTarget]:
    """A target that serves HTTP/3 on the port of its HTTPS."""
    certificate_pem, key_pem = target_identity
    port = free_port()
    server = Target(
        port=port,
        tls_cert_pem=certificate_pem.encode(),
        tls_key_pem=key_pem.encode(),
        http3_port=port,
    )
    yield RunningTarget(server, "https", certificate_pem)
    server.stop()
