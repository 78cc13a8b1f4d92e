"""A cluster whose nodes are at two ends of a link that can be cut, with a target both ends reach.

The control plane goes through the relay of `tests.lab.relay`; the load does not: a worker that is
cut off could go on loading the target, and what the target counts shows whether it did.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hyperscale.client.cluster_file import ClusterFile, ClusterNode, write_cluster
from hyperscale.lab.layout import DATACENTER, PROGRAM
from hyperscale.lab.node_processes import start_node
from hyperscale.lab.readiness import why_not_ready
from hyperscale.wire.cluster_secret import make_secret, write_secret_file
from tests.lab.cluster import Cluster
from tests.lab.network import NetLab, Side
from tests.lab.waiting import until

PORT = 9000  # each namespace has all of them to itself


@dataclass(frozen=True)
class Split:
    """How many managers and workers of one core each side has, the first majority on side a."""

    managers: tuple[int, int]
    workers: tuple[int, int]


class SplitCluster(Cluster):
    """Looks like any other to tests, which are outside of both ends and reach every node."""

    def __init__(self, directory: Path, net: NetLab) -> None:
        super().__init__(directory, host=net.outside)
        self.net = net
        self._sides: dict[str, Side] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def heal(self) -> None:
        """Everything as it is when nothing has happened for a while: what is measured is the
        cut, not a change of leaders that a former one, or the cluster's beginning, has left."""
        self.net.link()
        self.net.mend()
        self.wait_ready()
        self.wait_led()
        self.target.reset()

    def beyond(self) -> list[str]:
        """The nodes at end b."""
        return [name for name, side in self._sides.items() if side is self.net.b]

    def form(self, split: Split) -> None:
        """Starts them all. From the main thread: they live no longer than it does."""
        (self.directory / "logs").mkdir(parents=True)
        secret_file = self.directory / "secret"
        write_secret_file(secret_file, make_secret())
        managers = self._rows("manager", split.managers)
        workers = self._rows("worker", split.workers)
        seeds = [row.tcp for row in managers]
        started = [
            self._started(row, seeds, len(managers), secret_file) for row in (*managers, *workers)
        ]
        rows = ClusterFile(
            secret_file=str(secret_file),
            managers=started[: len(managers)],
            workers=started[len(managers) :],
            pid=os.getpid(),
            datacenters=[DATACENTER],
        )
        write_cluster(self.directory, rows)
        until(lambda: not any(map(why_not_ready, rows.nodes)), what="all nodes are ready")

    def _rows(self, role: str, counts: Sequence[int]) -> list[ClusterNode]:
        sides = [self.net.a] * counts[0] + [self.net.b] * counts[1]
        rows = []
        for index, side in enumerate(sides):
            name = f"{role}-{index + 1}"
            port = PORT + 2 * len(self._sides)
            self._sides[name] = side
            tcp, http = f"{side.address}:{port}", f"{side.address}:{port + 1}"
            rows.append(
                ClusterNode(id=name, pid=0, tcp=tcp, udp=tcp, http=http, datacenter=DATACENTER)
            )
        return rows

    def _started(
        self, row: ClusterNode, seeds: list[str], founders: int, secret_file: Path
    ) -> ClusterNode:
        role, side = row.id.partition("-")[0], self._sides[row.id]
        own = {"manager": ["--founders", str(founders)], "worker": ["--cores", "1"]}[role]
        port = row.tcp.rpartition(":")[2]
        argv = [
            *("ip", "netns", "exec", side.name),
            *(*PROGRAM, role, "--node-id", row.id, "--host", side.address),
            *("--port", port, "--http-port", row.http.rpartition(":")[2]),
            *("--secret-file", str(secret_file)),
            *("--data-dir", str(self.directory / "data" / row.id), *own),
            *(word for seed in seeds if seed != row.tcp for word in ("--seed", seed)),
        ]
        process = start_node(argv, (), self.directory / "logs" / f"{row.id}.log")
        self._processes.append(process)
        return msgspec.structs.replace(row, pid=process.pid, argv=argv)

    def end(self) -> None:
        self.target.stop()
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def split_cluster(directory: Path, split: Split) -> Iterator[SplitCluster]:
    with NetLab(seed=1, outside=True) as net:
        cluster = SplitCluster(directory, net)
        try:
            cluster.form(split)
            yield cluster
        finally:
            cluster.end()
