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
# Below the ports of outgoing connections, so that a node that is down keeps its port.
_PORTS_LOW, _PORTS_HIGH = 12_000, 31_000
_TRIES = 200

PROGRAM = (sys.executable, "-P", "-m", "hyperscale.cli.main")  # never from the current directory


class ClusterOptions(TypedDict, total=False):
    """What the user chose. None or absent: as the cluster was before, or the default."""

    managers: int | None
    workers: int | None
    cores: int | None
    base_port: int | None
    config: Path | None


class ClusterShape(Struct, frozen=True, kw_only=True):
    """How many nodes a cluster has, and their options."""

    managers: int = 3
    workers: int = 3
    cores: int = 1
    base_port: int | None = None
    config: Path | None = None  # settings for all nodes

    @property
    def ports(self) -> int:
        """Return how many ports the nodes need."""
        return 2 * (self.managers + self.workers)


def shape_of(wanted: ClusterOptions, before: ClusterFile | None = None) -> ClusterShape:
    """Complete the options; `before` is the cluster that the directory holds."""
    former = ClusterShape() if before is None else _former(before)
    if former.base_port is not None:
        ports = range(former.base_port, former.base_port + former.ports)
        if not all(map(is_free, ports)):
            former = msgspec.structs.replace(former, base_port=None)
    chosen = {name: value for name, value in wanted.items() if value is not None}
    return msgspec.structs.replace(former, **chosen)


def _former(before: ClusterFile) -> ClusterShape:
    def value_of(rows: Sequence[ClusterNode], flag: str) -> str:
        argv = rows[0].argv if rows else []
        return argv[argv.index(flag) + 1] if flag in argv[:-1] else ""

    cores, config = value_of(before.workers, "--cores"), value_of(before.managers, "--config")
    return ClusterShape(
        managers=len(before.managers),
        workers=len(before.workers),
        cores=int(cores) if cores.isdecimal() else 1,
        base_port=split_address(before.managers[0].tcp)[1],
        config=Path(config) if config else None,
    )


def lay_out(
    shape: ClusterShape, directory: Path, secret_file: Path
) -> tuple[list[ClusterNode], list[ClusterNode]]:
    """Return managers and workers, not started yet."""
    first = shape.base_port if shape.base_port is not None else find_ports(shape.ports)
    if shape.base_port is not None:
        _check_free(range(first, first + shape.ports))
    cpus = cycle(sorted(os.sched_getaffinity(0)))
    ports = iter(range(first, first + shape.ports))
    seeds = [f"{HOST}:{first + 2 * index}" for index in range(shape.managers)]

    def node(role: str, number: int, own: Sequence[str], cores: int) -> ClusterNode:
        name = f"{role}-{number}"
        address, http_port = f"{HOST}:{next(ports)}", next(ports)
        argv = [
            *(*PROGRAM, role, "--node-id", name, "--host", HOST),
            *("--port", address.rpartition(":")[2], "--http-port", str(http_port)),
            *("--secret-file", str(secret_file), "--data-dir", str(directory / "data" / name)),
            *own,
            *(() if shape.config is None else ("--config", str(shape.config.absolute()))),
            *(word for seed in seeds if seed != address for word in ("--seed", seed)),
        ]
        http = f"{HOST}:{http_port}"
        bound_to = sorted(set(islice(cpus, cores)))
        return ClusterNode(
            id=name, pid=0, tcp=address, udp=address, http=http, argv=argv, cpus=bound_to
        )

    founders, cores = ("--founders", str(shape.managers)), ("--cores", str(shape.cores))
    managers = [node("manager", number + 1, founders, 1) for number in range(shape.managers)]
    workers = [node("worker", number + 1, cores, shape.cores) for number in range(shape.workers)]
    return managers, workers


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
