"""Asking a running `cluster up` to start a node again: one line of JSON each way.

Over a socket in the cluster's directory, so whoever may write there may ask. Reached through
an open descriptor of the directory: paths of sockets are short.
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


class Request(Struct, frozen=True, kw_only=True):
    start: str  # node to start again


class Answer(Struct, frozen=True, kw_only=True):
    pid: int = 0
    error: str = ""


@contextlib.contextmanager
def short_path(directory: Path) -> Iterator[str]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def start_again(directory: Path, node: str) -> int:
    """Starts a node that has ended; returns its new process id. InputError: there is none."""
    read_cluster(directory).node(node)
    try:
        with (
            short_path(directory) as path,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking,
        ):
            asking.settimeout(TIMEOUT_S)
            asking.connect(path)
            asking.sendall(msgspec.json.encode(Request(start=node)) + b"\n")
            line = b""
            while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
                data = asking.recv(LINE_BYTES_MAX)
                if not data:
                    break
                line += data
        answer = msgspec.json.decode(line, type=Answer)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        again = f"'hyperscale cluster up --dir {shlex.quote(str(directory))}'"
        raise RunError(
            f"the cluster in {directory} is not running", hint=f"{again} starts all of it"
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(
            f"whoever runs the cluster in {directory} does not answer: "
            f"{getattr(error, 'strerror', None) or error}",
            hint="is 'hyperscale cluster up' still running?",
        ) from error
    if answer.error:
        raise RunError(answer.error)
    return answer.pid
