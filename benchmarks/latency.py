"""Are latencies honest? `/delay/50` with 200 users, beside wrk, in turns."""

import json
import re
import tempfile
from pathlib import Path

from benchmarks.lab import HYPERSCALE, interleave, median, run, save, target
from benchmarks.throughput import WORKFLOW

VUS = 200
DURATION_S = 5
ROUNDS = 5

_UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


def wrk_percentile_ms(output: str, percentile: int) -> float:
    found = re.search(rf"\s{percentile}%\s+([\d.]+)(us|ms|s)\b", output)
    if not found:
        raise SystemExit(f"wrk printed no {percentile} % line:\n{output}")
    return float(found.group(1)) * _UNITS_MS[found.group(2)]


def main() -> None:
    p99_ms: dict[str, list[float]] = {"wrk": [], "hyperscale, static": [], "hyperscale, Python": []}
    with target() as base, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "delay.py"
        file.write_text(WORKFLOW.format(base=f"{base}/delay/50?", vus=VUS, seconds=DURATION_S))

        def wrk() -> float:
            command = (
                "wrk",
                "-t1",
                f"-c{VUS}",
                f"-d{DURATION_S}s",
                "--latency",
                f"{base}/delay/50",
            )
            output = run(command).output
            p99_ms["wrk"].append(wrk_percentile_ms(output, 99))
            return wrk_percentile_ms(output, 50) * 1000

        def hyperscale(name: str, *more: str) -> float:
            out = Path(folder) / "results.json"
            options = ("--workers", "1", "--ui", "none", "--json", out, "--out", folder, *more)
            run((HYPERSCALE, "run", file, *options))
            latency = json.loads(out.read_text())["workflows"][0]["steps"][0]["latency_ms"]
            p99_ms[name].append(latency["p99"])
            p50_us: float = latency["p50"] * 1000
            return p50_us

        seen = interleave(
            ROUNDS,
            {
                "wrk": wrk,
                "hyperscale, static": lambda: hyperscale("hyperscale, static"),
                "hyperscale, Python": lambda: hyperscale("hyperscale, Python", "--no-compile"),
            },
        )
    lines = [
        "# Latency beside wrk",
        "",
        f"`/delay/50` of the built-in target, {VUS} users, {DURATION_S} s a run, {ROUNDS} "
        "interleaved rounds, medians. The goal: p50 within 1 ms and p99 within 2 ms of wrk's.",
        "",
        "| tool | p50 | over wrk | p99 | over wrk |",
        "|---|---|---|---|---|",
    ]
    p50_ms = {name: median(values) / 1000 for name, values in seen.items()}
    for name, p50 in p50_ms.items():
        p99 = median(p99_ms[name])
        over = (p50 - p50_ms["wrk"], p99 - median(p99_ms["wrk"]))
        lines.append(
            f"| {name} | {p50:.2f} ms | {over[0]:+.2f} ms | {p99:.2f} ms | {over[1]:+.2f} ms |"
        )
    save("latency", "\n".join(lines), {"p50_us": seen, "p99_ms": p99_ms})
