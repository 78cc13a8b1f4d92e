"""Commits per second of one group of the ledger, beside etcd doing the same.

Three `hyperscale manager` processes and three etcd members keep their data on the same disk and
take turns. Every write goes over the wire to one leader, from a process of its own: ours are
events of jobs sent by a peer, etcd's are gRPC Puts of as many bytes sent by h2load.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab import NOTE, ROOT, THIS_BUILD, Build, cpu_s, free_port, median, save

ROUNDS = int(os.environ.get("BENCH_LEDGER_ROUNDS", "3"))
SECONDS = float(os.environ.get("BENCH_LEDGER_S", "10"))
IN_FLIGHT = (1, 64, 256)
PACE = 1_000
GOAL_RATE = 5_000
GOAL_SHARE = 0.5
GOAL_P99_S = 0.015
VALUE_BYTES = 300
"""The size of one of our entries."""
GROUP = 1
NODES = 3


@dataclass(frozen=True)
class Point:
    """One measurement."""

    commits: int
    seconds: float
    p50_s: float
    p99_s: float
    server_cpu_s: float

    @property
    def rate(self) -> float:
        return self.commits / self.seconds

    @property
    def cpu_us(self) -> float:
        """Return the CPU time of all three servers per commit."""
        return self.server_cpu_s / self.commits * 1e6


class Tier:
    """Three servers, their leader, and a client that loads it."""

    def __init__(self, name: str, pids: list[int], measure: Callable[[str, float], Any]) -> None:
        self.name = name
        self._pids = pids
        self._measure = measure

    def point(self, mode: str, amount: float) -> Point:
        before_s = sum(map(cpu_s, self._pids))
        done = self._measure(mode, amount)
        used_s = sum(map(cpu_s, self._pids)) - before_s
        return Point(done["count"], done["seconds"], done["p50_s"], done["p99_s"], used_s)


def fetch_json(url: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10) as answer:
        return json.loads(answer.read())


def wait_for(what: str, condition: Callable[[], Any], within_s: float = 60) -> Any:
    until_s = time.monotonic() + within_s
    while True:
        try:
            if found := condition():
                return found
        except (OSError, KeyError, IndexError):
            pass
        if time.monotonic() > until_s:
            raise SystemExit(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.1)


# -- ours ---------------------------------------------------------------------------------


@contextmanager
def hyperscale_tier(folder: Path, build: Build = THIS_BUILD) -> Iterator[Tier]:
    ports = [free_port() for _ in range(NODES)]
    seeds = [word for port in ports for word in ("--seed", f"127.0.0.1:{port}")]
    with ExitStack() as stack:
        nodes = []
        for number, port in enumerate(ports):
            command = [
                *(build.hyperscale, "manager", "--node-id", f"m{number}", "--port", str(port)),
                *("--http-port", "0", "--founders", str(NODES), *seeds),
                *("--data-dir", folder / f"m{number}", "--log-level", "warning"),
            ]
            nodes.append(started(stack, [str(word) for word in command], folder))
        address = f"127.0.0.1:{ports[0]}"

        def leader() -> str:
            told = subprocess.run(
                [build.hyperscale, "ledger", "status", "--connect", address, "--json"],
                capture_output=True,
                text=True,
                check=False,
            )
            if told.returncode:
                return ""
            rows = {row["group"]: row["leader"] for row in json.loads(told.stdout)["replicas"]}
            wanted = NODES + 1
            return rows.get(GROUP, "") if len(rows) == wanted and all(rows.values()) else ""

        wait_for("the tier is ready", leader)
        time.sleep(3)  # leaderships are spread once all are there
        name = wait_for("a leader", leader)
        where = f"127.0.0.1:{ports[int(name.removeprefix('m'))]}"
        client = subprocess.Popen(
            [build.python, "-m", "benchmarks.ledger_client", where, str(GROUP), str(SECONDS)],
            cwd=build.root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(ended, client)
        assert client.stdin is not None
        assert client.stdout is not None
        to, answers = client.stdin, client.stdout
        answers.readline()

        def measure(mode: str, amount: float) -> Any:
            to.write(f"{mode} {amount}\n")
            to.flush()
            line = answers.readline()
            if not line:
                raise SystemExit("the client of the ledger ended")
            return json.loads(line)

        yield Tier("hyperscale", [node.pid for node in nodes], measure)


# -- etcd ---------------------------------------------------------------------------------


@contextmanager
def etcd_tier(folder: Path) -> Iterator[Tier]:
    clients = [free_port() for _ in range(NODES)]
    peers = [free_port() for _ in range(NODES)]
    everyone = ",".join(f"e{n}=http://127.0.0.1:{port}" for n, port in enumerate(peers))
    with ExitStack() as stack:
        members = []
        for number in range(NODES):
            own = f"http://127.0.0.1:{clients[number]}"
            peer = f"http://127.0.0.1:{peers[number]}"
            command = [
                *("etcd", "--name", f"e{number}", "--data-dir", str(folder / f"e{number}")),
                *("--listen-client-urls", own, "--advertise-client-urls", own),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", everyone, "--quota-backend-bytes", str(8 << 30)),
                *("--log-level", "error"),
            ]
            members.append(started(stack, command, folder))

        def leader() -> int:
            for port in clients:
                told = fetch_json(f"http://127.0.0.1:{port}/v3/maintenance/status", b"{}")
                if told["leader"] == told["header"]["member_id"]:
                    return port
            return 0

        port = wait_for("etcd has a leader", leader)
        put = folder / "put"
        put.write_bytes(grpc_put(b"bench/0000000000", b"x" * VALUE_BYTES))
        log = folder / "h2load.log"

        def revision() -> int:
            told = fetch_json(f"http://127.0.0.1:{port}/v3/maintenance/status", b"{}")
            return int(told["header"]["revision"])

        def measure(mode: str, amount: float) -> Any:
            log.unlink(missing_ok=True)
            connections = 1 if amount < 4 or mode == "paced" else 4
            flags = ["-c", str(connections), "-m", str(max(1, int(amount) // connections))]
            if mode == "paced":
                flags = ["-c", "1", "-m", "256", "--rps", str(int(amount))]
            before = revision()
            subprocess.run(
                [
                    *("h2load", "-t", "1", *flags, "-D", f"{SECONDS:g}", "-d", str(put)),
                    *("-H", "content-type: application/grpc", "-H", "te: trailers"),
                    f"--log-file={log}",
                    f"http://127.0.0.1:{port}/etcdserverpb.KV/Put",
                ],
                capture_output=True,
                text=True,
                check=True,
            )
            taken = sorted(int(line.split()[2]) / 1e6 for line in log.read_text().splitlines())
            committed = revision() - before
            if committed < 0.95 * len(taken):
                raise SystemExit(f"etcd committed {committed} of {len(taken)}")
            return {
                "count": committed,
                "seconds": SECONDS,
                "p50_s": taken[len(taken) // 2],
                "p99_s": taken[int(len(taken) * 0.99)],
            }

        yield Tier("etcd", [member.pid for member in members], measure)


def grpc_put(key: bytes, value: bytes) -> bytes:
    """Return a Put in gRPC framing: no compression, length, protobuf fields 1 and 2."""
    body = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(value)) + value
    return b"\x00" + len(body).to_bytes(4, "big") + body


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def started(stack: ExitStack, command: list[str], folder: Path) -> "subprocess.Popen[str]":
    log = stack.enter_context((folder / "servers.log").open("a"))
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True
    )
    stack.callback(ended, process)
    return process


def ended(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


# -- both ---------------------------------------------------------------------------------


def main() -> None:
    if shutil.which("etcd") is None or shutil.which("h2load") is None:
        raise SystemExit("needs etcd-server and nghttp2-client: make bench-deps")
    seen: dict[str, dict[str, list[Point]]] = {}
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        place = ROOT / "target"
        place.mkdir(exist_ok=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place)))
        tiers = [
            stack.enter_context(hyperscale_tier(folder)),
            stack.enter_context(etcd_tier(folder)),
        ]
        for number in range(ROUNDS):
            for mode, amount in (*(("closed", count) for count in IN_FLIGHT), ("paced", PACE)):
                for tier in tiers:
                    point = tier.point(mode, amount)
                    label = f"{mode} {amount}"
                    seen.setdefault(label, {}).setdefault(tier.name, []).append(point)
                    print(
                        f"  round {number + 1}/{ROUNDS}  {label:<12} {tier.name:<11}"
                        f"{point.rate:>9,.0f}/s  p50 {point.p50_s * 1000:6.2f} ms  "
                        f"p99 {point.p99_s * 1000:7.2f} ms  {point.cpu_us:6.0f} us/commit",
                        flush=True,
                    )
    report(seen, load_before)


def report(seen: dict[str, dict[str, list[Point]]], load_before: float) -> None:
    def middle(label: str, name: str, of: Callable[[Point], float]) -> float:
        return median([of(point) for point in seen[label][name]])

    full, paced = f"closed {IN_FLIGHT[-1]}", f"paced {PACE}"
    ours = middle(full, "hyperscale", lambda point: point.rate)
    theirs = middle(full, "etcd", lambda point: point.rate)
    p99_s = middle(paced, "hyperscale", lambda point: point.p99_s)
    lines = [
        "# Commits of one ledger group",
        "",
        f"Three `hyperscale manager` processes beside three members of {version()}, on the same "
        f"disk, every commit on the disks of a majority (fsync); {VALUE_BYTES} bytes each. All "
        "writes go over the wire to one leader, from a process of its own: ours are checkpoints of "
        f"jobs from a peer in Python, etcd's are gRPC Puts from h2load. {ROUNDS} interleaved "
        f"rounds of {SECONDS:g} s, medians. CPU is that of the three servers; the clients', on the "
        "same two CPUs, is not counted. The machine was "
        f"shared: its load average was {load_before:.1f} before the first round. {NOTE}".rstrip(),
        "",
        "| writes | | commits/s | p50 ms | p99 ms | CPU us per commit |",
        "|---|---|---|---|---|---|",
    ]
    for label, names in seen.items():
        mode, amount = label.split()
        what = f"{amount} in flight" if mode == "closed" else f"{int(amount):,} a second, paced"
        for name in names:
            lines.append(
                f"| {what} | {name} | {middle(label, name, lambda p: p.rate):,.0f} "
                f"| {middle(label, name, lambda p: p.p50_s) * 1000:.2f} "
                f"| {middle(label, name, lambda p: p.p99_s) * 1000:.2f} "
                f"| {middle(label, name, lambda p: p.cpu_us):,.0f} |"
            )
    lines += [
        "",
        f"Goals: at {IN_FLIGHT[-1]} in flight at least {GOAL_RATE:,} commits/s (measured: "
        f"{ours:,.0f}) and {GOAL_SHARE:g} x etcd (measured: {ours / theirs:.2f} x); p99 at "
        f"{PACE:,}/s at most {GOAL_P99_S * 1000:g} ms (measured: {p99_s * 1000:.1f} ms).",
    ]
    data = {
        label: {name: [vars(point) for point in points] for name, points in names.items()}
        for label, names in seen.items()
    }
    save("ledger", "\n".join(lines), data)
    missed = []
    if ours < GOAL_RATE or ours < GOAL_SHARE * theirs:
        missed.append(f"{ours:,.0f} commits/s, {ours / theirs:.2f} x etcd")
    if p99_s > GOAL_P99_S:
        missed.append(f"p99 {p99_s * 1000:.1f} ms at {PACE:,}/s")
    if missed:
        raise SystemExit(f"short of the goals: {'; '.join(missed)}")


def version() -> str:
    told = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"etcd Version: (\S+)", told)
    return f"etcd {found.group(1)}" if found else "etcd"
