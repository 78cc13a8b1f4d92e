"""What it costs one gate to own jobs over 10 datacenters of 1,000 workers.

The gate is a process of its own. The datacenters are simulated (`benchmarks.gates_datacenters`) in
another one, over real connections.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gates_datacenters import HOST, REQUESTS
from benchmarks.lab import HYPERSCALE, NOTE, ROOT, cpu_s, save
from benchmarks.reports import WORKFLOW
from hyperscale.client.client import HyperscaleClient
from hyperscale.lab.layout import find_ports
from hyperscale.reporting.results import RunResult
from hyperscale.wire.cluster_secret import make_secret, write_secret_file

DATACENTERS = int(os.environ.get("BENCH_GATES_DATACENTERS", "10"))
WORKERS = int(os.environ.get("BENCH_GATES_WORKERS", "1000"))
JOBS = 4
SECONDS = float(os.environ.get("BENCH_GATES_S", "30"))
SETTLE_S = 5.0
READY_S = 60.0
ENDED_S = 120.0
GOAL_CORES = 0.5
GOAL_MESSAGES = 2.0
"""A second, of each job in each datacenter."""


class Simulation:
    """The process of the simulated datacenters."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, question: str = "") -> dict[str, Any]:
        if question:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the simulated datacenters ended; see what they say above")
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def _process(command: list[str], cpu: int) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        ["taskset", "-c", str(cpu), *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _until(condition: Any, what: str, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited {within_s:.0f} s in vain for: {what}")
        time.sleep(0.25)


class Gate:
    """The gate, as a client sees it."""

    def __init__(self, address: str, secret_file: Path) -> None:
        self._address = address
        self._settings = {"security": {"secret_file": str(secret_file)}}

    def client(self) -> HyperscaleClient:
        return HyperscaleClient(
            gate_tcp_addrs=[self._address], settings=self._settings, connect_timeout=30.0
        )

    def healthy(self) -> int:
        async def ask() -> int:
            async with self.client() as client:
                rows = await client.list_datacenters()
            return sum(row.health == "healthy" for row in rows)

        return asyncio.run(ask())

    def submit(self, file: Path) -> str:
        async def ask() -> str:
            async with self.client() as client:
                return await client.submit_job(file, datacenter_count=DATACENTERS)

        return asyncio.run(ask())

    def results(self, jobs: list[str]) -> list[RunResult]:
        async def ask() -> list[RunResult]:
            async with self.client() as client:
                finals = [await client.wait_for_completion(job, timeout=ENDED_S) for job in jobs]
            return [final.result for final in finals]

        return asyncio.run(ask())


def measure(name: str, gate: int, simulation: Simulation) -> dict[str, Any]:
    """The gate's CPU over a while, and the messages it got."""
    time.sleep(SETTLE_S)
    before, cpu_before_s, began_s = simulation.ask("take"), cpu_s(gate), time.monotonic()
    time.sleep(SECONDS)
    after, used_s, seconds = simulation.ask("take"), cpu_s(gate), time.monotonic() - began_s
    messages = after["reports"] - before["reports"]
    row = {
        "name": name,
        "cores": (used_s - cpu_before_s) / seconds,
        "messages_per_s": messages / seconds,
        "per_part_per_s": messages / seconds / (JOBS * DATACENTERS),
        "bytes_per_message": (after["report_bytes"] - before["report_bytes"]) / max(1, messages),
    }
    print(
        f"  {name:<22} {row['cores']:.2f} cores  {row['messages_per_s']:.0f} messages/s, "
        f"{row['per_part_per_s']:.2f} of each job and datacenter, "
        f"{row['bytes_per_message']:,.0f} bytes each",
        flush=True,
    )
    return row


def main() -> None:
    load_before = os.getloadavg()[0]
    cpus = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, port = Path(name), find_ports(2)
        secret_file = folder / "secret"
        write_secret_file(secret_file, make_secret())
        address = f"{HOST}:{port}"
        own = [str(HYPERSCALE), "gate", "--port", str(port), "--http-port", str(port + 1)]
        own += ["--secret-file", str(secret_file), "--data-dir", str(folder / "gate")]
        gate = stack.enter_context(_process(own, cpus[0]))
        assert gate.stdout is not None
        gate.stdout.readline()  # it listens
        others = [sys.executable, "-m", "benchmarks.gates_datacenters", address, str(secret_file)]
        others += [str(DATACENTERS), str(WORKERS)]
        simulation = Simulation(stack.enter_context(_process(others, cpus[-1])))
        simulation.ask()
        client = Gate(address, secret_file)
        _until(lambda: client.healthy() == DATACENTERS, "healthy datacenters", READY_S)
        jobs = []
        for number in range(1, JOBS + 1):
            file = folder / f"load_{number}.py"
            file.write_text(WORKFLOW.format(number=number, vus=DATACENTERS * WORKERS))
            jobs.append(client.submit(file))
        wanted = JOBS * DATACENTERS
        _until(lambda: simulation.ask("take")["running"] == wanted, "all parts run", READY_S)
        rows = [measure("nobody watches", gate.pid, simulation)]
        watching = [str(HYPERSCALE), "watch", jobs[0], "--gate", address]
        with _process([*watching, "--secret-file", str(secret_file)], cpus[-1]):
            rows.append(measure("a client watches a job", gate.pid, simulation))
        began_s = time.monotonic()
        simulation.ask("end")
        results = client.results(jobs)
        took_s = time.monotonic() - began_s
        told = simulation.ask("take")
    report(rows, results, told, took_s, load_before)


def report(
    rows: list[dict[str, Any]],
    results: list[RunResult],
    told: dict[str, Any],
    took_s: float,
    load_before: float,
) -> None:
    sent = [sum(step.sent for w in result.workflows for step in w.steps) for result in results]
    expected = 2 * REQUESTS * WORKERS * DATACENTERS  # two steps
    most = max(row["cores"] for row in rows)
    messages = max(row["per_part_per_s"] for row in rows)
    lines = [
        f"# One gate, {DATACENTERS} datacenters of {WORKERS:,} workers",
        "",
        f"One `hyperscale gate` process owns {JOBS} jobs that run in {DATACENTERS} datacenters. "
        "The datacenters are simulated in a process on the other CPU: each has a connection of its "
        "own and the reporter of a real manager; what its workers do is made up. Their reports "
        "have the counts, histograms and newest seconds of 2 steps. At the end each delivers a "
        f"record that merges the reports of {WORKERS:,} workers. CPU is the gate's, from /proc, "
        f"over {SECONDS:g} s of each. The machine was shared: its load average was "
        f"{load_before:.1f} before. {NOTE}".rstrip(),
        "",
        "| | gate, cores | messages/s | of each job and datacenter | bytes each |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {row['name']} | {row['cores']:.3f} | {row['messages_per_s']:.0f} "
            f"| {row['per_part_per_s']:.2f} | {row['bytes_per_message']:,.0f} |"
            for row in rows
        ),
        "",
        f"All {JOBS * DATACENTERS} results, of up to {told['result_bytes']:,} bytes, were made, "
        f"delivered and merged, and a client had the results of all jobs, in {took_s:.1f} s; "
        f"each job has {sent[0]:,} requests (expected: {expected:,}).",
        "",
        f"Goals: at most {GOAL_CORES:g} core (measured: {most:.3f}) and {GOAL_MESSAGES:g} messages "
        f"a second of each job and datacenter (measured: {messages:.2f}).",
    ]
    save("gates", "\n".join(lines), {"rows": rows, "results_s": took_s, "sent": sent})
    if set(sent) != {expected}:
        raise SystemExit(f"requests of the jobs: {sent}, expected {expected} each")
    if most > GOAL_CORES or messages > GOAL_MESSAGES * 1.05:
        raise SystemExit(f"short of the goals: {most:.3f} cores, {messages:.2f} messages/s")
