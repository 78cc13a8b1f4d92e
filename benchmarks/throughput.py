"""Requests per CPU second on nginx: static and Python steps beside wrk, k6 and Locust."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.lab import HYPERSCALE, PEERS, interleave, median, nginx, nginx_requests, run, save

VUS = 100
DURATION_S = 8
ROUNDS = 3

WORKFLOW = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse


class Load(Workflow):
    vus = {vus}
    duration = "{seconds}s"

    @step()
    async def root(self, url: URL = "{base}/") -> HTTPResponse:
        return await self.client.http.get(url)
"""

# One step that reads its response and one with a check: nothing here can be compiled away.
PYTHON_WORKFLOW = """
from hyperscale import Workflow, check, step
from hyperscale.testing import URL, HTTPResponse


class Load(Workflow):
    vus = {vus}
    duration = "{seconds}s"

    @step()
    async def root(self, url: URL = "{base}/") -> HTTPResponse:
        response = await self.client.http.get(url)
        if response.status != 200:
            raise ValueError("unexpected status")
        return response

    @check()
    def is_hello(self, root: HTTPResponse) -> bool:
        return root.text.startswith("hello")
"""

K6_SCRIPT = """
import http from 'k6/http';
import {{ check }} from 'k6';
export const options = {{ vus: {vus}, duration: '{seconds}s' }};
export default function () {{
  const response = http.get('{base}/');
  check(response, {{ 'is hello': (r) => r.body.startsWith('hello') }});
}}
"""

LOCUST_FILE = """
from locust import FastHttpUser, task


class Load(FastHttpUser):
    host = "{base}"

    @task
    def root(self):
        with self.client.get("/", catch_response=True) as response:
            if not response.text.startswith("hello"):
                response.failure("unexpected body")
"""


def main() -> None:
    with nginx() as base, tempfile.TemporaryDirectory() as folder:
        names = {"base": base, "vus": VUS, "seconds": DURATION_S}
        files = {}
        for name, text in (
            ("static.py", WORKFLOW),
            ("python.py", PYTHON_WORKFLOW),
            ("k6.js", K6_SCRIPT),
            ("locustfile.py", LOCUST_FILE),
        ):
            files[name] = Path(folder) / name
            files[name].write_text(text.format(**names))

        def per_cpu_second(*command: str | Path) -> Callable[[], float]:
            def measure() -> float:
                before = nginx_requests(base)
                usage = run(command)
                return (nginx_requests(base) - before - 1) / usage.cpu_s

            return measure

        def hyperscale(name: str, *more: str) -> Callable[[], float]:
            options = ("--workers", "1", "--ui", "none", "--out", folder, *more)
            return per_cpu_second(HYPERSCALE, "run", files[name], *options)

        tools = {
            "wrk": per_cpu_second("wrk", "-t1", f"-c{VUS}", f"-d{DURATION_S}s", f"{base}/"),
            "hyperscale, static": hyperscale("static.py"),
            "hyperscale, not compiled": hyperscale("static.py", "--no-compile"),
            "hyperscale, Python": hyperscale("python.py"),
            "k6": per_cpu_second(PEERS / "k6", "run", "--quiet", files["k6.js"]),
            "locust": per_cpu_second(
                *(PEERS / "locust", "-f", files["locustfile.py"], "--headless", "--only-summary"),
                *("-u", str(VUS), "-r", str(VUS), "-t", f"{DURATION_S}s"),
            ),
        }
        seen = interleave(ROUNDS, tools)
    middle = {name: median(values) for name, values in seen.items()}
    lines = [
        "# Requests per CPU second",
        "",
        f"GET of 12 bytes from a one-worker nginx, {VUS} users, {DURATION_S} s a run, {ROUNDS} "
        "interleaved rounds, medians. CPU seconds are the tool's own, all its processes and its",
        "start-up included; requests are nginx's count. `static` steps run natively; `not",
        "compiled` is the same file with `--no-compile`; `Python` reads and checks every body,",
        "as k6 and Locust do here.",
        "",
        "| tool | requests per CPU second | to wrk | to k6 |",
        "|---|---|---|---|",
    ]
    for name, value in middle.items():
        to_wrk, to_k6 = value / middle["wrk"], value / middle["k6"]
        lines.append(f"| {name} | {value:,.0f} | {to_wrk:.2f}x | {to_k6:.1f}x |")
    save("throughput", "\n".join(lines), seen)
