"""docs/workers.md lists every metric and every log event of a worker."""

import re
from pathlib import Path

from hyperscale.nodes import agent
from tests.lab.job_leader import worker
from tests.lab.loops import run

DOCUMENT = Path(__file__).parents[3] / "docs" / "workers.md"
CODE = Path(agent.__file__).parent


def test_every_metric_of_a_worker_is_listed(tmp_path: Path) -> None:
    served: set[str] = set()

    async def work() -> None:
        async with worker(tmp_path) as node:
            metrics = node.member.metrics().decode()
            served.update(re.findall(r"^# TYPE (hyperscale_worker_\S+)", metrics, re.MULTILINE))

    run(work)
    listed = set(re.findall(r"^\| `(hyperscale_\w+)`", DOCUMENT.read_text(), re.MULTILINE))
    assert served == listed


def test_every_log_event_is_listed() -> None:
    code = "\n".join(path.read_text() for path in CODE.glob("*.py"))
    logged = set(re.findall(r'_log\.\w+\((?:\s*#[^\n]*)?\s*"([a-z]+\.[a-z_]+)', code))
    assert len(logged) > 5
    text = DOCUMENT.read_text()
    assert not [event for event in sorted(logged) if f"`{event}`" not in text]
