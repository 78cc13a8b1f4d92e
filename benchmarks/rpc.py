"""Sealed RPC round trips per CPU second, beside grpc.aio over TLS doing the same.

64 calls in flight on one connection, 256-byte bodies both ways, coroutine handlers on both
sides. The CPU seconds are those of both processes together.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import LOAD_CPU, PEERS, ROOT, SERVER_CPU, interleave, median, save
from hyperscale.wire.certificate_identity import CertificateIdentity
from hyperscale.wire.certificates import make_authority, make_certificate
from hyperscale.wire.roles import Role

ROUNDS = 5
SECONDS = 5
GOAL = 2.0

SEALED, TLS = "hyperscale, sealed", "hyperscale, mutual TLS"
GRPC, GRPC_PLAIN = "grpc.aio, TLS", "grpc.aio, no TLS"
COMMANDS: dict[str, tuple[str, ...]] = {
    SEALED: (sys.executable, "-m", "benchmarks.rpc_hyperscale", "{end}", "secret"),
    TLS: (sys.executable, "-m", "benchmarks.rpc_hyperscale", "{end}", "tls"),
    GRPC: (str(PEERS / "python"), "benchmarks/rpc_grpc.py", "{end}", "tls"),
    GRPC_PLAIN: (str(PEERS / "python"), "benchmarks/rpc_grpc.py", "{end}", "plain"),
}


def make_certificates(folder: Path) -> None:
    authority = make_authority("bench", days=1)
    (folder / "ca.pem").write_bytes(authority.certificate)
    for name in ("server", "client"):
        vouched = CertificateIdentity(frozenset({Role.MANAGER}), "bench", "bench")
        made = make_certificate(authority, vouched, name=name, hosts=["127.0.0.1"], days=1)
        (folder / f"{name}.pem").write_bytes(made.certificate)
        (folder / f"{name}-key.pem").write_bytes(made.key)


def round_trips_per_cpu_s(words: Sequence[str], folder: str) -> float:
    def command(end: str, cpu: int) -> list[str]:
        return ["taskset", "-c", str(cpu), *(word.format(end=end) for word in words), folder]

    server = subprocess.Popen(
        command("server", SERVER_CPU),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        client = subprocess.run(
            [*command("client", LOAD_CPU), str(port), str(SECONDS)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60 + SECONDS,
        )
        asked = json.loads(client.stdout)
        output, _ = server.communicate(timeout=30)
    cpu_s = asked["cpu_s"] + json.loads(output)["cpu_s"]
    rate: float = asked["count"] / cpu_s
    return rate


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-rpc-") as folder:
        make_certificates(Path(folder))
        tools = {
            name: lambda words=words: round_trips_per_cpu_s(words, folder)
            for name, words in COMMANDS.items()
        }
        load_before = os.getloadavg()[0]
        seen = interleave(ROUNDS, tools)
    middle = {name: median(values) for name, values in seen.items()}
    ratio = middle[SEALED] / middle[GRPC]
    lines = [
        "# RPC round trips per CPU second",
        "",
        f"64 calls in flight, 256-byte bodies, one connection; CPU of client and server together; "
        f"{ROUNDS} interleaved rounds of {SECONDS} s, median. The goal: sealed at least "
        f"{GOAL:g} x grpc.aio over TLS. Measured: {ratio:.1f} x. grpc's bodies are raw "
        "bytes, ours are messages. Rates and ratio depend on the machine and on what else runs "
        f"there: its load average was {load_before:.1f} before the first round.",
        "",
        "| | round trips per CPU second | beside grpc.aio |",
        "|---|---|---|",
    ]
    for name, rate in middle.items():
        lines.append(f"| {name} | {rate:,.0f} | {rate / middle[GRPC]:.1f} x |")
    save("rpc", "\n".join(lines), {"rounds": seen, "ratio": ratio, "load": load_before})
    if ratio < GOAL:
        raise SystemExit(f"sealed RPC is {ratio:.2f} x grpc.aio, the goal is {GOAL:g} x")
