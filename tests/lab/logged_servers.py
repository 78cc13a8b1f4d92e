"""nginx and httpbin, which others wrote, with the log each keeps of the requests it received.

A request says in its User-Agent which step made it, so that redirects keep the name.
"""

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.lab.ports import free_port
from tests.lab.waiting import until

_STOP_S = 20.0
_READY = "ready"  # the User-Agent of this module

_NGINX = """\
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
    log_format steps '$http_user_agent|$request_method|$status';
    access_log {directory}/access.log steps;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location = /get {{ return 200 "ok"; }}
        location = /post {{ return 200 "ok"; }}
        location = /status/404 {{ return 404; }}
        location = /redirect/3 {{ return 302 /redirect/2; }}
        location = /redirect/2 {{ return 302 /redirect/1; }}
        location = /redirect/1 {{ return 302 /get; }}
        location = /delay/2 {{ root {directory}; limit_rate 1000; }}
    }}
}}
"""


class LoggedServer:
    """A server that runs. `received` stops it: then its log is complete."""

    def __init__(
        self,
        url: str,
        log: Path,
        process: "subprocess.Popen[bytes]",
        *,
        stop_signal: signal.Signals,
        logs_abandoned: bool,
    ) -> None:
        self.url = url
        self.logs_abandoned = logs_abandoned  # also requests whose client left before the answer
        self._stop_signal = stop_signal  # lets the server end what it has begun
        self._log = log
        self._process = process

    def received(self) -> dict[str, Counter[int]]:
        """Stop the server; return how many requests of each step it answered with which status."""
        if self._process.poll() is None:
            self._process.send_signal(self._stop_signal)
            self._process.wait(_STOP_S)
        found: dict[str, Counter[int]] = {}
        for line in self._log.read_text().splitlines():
            step, _method, status = line.split("|")
            found.setdefault(step, Counter())[int(status)] += 1
        del found[_READY]
        return found


@contextlib.contextmanager
def running_nginx(directory: Path) -> Iterator[LoggedServer]:
    port = free_port()
    directory.mkdir()
    (directory / "delay").mkdir()
    (directory / "delay/2").write_bytes(b"x" * 2000)  # two seconds at its rate
    (directory / "nginx.conf").write_text(_NGINX.format(directory=directory, port=port))
    command = ["nginx", "-p", str(directory), "-c", "nginx.conf"]
    log = directory / "access.log"
    with _running(command, f"http://127.0.0.1:{port}", log) as (process, url):
        yield LoggedServer(url, log, process, stop_signal=signal.SIGQUIT, logs_abandoned=True)


@contextlib.contextmanager
def running_httpbin(directory: Path) -> Iterator[LoggedServer]:
    port = free_port()
    directory.mkdir()
    log = directory / "access.log"
    command = ["gunicorn", "httpbin:app", "--bind", f"127.0.0.1:{port}", "--threads", "24"]
    command += ["--keep-alive", "30", "--access-logfile", str(log), "--graceful-timeout", "15"]
    command += ["--access-logformat", "%(a)s|%(m)s|%(s)s"]
    with _running(command, f"http://127.0.0.1:{port}", log) as (process, url):
        yield LoggedServer(url, log, process, stop_signal=signal.SIGTERM, logs_abandoned=False)


SERVERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[LoggedServer]]] = {
    "nginx": running_nginx,
    "httpbin": running_httpbin,
}


@contextlib.contextmanager
def _running(
    command: list[str], url: str, log: Path
) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    errors = log.with_name("stderr.log")
    # The packages belong to the system's Python, not to the environment of these tests.
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": os.environ.get("HOME", "/")}
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env=environ,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        until(lambda: process.poll() is not None or _answers(url), what=f"{command[0]} answers")
        assert process.poll() is None, errors.read_text()
        yield process, url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(Request(f"{url}/get", headers={"User-Agent": _READY})):
            return True
    except (URLError, ConnectionError):
        return False
