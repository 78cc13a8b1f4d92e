"""Ask a running `cluster up` to restart a node: one line of JSON each way.

The socket is in the cluster's directory, so the rights of the directory decide who may ask. It is
opened through a descriptor of the directory, because the paths of sockets must be short.
"""

import contextlib
import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from hyperscale.client.cluster_file import read_cluster
from hyperscale.errors import RunError

SOCKET_NAME = "control.sock"
LINE_BYTES_MAX = 4096
TIMEOUT_S = 10.0


class StartNode(Struct, frozen=True, kw_only=True):
    """-> StartNodeReply"""

    start: str  # the id of the node


class StartNodeReply(Struct, frozen=True, kw_only=True):
    """`pid` of the new process, or `error`; `is_running`: the node had not ended."""

    pid: int = 0
    error: str = ""
    is_running: bool = False


class NodeRunningError(RunError):
    """The node has not ended, so it was not restarted."""


@contextlib.contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """A short path of the control socket, valid while the context lasts."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def read_line(connection: socket.socket) -> bytes:
    """Return one line, at most LINE_BYTES_MAX; empty if the peer closed the connection before."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        data = connection.recv(LINE_BYTES_MAX)
        if not data:
            return b""
        line += data
    return line


def restart_node(directory: Path, node: str) -> int:
    """Restart a node that has ended; return its new process id.

    Raise `InputError` if there is no such node, `NodeRunningError` if it has not ended.
    """
    read_cluster(directory).node(node)
    try:
        with (
            short_path(directory) as path,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking,
        ):
            asking.settimeout(TIMEOUT_S)
            asking.connect(path)
            asking.sendall(msgspec.json.encode(StartNode(start=node)) + b"\n")
            answer = msgspec.json.decode(read_line(asking), type=StartNodeReply)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        start = f"'hyperscale cluster up --dir {shlex.quote(str(directory))}'"
        raise RunError(
            f"the cluster in {directory} is not running", hint=f"{start} starts all its nodes"
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(
            f"the 'hyperscale cluster up' of {directory} does not answer: "
            f"{getattr(error, 'strerror', None) or error}",
            hint="is 'hyperscale cluster up' still running?",
        ) from error
    if answer.is_running:
        raise NodeRunningError(answer.error)
    if answer.error:
        raise RunError(answer.error)
    return answer.pid
