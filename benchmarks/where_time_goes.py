"""Where the time of a request goes: microseconds and instructions per part.

Instructions come from callgrind: the native loop with few and with many requests, the difference
per request, by function. They repeat to a percent on any machine. Microseconds are CPU times of
runs with fewer and with more seconds, the difference per request, so that start-up is not in them;
they depend on what else the machine does.
"""

import re
import resource
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.lab import HYPERSCALE, LOAD_CPU, ROOT, median, nginx, nginx_requests, run, save
from benchmarks.throughput import JSON_WORKFLOW, STATUS_WORKFLOW, WORKFLOW

USERS = 256
ROUNDS = 3
SECONDS = (2, 7)
REQUESTS = (2_000, 12_000)
LOOP = ROOT / "target" / "release" / "examples" / "closed_loop"

# The first pattern that a function matches names its part.
PARTS = (
    ("parse", re.compile(r"decoder::|httparse|memchr|memcmp")),
    ("record", re.compile(r"recorder|hdrhistogram|hist::")),
    ("program", re.compile(r"program::")),
    ("connection", re.compile(r"engine::|recv|send|epoll")),
)


def instructions(base: str, folder: Path) -> dict[str, float]:
    """Instructions per request of the native loop, by part; the kernel's are not counted."""
    package = ("--package", "hyperscale-core", "--example", LOOP.name)
    subprocess.run(["cargo", "build", "--release", "--locked", *package], cwd=ROOT, check=True)
    counted = []
    for requests in REQUESTS:
        out = folder / f"callgrind.{requests}"
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
        command = [*tool, str(LOOP), f"{base}/", "64", str(requests)]
        subprocess.run(command, check=True, capture_output=True)
        shown = ["callgrind_annotate", "--threshold=100", str(out)]
        lines = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
        counted.append(_by_part(lines))
    few, many = counted
    return {part: (many[part] - few[part]) / (REQUESTS[1] - REQUESTS[0]) for part in many}


def _by_part(lines: str) -> Counter[str]:
    found: Counter[str] = Counter()
    rows = re.compile(r"^\s*([\d,]+) \([ \d.]+%\)\s+\S+?:(.+)$", re.MULTILINE)
    for count, function in rows.findall(lines):
        part = next((name for name, pattern in PARTS if pattern.search(function)), "other")
        found[part] += int(count.replace(",", ""))
    return found


def microseconds(base: str, folder: Path, text: str, *options: str) -> tuple[float, float]:
    """CPU microseconds per request in user and in kernel mode, start-up left out."""
    seen = []
    for seconds in SECONDS:
        file = folder / "load.py"
        file.write_text(text.format(base=base, vus=USERS, seconds=seconds))
        more = ("--workers", "1", "--ui", "none", "--out", folder, *options)
        before, first = resource.getrusage(resource.RUSAGE_CHILDREN), nginx_requests(base)
        run((HYPERSCALE, "run", file, *more), cpu=LOAD_CPU)
        after, last = resource.getrusage(resource.RUSAGE_CHILDREN), nginx_requests(base)
        user_s = after.ru_utime - before.ru_utime
        seen.append((last - first - 1, user_s, after.ru_stime - before.ru_stime))
    (few, few_user_s, few_system_s), (many, many_user_s, many_system_s) = seen
    requests = many - few
    return (many_user_s - few_user_s) / requests * 1e6, (
        (many_system_s - few_system_s) / requests * 1e6
    )


def main() -> None:
    kinds = {
        "static": (WORKFLOW,),
        "Python, returns the response": (WORKFLOW, "--no-compile"),
        "Python, looks at the status": (STATUS_WORKFLOW,),
        "Python, JSON check": (JSON_WORKFLOW,),
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    with nginx() as base, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counted = instructions(base, folder)
        for _ in range(ROUNDS):
            for kind, (text, *options) in kinds.items():
                seen[kind].append(microseconds(base, folder, text, *options))
                print(f"  {kind}: {seen[kind][-1]}", flush=True)
    lines = [
        "# Where the time of a request goes",
        "",
        "Instructions per request of the native loop in user mode, by part (callgrind):",
        "",
        "| part | instructions |",
        "|---|---|",
        *(f"| {part} | {count:,.0f} |" for part, count in sorted(counted.items())),
        f"| together | {sum(counted.values()):,.0f} |",
        "",
        f"CPU microseconds per request, {USERS} users, 12 bytes, start-up left out (medians of "
        f"{ROUNDS}):",
        "",
        "| steps | user | kernel | together |",
        "|---|---|---|---|",
    ]
    for kind, times in seen.items():
        user, kernel = (median([each[place] for each in times]) for place in (0, 1))
        both = median([sum(each) for each in times])
        lines.append(f"| {kind} | {user:.2f} | {kernel:.2f} | {both:.2f} |")
    save("where_time_goes", "\n".join(lines), {"instructions": counted, "microseconds": seen})
