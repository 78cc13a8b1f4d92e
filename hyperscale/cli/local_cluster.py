"""Local clusters (`hyperscale cluster up`): which directory a command means, and advice when the
cluster there does not answer."""

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from hyperscale.errors import InputError, RunError


def find_local_cluster(given: str | None, addresses: Sequence[str], *, flag: str) -> Path | None:
    """Return the directory of the local cluster to talk to, or None for a remote cluster.

    Without `--dir` and without addresses the default directory counts if a cluster is there.
    """
    from hyperscale.client.cluster_file import DEFAULT_DIRECTORY, cluster_path

    if given is not None and addresses:
        raise InputError(f"--dir and {flag} cannot be combined", hint="give one of them")
    if given is not None:
        return cluster_directory(given)
    default = Path(DEFAULT_DIRECTORY)
    return default if not addresses and cluster_path(default).exists() else None


def cluster_directory(given: str) -> Path:
    """Return the value of `--dir` as a path; refuse an empty one."""
    if not given:  # as from an unset shell variable: it would mean the working directory
        raise InputError("--dir: is empty", hint="name the directory of the cluster")
    return Path(given)


@contextlib.contextmanager
def restart_hints(directory: Path | None) -> Iterator[None]:
    """Add a hint on how to restart a local cluster to errors that say it does not answer."""
    from hyperscale.client.manager_connections import NoManagerError, WrongSecretError

    try:
        yield
    except NoManagerError as error:
        if directory is None:
            raise
        raise RunError(error.message, hint=restart_hint(directory)) from error
    except WrongSecretError as error:
        if directory is None:
            raise
        raise InputError(
            error.message,
            hint=f"does another cluster use these ports now? {_start_command(directory)}",
        ) from error


def restart_hint(directory: Path) -> str:
    """Return the hint for a local cluster that cannot be reached."""
    return f"is the cluster still running? {_start_command(directory)}"


def _start_command(directory: Path) -> str:
    return f"'hyperscale cluster up --dir {shlex.quote(str(directory))}' starts it again"
