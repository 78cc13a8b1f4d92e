"""Is the load what was asked for? Rates, intervals, ramps and a target that stalls, as the target
saw them."""

import json
import math
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.arrival_log import ArrivalLog
from benchmarks.lab import HYPERSCALE, LOAD_CPU, fetch, run, save, target, target_process

CAPACITY_S = 5
RATE_S = 30
INTERVAL_USERS, INTERVAL_S = 200, 20
RAMP_USERS, RAMP_STAGE_S = 200, 10
STALL_RATE, STALL_S, STALL_RUN_S = 500, 2.0, 30

TEST = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse

class Load(Workflow):
    {settings}

    @step()
    async def page(self, url: URL = "{url}") -> HTTPResponse:
        return await self.client.http.get(url)
"""


# Title, goal, and the columns of each table: heading, cell.
TABLES: dict[str, tuple[str, str, dict[str, str]]] = {
    "at_70_percent": (
        f"A rate of 70 % of capacity for {RATE_S} s",
        "99 % of seconds within 1 % of asked, the total within 0.1 %",
        {
            "asked": "{asked_per_s:,.0f}/s",
            "seconds within 1 %": "{within_1_percent:.1%} of {seconds:.0f}",
            "worst second": "{worst_second_off:.2%} off",
            "total": "{total_off:.3%} off",
            "late": "{late:,.0f}",
            "dropped": "{dropped:,.0f}",
            "steal": "{steal_s:.2f} s",
        },
    ),
    "staggered": (
        f"{INTERVAL_USERS} users with an interval of 1 s",
        "20 ± 2 requests in 95 % of bins of 100 ms",
        {
            "bins within 20 ± 2": "{within_2_of_20:.1%} of {bins:.0f}",
            "fewest": "{fewest:.0f}",
            "most": "{most:.0f}",
        },
    ),
    "ramp": (
        f"Three stages of {RAMP_STAGE_S} s: to {RAMP_USERS} users, level, back to 0",
        "every second within 2 % of the peak",
        {
            "seconds within 2 %": "{within_2_percent_of_peak:.1%} of {seconds:.0f}",
            "worst second": "{worst_users_off:.1f} users off",
        },
    ),
    "stall": (
        f"A target that stalls for {STALL_S:.0f} s at {STALL_RATE}/s",
        "p99.9 from when an arrival was due within 2 % of the truth",
        {
            "truth": "{truth_p999_ms:,.0f} ms",
            "p99.9 from when due": "{p999_ms:,.0f} ms",
            "off": "{off:.2%}",
            "p99.9 from the send": "{service_p999_ms:,.0f} ms",
            "p50 from the send": "{service_p50_ms:.2f} ms",
            "dropped": "{dropped:,.0f}",
        },
    ),
}


def load(folder: Path, url: str, *settings: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a workflow with these settings on one core; return its result."""
    file, out = folder / "load.py", folder / "results.json"
    file.write_text(TEST.format(url=url, settings="\n    ".join(settings)))
    options = ("--workers", "1", "--ui", "none", "--json", out, "--out", folder, *more)
    run((HYPERSCALE, "run", file, *options))
    found: dict[str, Any] = json.loads(out.read_text())["workflows"][0]
    return found


def steal_s() -> float:
    """Seconds that the machine below took from all cores so far."""
    ticks: int = os.sysconf("SC_CLK_TCK")
    return int(Path("/proc/stat").read_text().split()[8]) / ticks


def at_70_percent(folder: Path, more: tuple[str, ...]) -> dict[str, float]:
    """Ask for 70 % of what the closed model reaches; compare each second with what was asked."""
    with target() as base:
        most = load(folder, base, "vus = 64", f'duration = "{CAPACITY_S}s"', more=more)
    rate = int(0.7 * most["rate_per_second"])
    with target() as base:
        before_s = steal_s()
        settings = (f'rate = "{rate}/s"', f'duration = "{RATE_S}s"', "max_vus = 500")
        found = load(folder, base, *settings, more=more)
        stolen_s = steal_s() - before_s
        counts = json.loads(fetch(f"{base}/counts"))
    seconds = [count for _, count in sorted(counts["seconds"].items())][1:-1]  # whole ones
    off = sorted(abs(count - rate) / rate for count in seconds)
    return {
        "asked_per_s": rate,
        "seconds": len(seconds),
        "within_1_percent": sum(each <= 0.01 for each in off) / len(off),
        "worst_second_off": off[-1],
        "total_off": abs(counts["total"] - rate * RATE_S) / (rate * RATE_S),
        "late": found["late"],
        "dropped": found["dropped"],
        "steal_s": stolen_s,
    }


def staggered(folder: Path, more: tuple[str, ...]) -> dict[str, float]:
    """200 users with an interval of 1 s: 20 iterations in every 100 ms."""
    with ArrivalLog() as log:
        settings = (f"vus = {INTERVAL_USERS}", 'interval = "1s"', f'duration = "{INTERVAL_S}s"')
        load(folder, log.url, *settings, more=more)
    bins = Counter(int((at_s - log.times_s[0]) * 10) for at_s in log.times_s)
    # The first second opens connections, the last bins may be cut.
    counts = [bins[place] for place in range(10, INTERVAL_S * 10 - 2)]
    wanted = INTERVAL_USERS / 10
    return {
        "bins": len(counts),
        "within_2_of_20": sum(abs(count - wanted) <= 2 for count in counts) / len(counts),
        "fewest": min(counts),
        "most": max(counts),
    }


def ramp(folder: Path, more: tuple[str, ...]) -> dict[str, float]:
    """Up, level, down. A user makes one request a second, so the requests of a second are between
    the users planned at its beginning and at its end."""
    stages = f'[("{RAMP_STAGE_S}s", {RAMP_USERS}), ("{RAMP_STAGE_S}s", {RAMP_USERS}), '
    stages += f'("{RAMP_STAGE_S}s", 0)]'
    with ArrivalLog() as log:
        load(folder, log.url, f"stages = {stages}", 'interval = "1s"', more=more)
    seen = Counter(int(at_s - log.times_s[0]) for at_s in log.times_s)
    off = []
    for second in range(3 * RAMP_STAGE_S):
        low, high = sorted((_planned(second), _planned(second + 1)))
        off.append(max(low - seen[second], seen[second] - high, 0.0))
    return {
        "seconds": len(off),
        "within_2_percent_of_peak": sum(each <= 0.02 * RAMP_USERS for each in off) / len(off),
        "worst_users_off": max(off),
    }


def _planned(at_s: float) -> float:
    """The users of the ramp at a moment."""
    up, down = at_s / RAMP_STAGE_S, (3 * RAMP_STAGE_S - at_s) / RAMP_STAGE_S
    return RAMP_USERS * min(1.0, up, down)


def stalled(folder: Path, more: tuple[str, ...]) -> dict[str, float]:
    """The target stands still for 2 s. Arrivals due meanwhile wait until its end: that is known."""
    with target_process() as (base, pid):

        def stall() -> None:
            wait_for_load(base)
            time.sleep(STALL_RUN_S / 3)
            os.kill(pid, signal.SIGSTOP)
            began_s = time.monotonic()
            time.sleep(STALL_S)
            os.kill(pid, signal.SIGCONT)
            stood_s.append(time.monotonic() - began_s)

        stood_s: list[float] = []
        thread = threading.Thread(target=stall)
        thread.start()
        settings = (f'rate = "{STALL_RATE}/s"', f'duration = "{STALL_RUN_S}s"', "max_vus = 2000")
        found = load(folder, base, *settings, more=more)
        thread.join()
    # The slowest arrivals are those due first in the stall, 1 / rate apart.
    slower = math.floor(0.001 * STALL_RATE * STALL_RUN_S)
    truth_ms = 1000 * (stood_s[0] - slower / STALL_RATE)
    return {
        "truth_p999_ms": truth_ms,
        "p999_ms": found["latency_ms"]["p999"],
        "off": abs(found["latency_ms"]["p999"] - truth_ms) / truth_ms,
        "service_p999_ms": found["service_ms"]["p999"],
        "service_p50_ms": found["service_ms"]["p50"],
        "dropped": found["dropped"],
    }


def wait_for_load(base: str) -> None:
    while json.loads(fetch(f"{base}/counts"))["total"] == 0:
        time.sleep(0.05)


def main() -> None:
    parts = {"at_70_percent": at_70_percent, "staggered": staggered, "ramp": ramp, "stall": stalled}
    seen: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in parts.items():
            seen[name] = {
                way: measure(Path(folder), more)
                for way, more in (("native", ()), ("Python", ("--no-compile",)))
            }
            print(f"  {name}: {seen[name]}", flush=True)
    save("load_models", report(seen), seen)


def report(seen: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [
        "# Is the load what was asked for?",
        "",
        f"One executor on CPU {LOAD_CPU}, the target on another; counted by the target. Load "
        f"average of the machine: {os.getloadavg()[1]:.1f}.",
    ]
    for name, (title, goal, columns) in TABLES.items():
        lines += ["", f"## {title}", "", f"Goal: {goal}.", ""]
        lines.append(f"| steps | {' | '.join(columns)} |")
        lines.append("|---" * (1 + len(columns)) + "|")
        for way, row in seen[name].items():
            cells = [text.format(**row) for text in columns.values()]
            lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)
