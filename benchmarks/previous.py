"""This build beside a previous one: `make bench ONLY=previous PREVIOUS=DIR`.

DIR is another checkout, built with `make build`. Both builds take turns in every round, so what the
machine does meanwhile happens to both. The median of the ratios of the rounds is compared with the
goal: a rebuild must not cost speed.
"""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cluster import only_child, per_cpu_second, running
from benchmarks.lab import (
    LOAD_CPU,
    NOTE,
    THIS_BUILD,
    Build,
    cluster,
    median,
    nginx,
    nginx_requests,
    run,
    save,
    target,
)
from benchmarks.ledger import hyperscale_tier
from benchmarks.memory import COUNTS, bytes_per_user, executor_rss_peak
from benchmarks.throughput import PYTHON_WORKFLOW, WORKFLOW

ROUNDS = int(os.environ.get("BENCH_PREVIOUS_ROUNDS", "5"))
GOAL = 0.97
VUS = 100
SECONDS = 6

Rows = dict[str, list[tuple[float, float]]]
"""By measurement: this build and the previous one, round by round. More is better."""


def measure(
    rows: Rows, name: str, builds: tuple[Build, Build], one: Callable[[Build], float]
) -> None:
    """Measure both builds, the first one first in every other round."""
    order = builds if len(rows.setdefault(name, [])) % 2 == 0 else builds[::-1]
    got = {build.name: one(build) for build in order}
    pair = (got[builds[0].name], got[builds[1].name])
    rows[name].append(pair)
    print(f"  {name:<44} {pair[0]:>12,.1f} {pair[1]:>12,.1f}  {pair[0] / pair[1]:.3f}", flush=True)


def throughput(rows: Rows, builds: tuple[Build, Build], folder: Path) -> None:
    with nginx() as base:
        files = {"static": WORKFLOW, "Python": PYTHON_WORKFLOW}
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text.format(base=base, vus=VUS, seconds=SECONDS))

        def per_cpu(file: str, *more: str) -> Callable[[Build], float]:
            def one(build: Build) -> float:
                options = ("--workers", "1", "--ui", "none", "--out", folder, *more)
                before = nginx_requests(base)
                usage = run((build.hyperscale, "run", folder / f"{file}.py", *options))
                return (nginx_requests(base) - before - 1) / usage.cpu_s

            return one

        for _ in range(ROUNDS):
            unit = "requests per CPU-s"
            measure(rows, f"throughput, static: {unit}", builds, per_cpu("static"))
            measure(
                rows,
                f"throughput, not compiled: {unit}",
                builds,
                per_cpu("static", "--no-compile"),
            )
            measure(rows, f"throughput, Python: {unit}", builds, per_cpu("Python"))


def startup(rows: Rows, builds: tuple[Build, Build], folder: Path) -> None:
    file = folder / "one.py"
    text = PYTHON_WORKFLOW.format(base="http://127.0.0.1:9", vus=1, seconds=1)
    file.write_text(text.replace("vus = 1", "vus = 1\n    iterations = 1"))

    def runs_per_cpu_s(build: Build) -> float:
        command = (build.hyperscale, "run", file, "--ui", "none", "--out", folder)
        return 1 / run(command, cpu=None).cpu_s

    def starts_per_s(build: Build) -> float:
        with socket.create_server(("127.0.0.1", 0)) as server:
            base = f"http://127.0.0.1:{server.getsockname()[1]}"
            first = folder / "first.py"
            first.write_text(PYTHON_WORKFLOW.format(base=base, vus=1, seconds=1))
            began_s = time.monotonic()
            process = subprocess.Popen(
                [build.hyperscale, "run", first, "--ui", "none", "--out", folder],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            server.settimeout(30)
            connection, _ = server.accept()
            connection.recv(1)
            took_s = time.monotonic() - began_s
            connection.close()
            process.terminate()
            process.wait()
        return 1 / took_s

    for _ in range(2 * ROUNDS):
        measure(rows, "startup: runs of one request per CPU-s", builds, runs_per_cpu_s)
        measure(rows, "startup: 1 / seconds to the first request", builds, starts_per_s)


def memory(rows: Rows, builds: tuple[Build, Build], _folder: Path) -> None:
    with target() as base:
        for _ in range(min(2, ROUNDS)):
            for name, text in (("static", WORKFLOW), ("Python", PYTHON_WORKFLOW)):

                def users_per_mb(build: Build, text: str = text) -> float:
                    peaks = (executor_rss_peak(n, text, base, build.hyperscale) for n in COUNTS)
                    return 1e6 / bytes_per_user(*peaks)

                measure(rows, f"memory, {name}: virtual users per MB", builds, users_per_mb)


def ledger(rows: Rows, builds: tuple[Build, Build], folder: Path) -> None:
    with ExitStack() as stack:
        tiers = {}
        for build in builds:
            own = folder / build.name.replace(" ", "-")
            own.mkdir()
            tiers[build.name] = stack.enter_context(hyperscale_tier(own, build))
        for _ in range(ROUNDS):
            for in_flight in (64, 256):
                points = {}

                def rate(build: Build, in_flight: int = in_flight) -> float:
                    points[build.name] = tiers[build.name].point("closed", in_flight)  # noqa: B023  called now
                    return points[build.name].rate  # noqa: B023  called now

                measure(rows, f"ledger, {in_flight} in flight: commits/s", builds, rate)
                measure(
                    rows,
                    f"ledger, {in_flight} in flight: commits per CPU-s",
                    builds,
                    lambda build: 1e6 / points[build.name].cpu_us,  # noqa: B023  called now
                )


def on_cluster(rows: Rows, builds: tuple[Build, Build], folder: Path) -> None:
    with nginx() as base, ExitStack() as stack:
        file = folder / "load.py"
        file.write_text(WORKFLOW.format(base=base, vus=VUS, seconds=SECONDS + 2))
        workers = {}
        for build in builds:
            own = folder / f"cluster-{build.name.replace(' ', '-')}"
            up = cluster(own, "--managers", "3", "--workers", "1", cpu=LOAD_CPU, build=build)
            workers[build.name] = (own, stack.enter_context(up).workers[0].pid)

        def submitted(build: Build) -> float:
            own, worker = workers[build.name]
            options = ("--dir", own, "--ui", "none", "--out", folder)
            with running(build.hyperscale, "submit", file, "--watch", *options):
                return per_cpu_second(base, lambda: only_child(worker))

        for _ in range(ROUNDS):
            measure(rows, "cluster: requests per CPU-s of the executor", builds, submitted)


def main() -> None:
    where = os.environ.get("PREVIOUS", "")
    previous = Build("previous build", Path(where).resolve())
    if not where or not previous.hyperscale.exists():
        raise SystemExit(
            "PREVIOUS must name a checkout that was built with `make build`: "
            "make bench ONLY=previous PREVIOUS=../before"
        )
    builds = (THIS_BUILD, previous)
    load_before = os.getloadavg()[0]
    rows: Rows = {}
    chosen = os.environ.get("BENCH_PREVIOUS_PARTS", "").split(",")
    for part in (throughput, memory, startup, on_cluster, ledger):
        if chosen != [""] and part.__name__ not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            part(rows, builds, Path(folder))
    report(rows, load_before)


def report(rows: Rows, load_before: float) -> None:
    """Write the result files; exit with an error if a ratio is below the goal."""
    lines = [
        "# This build beside the previous one",
        "",
        f"Both builds in turn, {ROUNDS} rounds ({2 * ROUNDS} for startup, 2 for memory). Each "
        "row has medians of the values and of the rounds' ratios. More is better everywhere. The "
        "load average was "
        f"{load_before:.1f} before. {NOTE}".rstrip(),
        "",
        "| | this build | previous build | ratio |",
        "|---|---:|---:|---:|",
    ]
    missed = []
    for name, pairs in rows.items():
        ratio = median([ours / theirs for ours, theirs in pairs])
        ours, theirs = (median([pair[side] for pair in pairs]) for side in (0, 1))
        lines.append(f"| {name} | {ours:,.2f} | {theirs:,.2f} | {ratio:.3f} |")
        if ratio < GOAL:
            missed.append(f"{name} {ratio:.3f}")
    lines += ["", f"Goal: no ratio below {GOAL}."]
    save("previous", "\n".join(lines), rows)
    if missed:
        raise SystemExit(f"short of the goal: {'; '.join(missed)}")
