"""`hyperscale target` as people and scripts use it."""

import os
import pty
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import RunningTarget
from tests.target.wire import Wire, request

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from hyperscale.cli.main import main; sys.exit(main())",
]


@contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """The running command, its first line and the port in it."""
    command = [*COMMAND, "target", "--port", "0", *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, line, int(line.rsplit(":", 1)[1])
        finally:
            process.kill()


def fails(*flags: str) -> str:
    done = subprocess.run(
        [*COMMAND, "target", *flags], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_first_line_is_the_address_and_a_signal_ends_it_with_totals(
    stop: signal.Signals,
) -> None:
    with serving() as (process, line, port):
        assert line == f"listening on http://127.0.0.1:{port}\n"
        with Wire(port) as wire:
            wire.send(request("GET", "/") * 3)
            for _ in range(3):
                wire.response()
            process.send_signal(stop)
            out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("3 requests on 1 connections")


def test_quiet_prints_nothing_but_the_address() -> None:
    with serving("--quiet") as (process, line, _):
        assert line.startswith("listening on ")
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=10) == ("", "")


def test_a_reader_that_is_gone_after_the_first_line_does_not_matter() -> None:
    with serving("--threads", "2") as (process, _, port):
        assert process.stdout is not None
        process.stdout.close()
        with Wire(port) as wire:
            wire.send(request("GET", "/"))
            assert wire.response()[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_a_terminal_sees_a_running_count() -> None:
    leader, follower = pty.openpty()
    command = [*COMMAND, "target", "--port", "0"]
    with subprocess.Popen(command, stdout=follower) as process:
        os.close(follower)
        seen = ""
        try:
            while not (port := re.search(r":(\d+)\r\n", seen)):
                seen += os.read(leader, 1000).decode()
            with Wire(int(port[1])) as wire:
                wire.send(request("GET", "/"))
                wire.response()
                while "1 requests, 1/s, 1 connections open" not in seen:
                    seen += os.read(leader, 1000).decode()
        finally:
            process.send_signal(signal.SIGINT)
            os.read(leader, 1000)
            process.wait(timeout=10)
            os.close(leader)
    assert process.returncode == 0


def test_a_self_signed_certificate_is_written_and_serves(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    with serving("--tls-self-signed", str(certificate)) as (_, line, port):
        assert line.startswith("listening on https://")
        context = ssl.create_default_context(cafile=str(certificate))
        with Wire(port, tls=context) as wire:
            wire.send(request("GET", "/"))
            assert wire.response()[0] == 200


def test_ipv6_is_shown_as_in_a_url() -> None:
    with serving("--host", "::1") as (_, line, port):
        assert line == f"listening on http://[::1]:{port}\n"


def test_a_port_in_use_says_what_to_do(target: RunningTarget) -> None:
    message = fails("--port", str(target.port))
    assert f"port {target.port} on 127.0.0.1 is in use" in message
    assert "--port 0" in message


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--host", "192.0.2.1"], "192.0.2.1 is not an address of this machine"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--port", "65536"], "--port"),
        (["--threads", "0"], "--threads"),
        (["--tls-cert", "/nonexistent.pem", "--tls-key", "/nonexistent.pem"], "--tls-cert"),
        (["--tls-cert", "/nonexistent.pem"], "must be given together"),
        (["--tls-client-ca", "/dev/null"], "needs a server certificate"),
        (["--tls-self-signed", "/nonexistent/ca.pem"], "/nonexistent/ca.pem"),
        (["--tls-cert", "/dev/null", "--tls-key", "/dev/null"], "no certificate"),
    ],
)
def test_wrong_flags_are_explained(flags: list[str], part: str) -> None:
    assert part in fails(*flags)
