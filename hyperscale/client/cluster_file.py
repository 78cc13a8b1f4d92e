"""`DIR/cluster.json`: the nodes of a local cluster and how clients reach them.

`hyperscale cluster up` writes the file; it is replaced as a whole, never changed in place.
"""

import os
import shlex
from pathlib import Path

import msgspec
from msgspec import Struct, field

from hyperscale.config.addresses import parse_address
from hyperscale.errors import InputError, RunError

FILE_NAME = "cluster.json"
SECRET_NAME = "secret"  # noqa: S105  of the file it is in
DEFAULT_DIRECTORY = "hyperscale-cluster"


class ClusterNode(Struct, frozen=True, kw_only=True):
    """One node of a local cluster."""

    id: str
    pid: int
    tcp: str  # host:port, as in `udp` and `http`
    udp: str
    http: str
    datacenter: str = ""  # empty: a gate
    argv: list[str] = field(default_factory=list)  # the command that starts the node
    cpus: list[int] = field(default_factory=list)


class ClusterFile(Struct, frozen=True, kw_only=True):
    """The content of `cluster.json`."""

    secret_file: str
    gates: list[ClusterNode] = field(default_factory=list)
    managers: list[ClusterNode] = field(default_factory=list)
    workers: list[ClusterNode] = field(default_factory=list)
    pid: int = 0  # of the process that runs the cluster
    cluster: str = "hyperscale"
    datacenters: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[ClusterNode]:
        """Return all nodes: gates, managers, workers."""
        return [*self.gates, *self.managers, *self.workers]

    @property
    def entrances(self) -> list[ClusterNode]:
        """Return the nodes that clients talk to: the gates, or the managers if there are none."""
        return self.gates or self.managers

    def node(self, name: str) -> ClusterNode:
        """Return the node of this name; raise `InputError` if there is none."""
        for node in self.nodes:
            if node.id == name:
                return node
        raise InputError(
            f"there is no node {name!r} in this cluster",
            hint=f"it has {', '.join(node.id for node in self.nodes)}",
        )


def cluster_path(directory: Path) -> Path:
    """Return the path of the cluster file in a directory."""
    return directory / FILE_NAME


def read_cluster(directory: Path) -> ClusterFile:
    """Read and check the cluster file of a directory."""
    path = cluster_path(directory)
    again = f"'hyperscale cluster up --dir {shlex.quote(str(directory))}'"
    try:
        cluster = msgspec.json.decode(path.read_bytes(), type=ClusterFile)
        if not cluster.managers:
            raise msgspec.ValidationError("it names no manager")
        for node in cluster.nodes:
            for address in (node.tcp, node.udp, node.http):
                parse_address(address, default_port=None, where=node.id)
    except FileNotFoundError:
        raise InputError(
            f"{directory} holds no cluster: there is no {FILE_NAME}", hint=f"start one with {again}"
        ) from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", hint="name the directory of a cluster"
        ) from error
    except (msgspec.MsgspecError, InputError) as error:
        why = error.message if isinstance(error, InputError) else error
        raise InputError(
            f"{path} is not what 'hyperscale cluster up' wrote: {why}",
            hint=f"remove it; {again} writes it anew",
        ) from error
    beside = directory.absolute() / SECRET_NAME
    # The directory may have been moved. `os.path.exists` never raises, unlike `Path.exists`.
    if not os.path.exists(cluster.secret_file) and os.path.exists(beside):
        return msgspec.structs.replace(cluster, secret_file=str(beside))
    return cluster


def write_cluster(directory: Path, cluster: ClusterFile) -> None:
    """Replace the cluster file of a directory."""
    path = cluster_path(directory)
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(cluster), indent=2) + b"\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror}") from error
