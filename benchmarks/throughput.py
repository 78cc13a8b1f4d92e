"""Requests per CPU second on nginx: static and Python steps beside wrk, k6 and Locust.

`BENCH_GROUPS="12 bytes,JSON"` measures only these groups, and shows the others as they were last
measured. `WORKFLOW` and `PYTHON_WORKFLOW` are used by other benchmarks, too.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from benchmarks.lab import (
    HYPERSCALE,
    PEERS,
    RESULTS,
    interleave,
    median,
    nginx,
    nginx_requests,
    run,
    save,
    steal_s,
)

VUS = 256
DURATION_S = int(os.environ.get("BENCH_SECONDS", "15"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
GROUPS = os.environ.get("BENCH_GROUPS", "")

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

TLS_WORKFLOW = WORKFLOW.replace("get(url)", "get(url, verify=False)")

# The step looks at its response, so it cannot be compiled.
STATUS_WORKFLOW = """
from hyperscale import Workflow, step
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
"""

JSON_WORKFLOW = """
from hyperscale import Workflow, check, step
from hyperscale.testing import URL, HTTPResponse


class Load(Workflow):
    vus = {vus}
    duration = "{seconds}s"

    @step()
    async def root(self, url: URL = "{base}/json") -> HTTPResponse:
        response = await self.client.http.get(url)
        if response.status != 200:
            raise ValueError("unexpected status")
        return response

    @check()
    def is_ok(self, root: HTTPResponse) -> bool:
        return root.json()["ok"] is True
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
  check(response, {{ 'is ok': (r) => r.status === 200 }});
}}
"""

LOCUST_FILE = """
from locust import FastHttpUser, task


class Load(FastHttpUser):
    host = "{base}"

    @task
    def root(self):
        with self.client.get("/", catch_response=True) as response:
            if response.status_code != 200:
                response.failure("unexpected status")
"""

# Each group: the tools that take turns, the first of which is the measure of the others.
Tool = Callable[[], float]


class Group(TypedDict):
    """What a group yielded."""

    tools: dict[str, list[float]]
    seconds: int
    busy: str


def per_cpu_second(base: str, *command: str | Path) -> Tool:
    def measure() -> float:
        before = nginx_requests(base)
        usage = run(command)
        return (nginx_requests(base) - before - 1) / usage.cpu_s

    return measure


class Runs:
    """Commands against one nginx."""

    def __init__(self, base: str, folder: Path) -> None:
        self.base = base
        self._folder = folder
        self._files = 0

    def file(self, text: str, suffix: str, base: str) -> Path:
        self._files += 1
        path = self._folder / f"load_{self._files}{suffix}"
        path.write_text(text.format(base=base, vus=VUS, seconds=DURATION_S))
        return path

    def wrk(self, path: str = "/") -> Tool:
        url = f"{self.base}{path}"
        return per_cpu_second(self.base, "wrk", "-t1", f"-c{VUS}", f"-d{DURATION_S}s", url)

    def hyperscale(self, text: str, *more: str, path: str = "", workers: int = 1) -> Tool:
        text = text.replace('{base}/"', f'{{base}}{path or "/"}"')
        file = self.file(text, ".py", self.base)
        options = ("--workers", str(workers), "--ui", "none", "--out", self._folder, *more)
        return per_cpu_second(self.base, HYPERSCALE, "run", file, *options)

    def k6(self) -> Tool:
        script = self.file(K6_SCRIPT, ".js", self.base)
        return per_cpu_second(self.base, PEERS / "k6", "run", "--quiet", script)

    def locust(self) -> Tool:
        file = self.file(LOCUST_FILE, ".py", self.base)
        options = ("--headless", "--only-summary", "-u", str(VUS), "-r", str(VUS))
        command = (PEERS / "locust", "-f", file, *options, "-t", f"{DURATION_S}s")
        return per_cpu_second(self.base, *command)


def groups(plain: Runs, tls: Runs) -> dict[str, dict[str, Tool]]:
    return {
        "12 bytes": {
            "wrk": plain.wrk(),
            "static": plain.hyperscale(WORKFLOW),
            "Python, looks at the status": plain.hyperscale(STATUS_WORKFLOW),
            "k6, looks at the status": plain.k6(),
            "Locust FastHttpUser, looks at the status": plain.locust(),
        },
        "JSON": {
            "wrk": plain.wrk("/json"),
            "Python, JSON check on every body": plain.hyperscale(JSON_WORKFLOW),
        },
        "TLS 1.3": {"wrk": tls.wrk(), "static": tls.hyperscale(TLS_WORKFLOW)},
        "10 KB": {
            "wrk": plain.wrk("/files/10k"),
            "static": plain.hyperscale(WORKFLOW, path="/files/10k"),
        },
        "100 KB": {
            "wrk": plain.wrk("/files/100k"),
            "static": plain.hyperscale(WORKFLOW, path="/files/100k"),
        },
        "executors": {
            "one executor, static": plain.hyperscale(WORKFLOW),
            "two executors, static": plain.hyperscale(WORKFLOW, workers=2),
        },
    }


def measured(name: str, tools: dict[str, Tool]) -> Group:
    """Runs one group. Notes how busy the machine was."""
    print(f" {name}", flush=True)
    stolen_s = steal_s()
    found = interleave(ROUNDS, tools)
    busy = f"load {os.getloadavg()[0]:.1f}, {steal_s() - stolen_s:.1f} CPU-s stolen"
    return {"tools": found, "seconds": DURATION_S, "busy": busy}


def main() -> None:
    file = RESULTS / "throughput.json"
    known = json.loads(file.read_text()) if GROUPS and file.exists() else {}
    seen: dict[str, Group] = known.get("groups", {})
    with nginx() as base, nginx(tls=True) as tls_base, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tls").mkdir()
        made = groups(Runs(base, Path(folder)), Runs(tls_base, Path(folder) / "tls"))
        chosen = GROUPS.split(",") if GROUPS else list(made)
        for name in chosen:
            seen[name] = measured(name, made[name])
    lines = [
        "# Requests per CPU second",
        "",
        f"GET from a one-worker nginx, {VUS} users, interleaved rounds. CPU seconds are the",
        "tool's own, all its processes and its start-up included; requests are nginx's count. The",
        "ratio is the median of the rounds' ratios to the first tool of the group. `static` steps",
        "run natively. Busy: the load average of a minute at the end of the group, and what the",
        "host gave to others meanwhile.",
        "",
        "| group | tool | rounds | requests per CPU second | ratio | busy |",
        "|---|---|---|---|---|---|",
    ]
    for group, result in seen.items():
        first = next(iter(result["tools"].values()))
        for name, values in result["tools"].items():
            ratio = median([each / measure for each, measure in zip(values, first, strict=True)])
            rounds = f"{len(values)} x {result['seconds']} s"
            lines.append(
                f"| {group} | {name} | {rounds} | {median(values):,.0f} | {ratio:.2f}x "
                f"| {result['busy']} |"
            )
    small = seen["12 bytes"]["tools"] if "12 bytes" in seen else {}
    for name in ("k6, looks at the status", "Locust FastHttpUser, looks at the status"):
        if name in small:
            python = small["Python, looks at the status"]
            times = median([each / other for each, other in zip(python, small[name], strict=True)])
            peer = name.partition(",")[0]
            lines += ["", f"The Python step does {times:.1f} times as much as {peer}."]
    save("throughput", "\n".join(lines), {"groups": seen})
