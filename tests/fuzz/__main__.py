"""`python -m tests.fuzz [TARGET ...]`: fuzzes every decoder that faces the network.

`FUZZ_SECONDS` (660 unless set) is the time for all targets together. With the fuzzer of
`requirements/fuzz.txt` in place each target runs under libFuzzer, guided by coverage; without
it under the small mutating fuzzer here. What was run goes to `results/`, what was found to
`found/`, where the tests replay it.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.mutate import fuzz
from tests.fuzz.targets import TARGETS, seeds

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOUND = HERE / "found"
RESULTS = HERE / "results"
GUIDE = ROOT / ".fuzz-packages"
SECONDS = float(os.environ.get("FUZZ_SECONDS", "660"))


def guided(name: str, seconds: float) -> dict[str, object]:
    """A target under libFuzzer; its last line of statistics."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for number, data in enumerate(seeds(name)):
            (Path(folder) / f"seed-{number}").write_bytes(data)
        before = set(FOUND.iterdir())
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.fuzz.guided",
                name,
                folder,
                f"-max_total_time={max(1, round(seconds))}",
                "-max_len=4096",
                "-timeout=10",
                "-rss_limit_mb=2048",
                "-print_final_stats=1",
                f"-artifact_prefix={FOUND}/{name}-",
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(GUIDE)},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    output = done.stdout + done.stderr
    runs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", output)
    coverage = re.findall(r"cov: (\d+)", output)
    found = []
    for path in sorted(set(FOUND.iterdir()) - before):
        found.append(str(path.rename(path.with_name(path.name + ".bin")).relative_to(ROOT)))
    if done.returncode or found:
        sys.stderr.write(output[-6000:])
    return {
        "target": name,
        "how": "coverage-guided",
        "runs": int(runs[-1]) if runs else 0,
        "coverage": int(coverage[-1]) if coverage else 0,
        "found": found or (["it ended badly, see the output"] if done.returncode else []),
    }


def unguided(name: str, seconds: float) -> dict[str, object]:
    found = []
    runs, until_s, seed = 0, time.monotonic() + seconds, int(time.time())
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            runs += fuzz(name, seconds=min(left_s, 10), seed=seed)
            seed += 1
    except Exception as error:  # noqa: BLE001  whatever it is, it is a finding
        note = error.__notes__[-1]
        path = FOUND / f"{name}-{seed}.bin"
        path.write_bytes(bytes.fromhex(note.rpartition(" ")[2]))
        found = [str(path.relative_to(ROOT))]
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n{note}\n")
    return {"target": name, "how": "mutation", "runs": runs, "coverage": 0, "found": found}


def report(rows: list[dict[str, object]], seconds: float) -> str:
    lines = [
        "# Fuzzing of the decoders that face the network",
        "",
        f"{seconds:.0f} seconds in all; a finding is any exception that is not a refusal, and any "
        "oracle that does not hold (see `targets.py`).",
        "",
        "| target | how | runs | coverage (edges) | found |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        found = row["found"] or "nothing"
        lines.append(
            f"| {row['target']} | {row['how']} | {row['runs']:,} | {row['coverage'] or '-'} "
            f"| {found} |"
        )
    lines += [
        "",
        f"Machine: {platform.machine()}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}. Reproduce: `make fuzz`.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    names = sys.argv[1:] or list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise SystemExit(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    run = guided if (GUIDE / "atheris").exists() else unguided
    FOUND.mkdir(exist_ok=True)
    rows, began_s = [], time.monotonic()
    for name in names:
        row = run(name, SECONDS / len(names))
        rows.append(row)
        sys.stdout.write(f"{name:<16} {row['runs']:>12,} runs   {row['found'] or 'nothing'}\n")
        sys.stdout.flush()
    seconds = time.monotonic() - began_s
    RESULTS.mkdir(exist_ok=True)
    stem = "fuzz" if names == list(TARGETS) else f"fuzz-{'-'.join(names)}"
    (RESULTS / f"{stem}.md").write_text(report(rows, seconds))
    data = {"seconds": seconds, "targets": rows}
    (RESULTS / f"{stem}.json").write_text(json.dumps(data, indent=1) + "\n")
    return 1 if any(row["found"] for row in rows) else 0


sys.exit(main())
