"""The system calls of real managers: what is acknowledged was on disks before."""

import asyncio
import re
import subprocess
import time
from pathlib import Path

import pytest

from hyperscale.jobs.committed.events import CancelRequested, encode
from tests.lab.ledger_clients import Forwarder
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster

COMMITS = 40
_SYNC = re.compile(r"(\d+\.\d+) (?:fsync|fdatasync)\(\d+<([^>]*)>\) += 0 <(\d+\.\d+)>")


@pytest.fixture
def strace() -> str:
    try:
        tried = subprocess.run(["strace", "-o", "/dev/null", "true"], check=False)
    except FileNotFoundError:
        pytest.skip("strace is not installed")
    if tried.returncode:
        pytest.skip("ptrace is not permitted here")
    return "strace"


def syncs(trace: Path) -> list[tuple[float, float]]:
    """When each sync of the ledger's database began and ended."""
    return [
        (float(at), float(at) + float(took))
        for at, path, took in _SYNC.findall(trace.read_text())
        if "/ledger/ledger.db" in path
    ]


@pytest.mark.parametrize("size", [1, 3])
def test_a_majority_syncs_between_a_command_and_its_acknowledgement(
    cluster: NodeCluster, strace: str, size: int
) -> None:
    class Traced(ManagerTier):
        def start(self, name: str, *flags: str, **options: object) -> object:
            trace = str(cluster.directory / f"{name}.strace")
            wrap = (strace, "-f", "-ttt", "-T", "-y", "-e", "trace=fsync,fdatasync", "-o", trace)
            return super().start(name, *flags, wrap=wrap, **options)

    tier = Traced(cluster, size)
    tier.wait_settled()
    body = encode(CancelRequested(job="dc.1-nobody", reason="a command like any other"))

    async def commit() -> list[tuple[float, float]]:
        times = []
        async with Forwarder(tier.addresses) as forwarder:
            for number in range(COMMITS):
                sent_s = time.time()
                await forwarder.command(1, "", body, via=number % size)
                times.append((sent_s, time.time()))
        return times

    acknowledged = asyncio.run(commit())
    for node in tier.nodes.values():
        assert node.stop() == 0
    synced = [syncs(cluster.directory / f"{name}.strace") for name in tier.names]
    for sent_s, told_s in acknowledged:
        # One at a time: whatever is synced in between covers this one.
        nodes = sum(
            any(sent_s <= began_s and ended_s <= told_s for began_s, ended_s in of_node)
            for of_node in synced
        )
        assert nodes > size // 2, f"acknowledged after {told_s - sent_s:.4f} s, {nodes} synced"
