"""A cluster whose ports are flooded with connections that say nothing, from another address."""

import json
import time
from urllib.request import urlopen

import pytest

from tests.lab.cluster import Cluster
from tests.lab.siege import besieged
from tests.lab.soak_report import cluster_report


def _under_siege(cluster: Cluster, *, seconds: float, silent: int, new_per_s: int) -> list[float]:
    """Use a cluster under siege; return how long /healthz took, in seconds."""
    managers = cluster.file.managers
    doors = [address for node in managers for address in (node.tcp, node.http)]
    where = ("--dir", str(cluster.directory))
    took_s: list[float] = []
    with besieged(doors, seconds=seconds + 30, silent=silent, new_per_s=new_per_s):
        file = cluster.paced(vus=6, duration=f"{seconds:.0f}s")
        submitted = cluster.run("submit", str(file), *where, "--detach")
        assert submitted.returncode == 0, submitted.stderr
        job = submitted.stdout.split()[-1]
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            for node in managers:
                began_s = time.monotonic()
                with urlopen(f"http://{node.http}/healthz", timeout=10) as answer:
                    assert answer.status == 200
                took_s.append(time.monotonic() - began_s)
        watched = cluster.run("watch", job, *where, "--json", "-", "--ui", "none")
        assert watched.returncode == 0, watched.stderr
        result = json.loads(watched.stdout)
        assert (result["status"], result["attempts"]) == ("completed", 3)
        endless = cluster.run("submit", str(cluster.paced(duration="10m")), *where, "--detach")
        job = endless.stdout.split()[-1]
        cancelled = cluster.run("cancel", job, *where)
        assert cancelled.returncode == 0, cancelled.stderr
    return took_s


def test_commands_and_probes_work_under_siege(cluster: Cluster) -> None:
    _under_siege(cluster, seconds=4, silent=300, new_per_s=100)


@pytest.mark.soak
def test_a_siege_of_a_minute_disturbs_no_job(cluster: Cluster) -> None:
    took_s = sorted(_under_siege(cluster, seconds=60, silent=1_000, new_per_s=200))
    cluster_report().write(
        "1,000 silent and 200 new connections a second on every port of every manager",
        f"submit, watch and cancel worked, the job was completed with its first attempts; "
        f"{len(took_s):,} probes of /healthz: median {took_s[len(took_s) // 2] * 1000:.0f} ms, "
        f"slowest {took_s[-1] * 1000:.0f} ms",
    )
