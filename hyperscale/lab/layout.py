"""The layout of a local cluster: names, ports, CPUs and command lines, before nodes start."""

import os
import random
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import TypedDict

import msgspec
from msgspec import Struct

from hyperscale.client.cluster_file import ClusterFile, ClusterNode
from hyperscale.config.addresses import split_address
from hyperscale.errors import InputError

HOST = "127.0.0.1"
DATACENTER = "default"
"""The datacenter of a cluster without gates."""
# Below the ports of outgoing connections, so that a node that is down keeps its port.
_PORTS_LOW, _PORTS_HIGH = 12_000, 31_000
_TRIES = 200

PROGRAM = (sys.executable, "-P", "-m", "hyperscale.cli.main")  # never from the current directory


class ClusterOptions(TypedDict, total=False):
    """What the user chose. None or absent: as the cluster was before, or the default."""

    gates: int | None
    datacenters: int | None
    managers: int | None
    workers: int | None
    cores: int | None
    base_port: int | None
    config: Path | None


class ClusterShape(Struct, frozen=True, kw_only=True):
    """How many nodes a cluster has, and their options."""

    gates: int = 0
    datacenters: int = 1
    managers: int = 3  # of each datacenter, as are the workers
    workers: int = 3
    cores: int = 1
    base_port: int | None = None
    config: Path | None = None  # settings for all nodes

    @property
    def ports(self) -> int:
        """Return how many ports the nodes need."""
        return 2 * (self.gates + self.datacenters * (self.managers + self.workers))

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of nodes, which a directory keeps."""
        return (self.gates, self.datacenters, self.managers, self.workers)

    @property
    def flags(self) -> str:
        """Return the flags that ask for these numbers of nodes."""
        tiers = f"--gates {self.gates} --datacenters {self.datacenters} " if self.gates else ""
        return f"{tiers}--managers {self.managers} --workers {self.workers}"


def shape_of(wanted: ClusterOptions, before: ClusterFile | None = None) -> ClusterShape:
    """Complete the options; `before` is the cluster that the directory holds."""
    former = ClusterShape() if before is None else former_shape(before)
    if former.base_port is not None:
        ports = range(former.base_port, former.base_port + former.ports)
        if not all(map(is_free, ports)):
            former = msgspec.structs.replace(former, base_port=None)
    chosen = {name: value for name, value in wanted.items() if value is not None}
    shape = msgspec.structs.replace(former, **chosen)
    if shape.datacenters > 1 and not shape.gates:
        raise InputError(
            f"--datacenters: {shape.datacenters} datacenters need gates, which split jobs over "
            "them",
            hint="add --gates 1 or more",
        )
    return shape


def former_shape(before: ClusterFile) -> ClusterShape:
    """Return the shape of a cluster that exists."""

    def value_of(rows: Sequence[ClusterNode], flag: str) -> str:
        argv = rows[0].argv if rows else []
        return argv[argv.index(flag) + 1] if flag in argv[:-1] else ""

    cores, config = value_of(before.workers, "--cores"), value_of(before.managers, "--config")
    datacenters = max(1, len(before.datacenters))
    return ClusterShape(
        gates=len(before.gates),
        datacenters=datacenters,
        managers=len(before.managers) // datacenters,
        workers=len(before.workers) // datacenters,
        cores=int(cores) if cores.isdecimal() else 1,
        base_port=split_address(before.nodes[0].tcp)[1],
        config=Path(config) if config else None,
    )


def lay_out(shape: ClusterShape, directory: Path, secret_file: Path) -> ClusterFile:
    """Return the nodes of a cluster, not started yet."""
    first = shape.base_port if shape.base_port is not None else find_ports(shape.ports)
    if shape.base_port is not None:
        _check_free(range(first, first + shape.ports))
    layout = _Layout(shape, directory, secret_file, first)
    names = [f"dc{number + 1}" for number in range(shape.datacenters)]
    rows = ClusterFile(
        secret_file=str(secret_file),
        datacenters=names if shape.gates else [DATACENTER],
        pid=os.getpid(),
    )
    rows.gates.extend(layout.gates())
    for name in rows.datacenters:
        managers, workers = layout.datacenter(name)
        rows.managers.extend(managers)
        rows.workers.extend(workers)
    return rows


class _Layout:
    """Gives nodes consecutive ports, and CPUs in turn."""

    def __init__(self, shape: ClusterShape, directory: Path, secret_file: Path, first: int) -> None:
        self._shape = shape
        self._directory = directory
        self._secret_file = secret_file
        self._port = first
        self._cpus = cycle(sorted(os.sched_getaffinity(0)))
        self._gates: list[str] = []  # addresses

    def gates(self) -> list[ClusterNode]:
        self._gates = self._addresses(self._shape.gates)
        founders = ("--founders", str(self._shape.gates))
        return [
            self._node("gate", f"gate-{number + 1}", founders, seeds=self._gates)
            for number in range(self._shape.gates)
        ]

    def datacenter(self, name: str) -> tuple[list[ClusterNode], list[ClusterNode]]:
        """Return the managers and workers of a datacenter."""
        shape = self._shape
        prefix = f"{name}-" if shape.gates else ""
        where = ("--datacenter", name) if shape.gates else ()
        founders = ("--founders", str(shape.managers), *where)
        gates = tuple(word for gate in self._gates for word in ("--gates-seeds", gate))
        seeds = self._addresses(shape.managers)
        managers = [
            self._node(
                "manager",
                f"{prefix}manager-{number + 1}",
                (*founders, *gates),
                seeds=seeds,
                datacenter=name,
            )
            for number in range(shape.managers)
        ]
        workers = [
            self._node(
                "worker",
                f"{prefix}worker-{number + 1}",
                ("--cores", str(shape.cores), *where),
                seeds=seeds,
                datacenter=name,
                cores=shape.cores,
            )
            for number in range(shape.workers)
        ]
        return managers, workers

    def _addresses(self, count: int) -> list[str]:
        """Return the addresses that the next `count` nodes will have."""
        return [f"{HOST}:{self._port + 2 * index}" for index in range(count)]

    def _node(
        self,
        role: str,
        name: str,
        own: Sequence[str],
        *,
        seeds: Sequence[str],
        datacenter: str = "",
        cores: int = 1,
    ) -> ClusterNode:
        address, http_port = f"{HOST}:{self._port}", self._port + 1
        self._port += 2
        config = self._shape.config
        argv = [
            *(*PROGRAM, role, "--node-id", name, "--host", HOST),
            *("--port", address.rpartition(":")[2], "--http-port", str(http_port)),
            *("--secret-file", str(self._secret_file)),
            *("--data-dir", str(self._directory / "data" / name)),
            *own,
            # Tests on one's own machine may reach their files.
            *(("--executors-sandbox", "off") if role == "worker" else ()),
            *(() if config is None else ("--config", str(config.absolute()))),
            *(word for seed in seeds if seed != address for word in ("--seed", seed)),
        ]
        return ClusterNode(
            id=name,
            pid=0,
            tcp=address,
            udp=address,
            http=f"{HOST}:{http_port}",
            datacenter=datacenter,
            argv=argv,
            cpus=sorted(set(islice(self._cpus, cores))),
        )


def find_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for _ in range(_TRIES):
        first = random.randrange(_PORTS_LOW, _PORTS_HIGH - count)  # noqa: S311  no secret
        if all(map(is_free, range(first, first + count))):
            return first
    raise InputError(
        f"{count} consecutive free ports were not found", hint="choose with --base-port"
    )


def is_free(port: int) -> bool:
    """Return True if the port is free for TCP and UDP."""
    with ExitStack() as stack:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            probe = stack.enter_context(socket.socket(socket.AF_INET, kind))
            if kind == socket.SOCK_STREAM:  # as listeners do: closed connections may linger
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
    return True


def _check_free(ports: range) -> None:
    if ports.stop > 65536:
        raise InputError(
            f"--base-port: {ports.start} is too high: {len(ports)} ports are needed from there on"
        )
    taken = [port for port in ports if not is_free(port)]
    if taken:
        shown = ", ".join(map(str, taken[:5]))
        raise InputError(
            f"--base-port: needs ports {ports.start} to {ports.stop - 1}, in use: {shown}",
            hint="choose another --base-port, or omit the flag to use any free ports",
        )
