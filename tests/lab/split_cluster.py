"""Clusters whose nodes are in network namespaces, with links between them that can be cut or slow.

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
from hyperscale.wire.cluster_secret import make_secret, write_secret_file
from tests.lab.cluster import Cluster
from tests.lab.loops import run_in_thread
from tests.lab.network import NetLab, Side

PORT = 9000  # each namespace has all of them to itself


@dataclass(frozen=True)
class Split:
    """How many managers and workers of one core each of two sides has, in one datacenter."""

    managers: tuple[int, int]
    workers: tuple[int, int]


@dataclass(frozen=True)
class Regions:
    """A gate and a datacenter in each of several regions; workers have one core."""

    count: int = 3
    managers: int = 1
    workers: int = 1


class SplitCluster(Cluster):
    """Looks like any other to tests, which are outside of all namespaces and reach every node."""

    def __init__(self, directory: Path, net: NetLab) -> None:
        super().__init__(directory, host=net.outside)
        self.net = net
        self._sides: dict[str, Side] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def side_of(self, node: str) -> Side:
        return self._sides[node]

    def heal(self) -> None:
        """Mend all links, end all jobs, and wait until each group is led by its preferred leader
        again."""
        self.net.link()
        self.net.mend()
        self.wait_ready()
        run_in_thread(self._end_all_jobs())
        self.wait_led()
        self.target.reset()

    def beyond(self) -> list[str]:
        """Return the nodes at end b."""
        return [name for name, side in self._sides.items() if side is self.net.b]

    # -- forming ----------------------------------------------------------------------------

    def split(self, split: Split) -> None:
        """Start one datacenter whose nodes are at both ends, a majority of managers at end a."""
        ends = (self.net.a, self.net.b)
        managers = self._rows("manager", ends, split.managers)
        workers = self._rows("worker", ends, split.workers)
        rows = ClusterFile(secret_file=self._secret(), datacenters=[DATACENTER], pid=os.getpid())
        self._add_datacenter(rows, managers, workers)
        self._formed(rows)

    def spread(self, regions: Regions) -> None:
        """Start a gate and a datacenter on each side."""
        sides = self.net.sides
        names = [f"dc{number + 1}" for number in range(regions.count)]
        rows = ClusterFile(secret_file=self._secret(), datacenters=names, pid=os.getpid())
        gates = self._rows("gate", sides, [1] * regions.count)
        addresses = [gate.tcp for gate in gates]
        founders = ("--founders", str(regions.count))
        rows.gates.extend(
            self._started(gate, "gate", addresses, rows.secret_file, founders) for gate in gates
        )
        for name, side in zip(names, sides, strict=True):
            managers = self._rows("manager", [side], [regions.managers], datacenter=name)
            workers = self._rows("worker", [side], [regions.workers], datacenter=name)
            self._add_datacenter(rows, managers, workers, gates=addresses)
        self._formed(rows)

    def _secret(self) -> str:
        (self.directory / "logs").mkdir(parents=True)
        secret_file = self.directory / "secret"
        write_secret_file(secret_file, make_secret())
        return str(secret_file)

    def _formed(self, rows: ClusterFile) -> None:
        write_cluster(self.directory, rows)
        self.wait_ready()

    def _rows(
        self, role: str, sides: Sequence[Side], counts: Sequence[int], *, datacenter: str = ""
    ) -> list[ClusterNode]:
        prefix = f"{datacenter}-" if datacenter else ""
        places = [side for side, count in zip(sides, counts, strict=True) for _ in range(count)]
        rows = []
        for index, side in enumerate(places):
            name = f"{prefix}{role}-{index + 1}"
            port = PORT + 2 * len(self._sides)
            self._sides[name] = side
            tcp, http = f"{side.address}:{port}", f"{side.address}:{port + 1}"
            is_gate = role == "gate"
            where = "" if is_gate else datacenter or DATACENTER
            rows.append(ClusterNode(id=name, pid=0, tcp=tcp, udp=tcp, http=http, datacenter=where))
        return rows

    def _add_datacenter(
        self,
        rows: ClusterFile,
        managers: list[ClusterNode],
        workers: list[ClusterNode],
        *,
        gates: Sequence[str] = (),
    ) -> None:
        """Start the nodes of a datacenter, from the main thread: they end with it."""
        seeds = [row.tcp for row in managers]
        where = ("--datacenter", managers[0].datacenter)
        registered = tuple(word for gate in gates for word in ("--gates-seeds", gate))
        founders = ("--founders", str(len(managers)), *where, *registered)
        for row in managers:
            rows.managers.append(self._started(row, "manager", seeds, rows.secret_file, founders))
        for row in workers:
            own = ("--cores", "1", *where)
            rows.workers.append(self._started(row, "worker", seeds, rows.secret_file, own))

    def _started(
        self, row: ClusterNode, role: str, seeds: list[str], secret_file: str, own: Sequence[str]
    ) -> ClusterNode:
        side = self._sides[row.id]
        port = row.tcp.rpartition(":")[2]
        argv = [
            *("ip", "netns", "exec", side.name),
            *(*PROGRAM, role, "--node-id", row.id, "--host", side.address),
            *("--port", port, "--http-port", row.http.rpartition(":")[2]),
            *("--secret-file", secret_file),
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
    """Run one datacenter at both ends of a link."""
    with NetLab(seed=1, outside=True) as net:
        cluster = SplitCluster(directory, net)
        try:
            cluster.split(split)
            yield cluster
        finally:
            cluster.end()


@contextlib.contextmanager
def region_cluster(directory: Path, regions: Regions) -> Iterator[SplitCluster]:
    """Run a gate and a datacenter in each of several regions."""
    with NetLab(sides=regions.count, seed=1, outside=True) as net:
        cluster = SplitCluster(directory, net)
        try:
            cluster.spread(regions)
            yield cluster
        finally:
            cluster.end()
