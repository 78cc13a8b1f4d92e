"""The files in benchmarks/results that soak tests write, section by section."""

import os
import platform
import time
from pathlib import Path

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MEMBERS = _RESULTS / "soak-members.txt"
CLUSTER = _RESULTS / "soak-cluster.txt"
GATES = _RESULTS / "soak-gates-cluster.txt"


class Report:
    """One results file. `write` replaces one section and keeps the others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else ""
        parts = [part for part in text.split("\n## ") if part.strip()]
        self._sections = {part.split("\n", 1)[0].removeprefix("## "): part for part in parts}

    def write(self, title: str, *lines: str) -> None:
        where = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}"
        where += f", load average {os.getloadavg()[0]:.1f}"
        when = time.strftime("%Y-%m-%d", time.gmtime())
        self._sections[title] = "\n".join([title, f"({when}, {where})", *lines, ""])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        parts = [self._sections[each].removeprefix("## ") for each in sorted(self._sections)]
        self._path.write_text("## " + "\n## ".join(parts))
        for line in (f"\n{title}", *lines):
            print(line)  # noqa: T201  what a soak is for


def cluster_report() -> Report:
    """Return the results file of the soak tests of clusters."""
    return Report(CLUSTER)


def gates_report() -> Report:
    """Return the results file of the soak tests of gates and datacenters."""
    return Report(GATES)
