"""A node as a child process: started with its CPUs, ended with its parent.

The kernel kills it when the thread that started it dies, however that happens: start nodes
from the main thread.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from hyperscale.errors import RunError

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def start_node(argv: Sequence[str], cpus: Sequence[int], log: Path) -> "subprocess.Popen[bytes]":
    """The node, running, in a session of its own; what it says is added to its log."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HYPERSCALE_")
    }
    try:
        with log.open("ab") as said:
            return subprocess.Popen(  # noqa: S603  our own command line
                list(argv),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=_tied(os.getpid(), frozenset(cpus)),  # noqa: PLW1509  no threads here
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"{argv[0]} cannot be started: {error}") from error


def _tied(parent: int, cpus: frozenset[int]) -> Callable[[], None]:
    def tie() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the tie was made
            os._exit(1)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return tie


def ended_how(code: int) -> str:
    """What `Popen.returncode` says, for people."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
