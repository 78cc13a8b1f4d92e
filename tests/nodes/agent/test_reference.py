"""docs/workers.md lists every metric of a worker."""

import re
from pathlib import Path

from tests.lab.job_leader import worker
from tests.lab.loops import run

DOCUMENT = Path(__file__).parents[3] / "docs" / "workers.md"


def test_every_metric_of_a_worker_is_listed(tmp_path: Path) -> None:
    served: set[str] = set()

    async def work() -> None:
        async with worker(tmp_path) as node:
            metrics = node.member.metrics().decode()
            served.update(re.findall(r"^# TYPE (hyperscale_worker_\S+)", metrics, re.MULTILINE))

    run(work)
    listed = set(re.findall(r"^\| `(hyperscale_\w+)`", DOCUMENT.read_text(), re.MULTILINE))
    assert served == listed
