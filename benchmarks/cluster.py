"""What a cluster costs beside a local run: the way to the first request, and CPU per request.

Both run the same executors. A cluster has managers and an agent beside them, which take CPU of
their own; here it is asked whether the load itself gets dearer.
"""

import asyncio
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.lab import (
    HYPERSCALE,
    LOAD_CPU,
    NOTE,
    SERVER_CPU,
    cluster,
    cpu_s,
    median,
    nginx,
    nginx_requests,
    save,
    target,
    target_requests,
)
from benchmarks.throughput import WORKFLOW
from hyperscale.client.client import HyperscaleClient
from hyperscale.lab.node_processes import children_of

STARTS = 5
PAIRS = int(os.environ.get("BENCH_CLUSTER_PAIRS", "10"))
VUS = 100
WARM_UP_S = 1.0
MEASURED_S = float(os.environ.get("BENCH_CLUSTER_S", "5"))
BEGUN_S = 30.0
GOAL_START_S = 1.5
GOAL_OVERHEAD = 0.05
RESAMPLED = 10_000


def first_requests_s() -> list[float]:
    """Seconds from a submission to the first request at the target, on an idle cluster."""

    async def once(file: Path, before: int) -> float:
        async with HyperscaleClient(directory=folder / "cluster", connect_timeout=20.0) as client:
            began_s = time.monotonic()
            job = await client.submit_job(file)
            await asyncio.to_thread(more_than, before)
            took_s = time.monotonic() - began_s
            await client.wait_for_completion(job)
        return took_s

    def more_than(before: int) -> None:
        while target_requests(base) <= before:
            time.sleep(0.005)

    with tempfile.TemporaryDirectory() as name, target() as base:
        folder = Path(name)
        with cluster(folder / "cluster", "--managers", "3", "--workers", "3"):
            times = []
            for number in range(STARTS):
                # Another file each time: nobody has its bundle yet.
                file = folder / f"start_{number}.py"
                text = WORKFLOW.format(base=f"{base}/delay/20?n={number}", vus=3, seconds=1)
                file.write_text(text.replace('/"', '"'))
                took_s = asyncio.run(once(file, target_requests(base)))
                print(f"  start {number + 1}/{STARTS}  {took_s:.2f} s", flush=True)
                times.append(took_s)
    return times


def per_cpu_second(base: str, executor: Callable[[], int | None]) -> float:
    """Requests of one running executor for each CPU second it uses, once it is under way."""
    before = nginx_requests(base)
    until_s = time.monotonic() + BEGUN_S
    while (pid := executor()) is None or nginx_requests(base) - before < 10 * VUS:
        if time.monotonic() > until_s:
            raise SystemExit(f"no load within {BEGUN_S:.0f} s")
        time.sleep(0.05)
    time.sleep(WARM_UP_S)
    requests, used_s = nginx_requests(base), cpu_s(pid)
    time.sleep(MEASURED_S)
    used_s = cpu_s(pid) - used_s
    return (nginx_requests(base) - requests - 1) / used_s


def only_child(pid: int) -> int | None:
    """The executor of a runner or of a worker of one core."""
    found = [child for child in children_of(pid) if "executor" in command_of(child)]
    return found[0] if len(found) == 1 else None


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@contextmanager
def running(*command: str | Path) -> Iterator[int]:
    """A command on the CPU of the load, until it ends by itself."""
    words = ["taskset", "-c", str(LOAD_CPU), *map(str, command)]
    # In a session of its own, as nodes are: the kernel shares the CPU out among sessions.
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process.pid
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def pairs() -> list[tuple[float, float]]:
    """Requests per CPU second of the executor: of a local run, then on a cluster."""
    seen = []
    with tempfile.TemporaryDirectory() as name, nginx() as base:
        folder = Path(name)
        file = folder / "load.py"
        seconds = round(WARM_UP_S + MEASURED_S + 2)
        file.write_text(WORKFLOW.format(base=base, vus=VUS, seconds=seconds))
        up = cluster(folder / "cluster", "--managers", "3", "--workers", "1", cpu=LOAD_CPU)
        with up as nodes:
            worker = nodes.workers[0].pid

            def local() -> float:
                options = ("--workers", "1", "--ui", "none", "--out", folder)
                with running(HYPERSCALE, "run", file, *options) as pid:
                    return per_cpu_second(base, lambda: only_child(pid))

            def submitted() -> float:
                options = ("--dir", folder / "cluster", "--ui", "none", "--out", folder)
                with running(HYPERSCALE, "submit", file, "--watch", *options):
                    return per_cpu_second(base, lambda: only_child(worker))

            for number in range(PAIRS):
                # Whoever is first finds the machine as the other left it: they take turns.
                both = (local, submitted) if number % 2 == 0 else (submitted, local)
                got = {each.__name__: each() for each in both}
                pair = (got["local"], got["submitted"])
                seen.append(pair)
                print(
                    f"  pair {number + 1}/{PAIRS}  run {pair[0]:,.0f}  submit {pair[1]:,.0f}  "
                    f"overhead {overhead(pair):+.1%}",
                    flush=True,
                )
    return seen


def overhead(pair: tuple[float, float]) -> float:
    """How much fewer requests a CPU second makes on the cluster."""
    local, submitted = pair
    return 1 - submitted / local


def interval(values: list[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, by resampling."""
    rng = random.Random(1)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return medians[int(RESAMPLED * 0.025)], medians[int(RESAMPLED * 0.975)]


def main() -> None:
    load_before = os.getloadavg()[0]
    starts_s = first_requests_s()
    seen = pairs()
    shares = [overhead(pair) for pair in seen]
    middle, (low, high) = median(shares), interval(shares)
    lines = [
        "# A cluster beside a local run",
        "",
        f"From a submission on an idle cluster of 3 managers and 3 workers of one core to the "
        f"first request at the target, a new file each time: best of {STARTS} at most "
        f"{GOAL_START_S:g} s.",
        "",
        "| | best | median |",
        "|---|---|---|",
        f"| first request | {min(starts_s):.2f} s | {median(starts_s):.2f} s |",
        "",
        f"Requests per CPU second of the executor, `hyperscale run` beside `hyperscale submit "
        f"--watch` on 3 managers and one worker, one core each: the same static workflow of "
        f"{VUS} users on a one-worker nginx (CPU {SERVER_CPU}; all else on CPU {LOAD_CPU}), "
        f"{MEASURED_S:g} s of steady load, start-up left out on both sides. Requests are nginx's "
        "count, CPU is the executor's user and system time from /proc. "
        f"{PAIRS} interleaved pairs. The machine was shared: its load average was "
        f"{load_before:.1f} before the first. {NOTE}".rstrip(),
        "",
        "| | requests per CPU second, median |",
        "|---|---|",
        f"| run | {median([pair[0] for pair in seen]):,.0f} |",
        f"| submit | {median([pair[1] for pair in seen]):,.0f} |",
        "",
        f"Overhead of the cluster, median of the pairs: {middle:+.1%} "
        f"(95 % interval {low:+.1%} to {high:+.1%}). Goal: at most {GOAL_OVERHEAD:.0%}.",
    ]
    save(
        "cluster", "\n".join(lines), {"starts_s": starts_s, "pairs": seen, "interval": [low, high]}
    )
    missed = []
    if min(starts_s) > GOAL_START_S:
        missed.append(f"{min(starts_s):.2f} s to the first request")
    if middle > GOAL_OVERHEAD:
        missed.append(f"{middle:.1%} overhead")
    if missed:
        raise SystemExit(f"short of the goals: {'; '.join(missed)}")
