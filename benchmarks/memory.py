"""Memory of a virtual user with a kept-alive connection: 19,000 of them in one executor.

Every user must have had a response; a busy machine needs more time for that (`BENCH_SECONDS=60`).
"""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.lab import HYPERSCALE, save, target
from benchmarks.throughput import PYTHON_WORKFLOW, WORKFLOW
from hyperscale.lab.node_processes import children_of

COUNTS = (100, 19_000)
DURATION_S = int(os.environ.get("BENCH_SECONDS", "12"))


def executor_rss_peak(vus: int, text: str, base: str, hyperscale: Path = HYPERSCALE) -> int:
    """Largest resident size of the one executor while `vus` users loop over a slow route."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.py"
        # Every user has a request under way most of the time, and keeps its connection.
        file.write_text(text.format(base=f"{base}/delay/1000?", vus=vus, seconds=DURATION_S))
        out = Path(folder) / "results.json"
        command = [str(hyperscale), "run", str(file), "--workers", "1", "--ui", "none"]
        command += ["--json", str(out), "--out", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        peak = 0
        while process.poll() is None:
            for child in children_of(process.pid):
                peak = max(peak, _rss_bytes(child))
            time.sleep(0.1)
        step = json.loads(out.read_text())["workflows"][0]["steps"][0]
        if step["ok"] < vus or step["failed"]:
            raise SystemExit(
                f"{vus} users: {step['ok']} ok, {step['failed']} failed: {step['errors']}"
            )
        return peak


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError):
        return 0


def bytes_per_user(few: int, many: int) -> float:
    """Return what each user beyond the few costs, from the peaks with few and with many users."""
    return (many - few) / (COUNTS[1] - COUNTS[0])


def main() -> None:
    rows = {}
    with target() as base:
        for name, text in (("static", WORKFLOW), ("Python", PYTHON_WORKFLOW)):
            few, many = (executor_rss_peak(vus, text, base) for vus in COUNTS)
            rows[name] = (few, many, bytes_per_user(few, many))
            print(f"  {name}: {rows[name][2]:,.0f} bytes a user", flush=True)
    lines = [
        "# Memory per virtual user",
        "",
        f"Peak resident size of one executor with {COUNTS[0]:,} and with {COUNTS[1]:,} users, each "
        "with its kept-alive connection; the difference, per user. The goal: at most 1.5 KB for "
        "static steps, 4 KB for Python steps.",
        "",
        f"| steps | {COUNTS[0]:,} users | {COUNTS[1]:,} users | per user |",
        "|---|---|---|---|",
    ]
    for name, (few, many, each) in rows.items():
        lines.append(
            f"| {name} | {few / 1e6:.1f} MB | {many / 1e6:.1f} MB | {each / 1000:.2f} KB |"
        )
    save("memory", "\n".join(lines), rows)
