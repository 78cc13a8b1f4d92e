"""What it costs one manager to take the reports of 1,000 workers with 4 parts each.

The manager is a process of its own, as `hyperscale cluster up` starts it. The workers are
simulated (`benchmarks.reports_workers`), in processes of their own, over real connections.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.lab import HYPERSCALE, NOTE, ROOT, cluster, cpu_s, save
from benchmarks.reports_workers import CORES, RATE, STEPS
from hyperscale.client.client import HyperscaleClient
from hyperscale.jobs.agent.reports import PROGRESS_S
from hyperscale.jobs.messages import Backpressure

WORKERS = int(os.environ.get("BENCH_REPORTS_WORKERS", "1000"))
SECONDS = float(os.environ.get("BENCH_REPORTS_S", "30"))
SETTLE_S = 10.0
STARTED_S = 120.0
GOAL_CORES = 0.5
GOAL_SHARE = 0.95
"""Of the reports that default intervals make; with fewer, the manager would have throttled."""

WORKFLOW = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse


class Load{number}(Workflow):
    vus = {vus}
    duration = "1h"

    @step()
    async def browse(self, url: URL = "http://127.0.0.1:9/") -> HTTPResponse:
        return await self.client.http.get(url)

    @step()
    async def buy(self, url: URL = "http://127.0.0.1:9/buy") -> HTTPResponse:
        return await self.client.http.get(url)
"""


class Simulation:
    """The processes of the simulated workers."""

    def __init__(self, processes: list["subprocess.Popen[str]"]) -> None:
        self._processes = processes

    def ask(self, question: str) -> list[dict[str, Any]]:
        """Of each process."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{question}\n")
            process.stdin.flush()
        return [self.answer(process) for process in self._processes]

    def answer(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the simulated workers ended; see what they say above")
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def simulated_workers(folder: Path, cpus: list[int]) -> Iterator[Simulation]:
    """A process on each of these CPUs."""
    with ExitStack() as stack:
        processes = []
        for number, cpu in enumerate(cpus):
            first, last = (WORKERS * n // len(cpus) for n in (number, number + 1))
            process = subprocess.Popen(
                [
                    *("taskset", "-c", str(cpu)),
                    *(sys.executable, "-m", "benchmarks.reports_workers"),
                    *(str(folder), str(first), str(last - first)),
                ],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        simulation = Simulation(processes)
        for process in processes:
            simulation.answer(process)
        yield simulation


def start_parts(folder: Path, simulation: Simulation) -> str:
    """One part of each of four jobs on every worker; returns one of the jobs.

    The allocator would rather give a job whole workers, so they offer a core at a time.
    """
    job = ""
    for number in range(1, CORES + 1):
        simulation.ask(f"offer {number}")
        time.sleep(2.0)  # cores are told each second
        file = folder / f"load_{number}.py"
        file.write_text(WORKFLOW.format(number=number, vus=WORKERS))
        job = asyncio.run(submit(folder, file))
        wanted = number * WORKERS
        until_s = time.monotonic() + STARTED_S
        while (running := sum(each["running"] for each in simulation.ask("running"))) < wanted:
            if time.monotonic() > until_s:
                raise SystemExit(f"{running} of {wanted} parts run after {STARTED_S:.0f} s")
            time.sleep(0.5)
        print(f"  {running:,} parts run", flush=True)
    return job


async def submit(folder: Path, file: Path) -> str:
    async with HyperscaleClient(directory=folder, connect_timeout=30) as client:
        return await client.submit_job(file)


def measure(name: str, manager: int, simulation: Simulation) -> dict[str, Any]:
    """The manager's CPU over a while, and what the workers saw of it."""
    time.sleep(SETTLE_S)
    before = simulation.ask("take")
    cpu_before_s, began_s = cpu_s(manager), time.monotonic()
    time.sleep(SECONDS)
    used_s, seconds = cpu_s(manager) - cpu_before_s, time.monotonic() - began_s
    told = simulation.ask("take")
    took_s = sorted(took_s for each in told for took_s in each["took_s"])
    levels: Counter[str] = sum((Counter(each["levels"]) for each in told), Counter())
    row = {
        "name": name,
        "cores": used_s / seconds,
        "messages_per_s": len(took_s) / seconds,
        "parts_per_s": sum(each["parts"] for each in told) / seconds,
        "p50_s": took_s[len(took_s) // 2],
        "p99_s": took_s[int(len(took_s) * 0.99)],
        "lost": sum(each["lost"] for each in told),
        "levels": dict(levels),
        "workers_cores": sum(
            now["cpu_s"] - then["cpu_s"] for now, then in zip(told, before, strict=True)
        )
        / seconds,
    }
    print(
        f"  {name:<22} {row['cores']:.2f} cores  {row['messages_per_s']:,.0f} messages/s  "
        f"p50 {row['p50_s'] * 1000:.1f} ms  p99 {row['p99_s'] * 1000:.1f} ms  "
        f"lost {row['lost']}  {row['levels']}  workers {row['workers_cores']:.2f} cores",
        flush=True,
    )
    return row


def main() -> None:
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name) / "cluster"
        nodes = stack.enter_context(cluster(folder, "--managers", "1", "--workers", "0"))
        manager = nodes.managers[0].pid
        taken = nodes.managers[0].cpus
        cpus = sorted(os.sched_getaffinity(0) - set(taken)) or taken
        simulation = stack.enter_context(simulated_workers(folder, cpus))
        job = start_parts(folder, simulation)
        rows = [measure("nobody watches", manager, simulation)]
        watching = subprocess.Popen(
            [
                *("taskset", "-c", ",".join(map(str, cpus))),
                *(HYPERSCALE, "watch", job, "--dir", folder),
            ],
            stdout=subprocess.DEVNULL,
        )
        stack.callback(watching.wait)
        stack.callback(watching.kill)
        rows.append(measure("a client watches a job", manager, simulation))
        if watching.poll() is not None:
            raise SystemExit("the client that was to watch ended")
    report(rows, load_before)


def report(rows: list[dict[str, Any]], load_before: float) -> None:
    wanted = WORKERS / PROGRESS_S[Backpressure.NONE]
    most = max(row["cores"] for row in rows)
    fewest = min(row["messages_per_s"] for row in rows)
    lines = [
        f"# Reports of {WORKERS:,} workers with {CORES} parts each",
        "",
        f"One `hyperscale manager` process leads {CORES} jobs of {WORKERS:,} parts, one part of "
        f"each on every worker. Reports come at the default interval of "
        f"{PROGRESS_S[Backpressure.NONE]:g} s, all parts of a worker in one message, each with "
        f"the counts of {len(STEPS)} steps at {RATE} requests a second; every other one has "
        "histograms, phases and the newest seconds, as those of a real worker. Leases are "
        "renewed, cores told and checkpoints committed as always. The workers are simulated in "
        "processes on the other CPUs, where the client that watches is too: each worker has a "
        "connection and a datagram socket of its own, sealed with the secret, and the agent of a "
        "real worker; its executors only report, and "
        "as a member it joins and answers pings but sends none (1,000 real members are more than "
        "this machine can run). CPU is the manager's, from /proc, over "
        f"{SECONDS:g} s of each. The machine was shared: its load average was {load_before:.1f} "
        f"before. {NOTE}".rstrip(),
        "",
        "| | manager, cores | messages/s | parts/s | answered p50 ms | p99 ms | unanswered |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['cores']:.2f} | {row['messages_per_s']:,.0f} "
        f"| {row['parts_per_s']:,.0f} | {row['p50_s'] * 1000:.1f} | {row['p99_s'] * 1000:.1f} "
        f"| {row['lost']} |"
        for row in rows
    ]
    lines += [
        "",
        f"Goals: at most {GOAL_CORES:g} core (measured: {most:.2f}) with at least "
        f"{GOAL_SHARE:.0%} of the {wanted:,.0f} messages a second that default intervals make "
        f"(measured: {fewest / wanted:.0%}): a manager that is too busy asks for fewer.",
    ]
    save("reports", "\n".join(lines), {"rows": rows})
    if most > GOAL_CORES or fewest < GOAL_SHARE * wanted:
        raise SystemExit(
            f"short of the goals: {most:.2f} cores, {fewest:,.0f} of {wanted:,.0f} messages/s"
        )
