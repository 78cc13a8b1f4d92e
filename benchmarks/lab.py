"""What every benchmark needs: servers to load, tools to run, CPU seconds to count.

Machines are noisy, so tools take turns (round by round) and are compared by the requests
they got through for each CPU second they used themselves. Requests are counted by the
server, not by the tool.
"""

import json
import os
import platform
import re
import resource
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from hyperscale.client.cluster_file import ClusterFile, read_cluster

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HYPERSCALE = Path(sys.executable).parent / "hyperscale"
PEERS = ROOT / ".venv-bench" / "bin"
NOTE = os.environ.get("BENCH_NOTE", "")
"""What else should be said about the machine."""


@dataclass(frozen=True)
class Build:
    """A checkout that was built with `make build`."""

    name: str
    root: Path

    @property
    def python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    @property
    def hyperscale(self) -> Path:
        return self.root / ".venv" / "bin" / "hyperscale"


THIS_BUILD = Build("this build", ROOT)

SERVER_CPU, LOAD_CPU = (0, 0) if (os.cpu_count() or 1) < 2 else (1, 0)


@dataclass(frozen=True)
class Usage:
    """What one command took."""

    cpu_s: float
    output: str


def run(
    command: Sequence[str | Path], *, cpu: int | None = LOAD_CPU, timeout_s: float = 300
) -> Usage:
    """Runs a command to its end, on one CPU, with everything it starts counted."""
    words = [str(word) for word in command]
    if cpu is not None:
        words = ["taskset", "-c", str(cpu), *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(cpu_s, done.stdout)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


FILES = {"10k": 10 * 1024, "100k": 100 * 1024}
"""Bodies that nginx serves under `/files/`, with their sizes."""


@contextmanager
def nginx(*, tls: bool = False) -> Iterator[str]:
    """A one-worker nginx that answers a few bytes, JSON and files; yields its base URL.

    With `tls` the base URL is that of a second port, with TLS 1.3 and a certificate of its own.
    """
    with tempfile.TemporaryDirectory(prefix="bench-nginx-") as folder:
        port, tls_port = free_port(), free_port()
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(f"{folder}/tls.pem")
        (Path(folder) / "files").mkdir()
        for name, size in FILES.items():
            (Path(folder) / "files" / name).write_bytes(os.urandom(size))
        config = Path(folder) / "nginx.conf"
        config.write_text(f"""
            worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
            worker_rlimit_nofile 65536;
            events {{ worker_connections 32768; }}
            http {{
                access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;
                client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
                fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                open_file_cache max=16;
                server {{
                    listen 127.0.0.1:{port} backlog=16384;
                    listen 127.0.0.1:{tls_port} ssl backlog=16384;
                    ssl_certificate {folder}/tls.pem; ssl_certificate_key {folder}/tls.pem;
                    ssl_protocols TLSv1.3;
                    location / {{ return 200 "hello, world"; }}
                    location /json {{
                        default_type application/json; return 200 '{{"ok": true, "id": 17}}';
                    }}
                    location /files/ {{ root {folder}; }}
                    location /status {{ stub_status; }}
                }}
            }}""")
        command = ["taskset", "-c", str(SERVER_CPU), "nginx", "-p", folder, "-c", str(config)]
        server = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_for_port(port)
            yield f"https://127.0.0.1:{tls_port}" if tls else f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


@contextmanager
def target() -> Iterator[str]:
    """The built-in target; yields its base URL."""
    with target_process() as (base, _):
        yield base


@contextmanager
def target_process() -> Iterator[tuple[str, int]]:
    """The built-in target; yields its base URL and the id of its process."""
    command = ["taskset", "-c", str(SERVER_CPU), str(HYPERSCALE), "target", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            raise SystemExit(f"the target did not start: {line!r}")
        yield found.group().rstrip("/"), server.pid
    finally:
        server.terminate()
        server.communicate()


def wait_for_port(port: int, *, within_s: float = 10) -> None:
    until_s = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as error:
            if time.monotonic() > until_s:
                raise SystemExit(f"nothing listens on port {port}") from error
            time.sleep(0.02)
        else:
            return


def nginx_requests(base: str) -> int:
    """Requests nginx has served so far, this question included."""
    text = fetch(f"{base}/status").decode()
    return int(text.split()[9])


def target_requests(base: str) -> int:
    """Requests the built-in target has read so far, those for its counts left out."""
    counts: dict[str, int] = json.loads(fetch(f"{base}/counts"))
    return counts["total"]


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks: int = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks


@contextmanager
def cluster(
    folder: Path, *options: str, cpu: int | None = None, build: Build = THIS_BUILD
) -> Iterator[ClusterFile]:
    """A cluster of real processes, as `hyperscale cluster up` starts it, once it is ready."""
    command = [str(build.hyperscale), "cluster", "up", "--dir", str(folder), *options]
    if cpu is not None:
        command = ["taskset", "-c", str(cpu), *command]
    process = subprocess.Popen(
        command, cwd=build.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("the cluster did not start; see what it says above")
        yield read_cluster(folder)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def fetch(url: str) -> bytes:
    any_certificate = ssl._create_unverified_context()  # a server of this machine
    with urllib.request.urlopen(url, timeout=10, context=any_certificate) as answer:
        body: bytes = answer.read()
        return body


def interleave(rounds: int, tools: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each tool once a round, in turn; what each yielded, round by round."""
    seen: dict[str, list[float]] = {name: [] for name in tools}
    for number in range(rounds):
        for name, tool in tools.items():
            value = tool()
            seen[name].append(value)
            print(f"  round {number + 1}/{rounds}  {name:<24} {value:,.0f}", flush=True)
    return seen


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def steal_s() -> float:
    """CPU seconds that the host of this machine gave to others since it was started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    ticks: int = os.sysconf("SC_CLK_TCK")
    return int(fields[8]) / ticks


def save(name: str, text: str, data: object) -> None:
    """Writes `results/<name>.md` and `.json`, and shows the first."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    body = f"{text.rstrip()}\n\nMachine: {machine}. Reproduce: `make bench ONLY={name}`.\n"
    (RESULTS / f"{name}.md").write_text(body)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    print(f"\n{body}")
