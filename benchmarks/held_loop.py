"""Latencies while a step holds the event loop, beside what the target measured; the cost of that.

A step sleeps for 30 ms without awaiting, 20 users, `/delay/20`. The clean step's percentiles should
be those of the target's residence times. The cost is that of a run without holds, with and without
receive times of the kernel.
"""

import json
import tempfile
from pathlib import Path

from benchmarks.lab import HYPERSCALE, fetch, interleave, median, nginx, run, save, target
from benchmarks.throughput import STATUS_WORKFLOW, VUS, per_cpu_second

DURATION_S = 10
ROUNDS = 5
USERS = 20

HELD_WORKFLOW = """
import time

from hyperscale import Workflow, step
from hyperscale.testing import HTTPResponse


class Load(Workflow):
    vus = {vus}
    duration = "{seconds}s"

    @step()
    async def browse(self) -> HTTPResponse:
        return await self.client.http.get("{base}/delay/20")

    @step("browse")
    async def pay(self) -> HTTPResponse:
        time.sleep(0.03)
        return await self.client.http.get("{base}/delay/20")
"""

# Before a workflow: its engine times responses when it reads them.
UNTIMED = """
import functools

import hyperscale.clients.hub as hub

hub.Engine = functools.partial(hub.Engine, kernel_times=False)
"""


def percentiles_ms(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Percentiles of the clean step and of the target, of one run with holds."""
    with target() as base:
        file, out = folder / "held.py", folder / "results.json"
        file.write_text(HELD_WORKFLOW.format(base=base, vus=USERS, seconds=DURATION_S))
        options = ("--workers", "1", "--ui", "none", "--json", out, "--out", folder)
        run((HYPERSCALE, "run", file, *options))
        residence = json.loads(fetch(f"{base}/counts"))["residence"]
    steps = json.loads(out.read_text())["workflows"][0]["steps"]
    clean = next(step for step in steps if step["name"] == "browse")["latency_ms"]
    truth = {name: residence[f"{name}_ns"] / 1e6 for name in ("p50", "p99")}
    return {name: clean[name] for name in ("p50", "p99")}, truth


def main() -> None:
    with tempfile.TemporaryDirectory() as name, nginx() as base:
        folder = Path(name)
        seen = [percentiles_ms(folder) for _ in range(ROUNDS)]
        tools = {}
        for kind, head in (("kernel", ""), ("read", UNTIMED)):
            file = folder / f"{kind}.py"
            file.write_text(head + STATUS_WORKFLOW.format(base=base, vus=VUS, seconds=DURATION_S))
            options = ("--workers", "1", "--ui", "none", "--out", folder)
            tools[kind] = per_cpu_second(base, HYPERSCALE, "run", file, *options)
        costs = interleave(ROUNDS, tools)
    lines = [
        "# Latencies while a step holds the event loop",
        "",
        f"{USERS} users; one step is clean, one sleeps for 30 ms without awaiting; both request "
        f"`/delay/20`. {DURATION_S} s",
        f"a run, medians of {ROUNDS}. The goal: the clean step within 1 ms of the target's times.",
        "",
        "| percentile | clean step | target | difference |",
        "|---|---|---|---|",
    ]
    for which in ("p50", "p99"):
        step_ms, truth_ms = (median([each[side][which] for each in seen]) for side in (0, 1))
        difference = step_ms - truth_ms
        lines.append(f"| {which} | {step_ms:.2f} ms | {truth_ms:.2f} ms | {difference:+.2f} ms |")
    pairs = zip(costs["kernel"], costs["read"], strict=True)
    cost = 1 - median([kernel / read for kernel, read in pairs])
    lines += [
        "",
        f"Receive times of the kernel cost Python steps {cost:.1%} of their requests per CPU-s",
        "(goal: at most 5 %); static steps do not use them: no code can hold their loop.",
    ]
    save("held_loop", "\n".join(lines), {"percentiles_ms": seen, "requests_per_cpu_s": costs})
