"""From `hyperscale run` to the first request at the target."""

import socket
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.lab import HYPERSCALE, median, run, save
from benchmarks.throughput import PYTHON_WORKFLOW

RUNS = 5


def first_request_s() -> float:
    """Seconds to the first byte of a request at a listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "start.py"
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        file.write_text(PYTHON_WORKFLOW.format(base=base, vus=1, seconds=1))
        command = [str(HYPERSCALE), "run", str(file), "--ui", "none", "--out", folder]
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server.settimeout(30)
        connection, _ = server.accept()
        connection.recv(1)
        seconds = time.monotonic() - began_s
        connection.close()
        process.terminate()
        process.wait()
    return seconds


def one_request_cpu_s() -> float:
    """CPU seconds of a whole run that makes one request."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.py"
        text = PYTHON_WORKFLOW.format(base="http://127.0.0.1:9", vus=1, seconds=1)
        file.write_text(text.replace("vus = 1", "vus = 1\n    iterations = 1"))
        return run((HYPERSCALE, "run", file, "--ui", "none", "--out", folder), cpu=None).cpu_s


def main() -> None:
    seconds = [first_request_s() for _ in range(RUNS)]
    cpu_s = [one_request_cpu_s() for _ in range(RUNS)]
    lines = [
        "# Time to the first request",
        "",
        f"From the start of `hyperscale run` to the first byte at the target, {RUNS} runs, every "
        "core's executor started. The goal: best at most 1.5 s.",
        "",
        "| | best | median |",
        "|---|---|---|",
    ]
    for name, values in (("first request", seconds), ("CPU of a run of one request", cpu_s)):
        lines.append(f"| {name} | {min(values):.2f} s | {median(values):.2f} s |")
    save("startup", "\n".join(lines), {"seconds": seconds, "cpu_s": cpu_s})
