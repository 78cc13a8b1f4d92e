"""docs/metrics.md lists what real nodes export, and what they export follows Prometheus' rules."""

import subprocess

from tests.lab.nodes import NodeCluster
from tests.telemetry.reference import collect, exported, section, tables


def test_the_page_lists_every_metric_that_nodes_export(cluster: NodeCluster) -> None:
    texts = collect(cluster)
    for title, table in tables(*(exported(text) for text in texts)):
        assert section(title) == table, "run python -m tests.telemetry.reference"
    for text in texts:
        command = ["promtool", "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
        assert all(each.about for each in exported(text).values())
