"""The cost of many event streams: 1,000 streams with 10 events a second each, on one executor."""

import json
import tempfile
from pathlib import Path

from benchmarks.lab import HYPERSCALE, run, save, target

STREAMS = 1000
DURATION_S = 20
CORES_MAX = 0.5

WORKFLOW = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, SSEResponse


class Load(Workflow):
    vus = {vus}
    duration = "{seconds}s"

    @step()
    async def events(self, url: URL = "{base}/sse/100/1000000") -> SSEResponse:
        return await self.client.sse.read(url, events=50)
"""


def main() -> None:
    with target() as base, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        file = place / "load.py"
        file.write_text(WORKFLOW.format(vus=STREAMS, seconds=DURATION_S, base=base))
        command = (str(HYPERSCALE), "run", str(file), "--workers", "1")
        done = run([*command, "--json", str(place / "r.json")])
        step = json.loads((place / "r.json").read_text())["workflows"][0]["steps"][0]
    cores = done.cpu_s / DURATION_S
    events = step["ok"] * 50
    text = (
        f"{STREAMS:,} streams with 10 events a second each for {DURATION_S} s: {cores:.2f} cores, "
        f"start-up included; {events:,} events in whole reads, {step['failed']} reads failed."
    )
    save("sse", text, {"cores": cores, "events": events})
    if cores > CORES_MAX or step["failed"]:
        raise SystemExit(f"{cores:.2f} cores: more than {CORES_MAX}")
