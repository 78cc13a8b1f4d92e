"""The box of an executor on a worker: what the code of a test can reach, and how much it may use.

The worker makes a directory for each executor process. In it are the bundle that the process runs,
which it can only read, and a place for temporary files. The process enters the box (`enter`) before
it has threads and before it reads any code of a test: Landlock leaves it Python, the libraries of
the system, its own directory and what `executors.read` and `executors.write` name, and takes
signals to processes outside, and every capability. A process runs one slot and ends with it, so
code of one job never runs where code of another did.

Where the kernel lacks something, the rest holds; `enter` says what does.
"""

import contextlib
import json
import os
import resource
import shutil
import site
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperscale.errors import RunError

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/proc", "/sys"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf"),
)
# By name: other files of /etc may hold secrets.
_ETC = (
    *("alternatives", "ca-certificates", "fonts", "gai.conf", "group", "host.conf", "hostname"),
    *("hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "machine-id"),
    *("mime.types", "nsswitch.conf", "passwd", "pki", "protocols", "resolv.conf", "services"),
    *("ssl", "timezone"),
)
_CGROUPS = Path("/sys/fs/cgroup")
_MIB = 2**20
BOX_LIMITS = ("files", "signals", "capabilities", "processes", "open files")
"""What a box can limit, beside memory, which the worker watches."""
OOM_SCORE = 500
"""Added to the score of an executor: out of memory, the kernel ends executors before agents."""


@dataclass(frozen=True, slots=True)
class BoxSettings:
    """What the box of every executor of a worker allows."""

    directory: Path  # the executors' own directories are made in it
    hidden: Path  # data of the worker, which no code of a test may read
    is_required: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    memory_mib: int = 0  # 0: no limit, here and below
    processes: int = 0
    open_files: int = 0


class ExecutorBox:
    """The box of one executor, made anew for each of its processes."""

    def __init__(self, settings: BoxSettings, number: int) -> None:
        self._settings = settings
        self._directory = settings.directory / str(number)
        self._bundles = self._directory / "bundle"
        self.scratch = self._directory / "tmp"
        self.in_force = ""  # what the process said that it is limited in
        self._cgroup = _cgroup(f"hyperscale-{os.getpid()}-{number}")

    def renew(self) -> None:
        """Make the directories of a new process; nothing of the last one is left in them."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._settings.directory.mkdir(mode=0o700, exist_ok=True)  # not the data directory itself
        for directory in (self._directory, self._bundles, self.scratch):
            directory.mkdir(mode=0o700)
        if self._cgroup is not None and self._settings.processes:
            try:
                self._cgroup.mkdir(exist_ok=True)
                (self._cgroup / "pids.max").write_text(str(self._settings.processes))
            except OSError:  # not delegated to this user
                self._cgroup = None

    def remove(self) -> None:
        """Remove what belongs to a process that has ended."""
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._cgroup is not None:
            # A process in it may not quite have ended; the next box uses it again.
            with contextlib.suppress(OSError):
                self._cgroup.rmdir()

    def environment(self) -> dict[str, str]:
        """Return the variables by which programs find a place of their own."""
        return {"TMPDIR": str(self.scratch), "HOME": str(self.scratch)}

    def admit(self, bundle: str) -> str:
        """Put a bundle where the process can read it; return its path there."""
        inside = self._bundles / os.path.basename(bundle)
        try:
            os.link(bundle, inside)
        except OSError:  # on another disk
            shutil.copyfile(bundle, inside)
        return str(inside)

    def argument(self) -> str:
        """Return what the process enters the box by."""
        settings = self._settings
        return json.dumps(
            {
                "read": [*readable(settings.hidden), *settings.read, str(self._bundles)],
                "write": ["/dev/null", *settings.write, str(self.scratch)],
                "is_required": settings.is_required,
                "has_cgroup": self._cgroup is not None and bool(settings.processes),
                "open_files": settings.open_files,
            },
        )

    def hold(self, pid: int) -> None:
        """Limit the processes of a process that was just started. Raises OSError."""
        if self._cgroup is not None and self._settings.processes:
            (self._cgroup / "cgroup.procs").write_text(str(pid))

    def over_memory(self, pid: int) -> str | None:
        """Return how a process and its children are over their limit; None if they are not."""
        limit = self._settings.memory_mib
        if not limit:
            return None
        used = round(_resident_bytes(pid) / _MIB)
        if used <= limit:
            return None
        return f"the test used {used:,} MiB of memory; executors.memory_mib is {limit:,} here"


def readable(hidden: Path) -> list[str]:
    """Return what every executor may read: the system's libraries and this Python's packages, but
    no directory that holds `hidden`."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the package itself
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages(), *sys.path}
    found = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), here, *sorted(python)]
    kept = hidden.resolve()
    return [path for path in found if path and not kept.is_relative_to(Path(path).resolve())]


def enter(argument: str) -> str:
    """Enter the box that `ExecutorBox.argument` describes; return what is in force.

    Called in the executor before it has threads. Raises RunError if the box is required and the
    kernel does not enforce it."""
    from hyperscale._native import confine  # noqa: PLC0415 - the parent does not need it

    wanted: dict[str, Any] = json.loads(argument)
    in_force = []
    if wanted["has_cgroup"]:
        in_force.append("processes")
    if limit := wanted["open_files"]:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        in_force.append("open files")
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    for own in (wanted["read"][-1], wanted["write"][-1]):
        os.stat(own)  # Landlock would leave a missing directory out, also once it is back
    enforced = confine(wanted["read"], wanted["write"])
    if enforced == "full":
        in_force += ["files", "signals"]
    elif enforced == "partial":
        in_force.append("files")
    elif wanted["is_required"]:
        raise RunError(
            "executors.sandbox is required, and this kernel has no Landlock",
            hint='boot with lsm=landlock, or set executors.sandbox = "auto"',
        )
    return ", ".join([*in_force, "capabilities"])


def _resident_bytes(pid: int) -> int:
    """Return the memory of a process and of the processes below it; 0 of one that has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        below = [
            int(child)
            for thread in Path(f"/proc/{pid}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
    except (OSError, ValueError):
        return 0
    own = pages * os.sysconf("SC_PAGE_SIZE")
    return own + sum(_resident_bytes(child) for child in below)


def _cgroup(name: str) -> Path | None:
    """Return where a group with a limit on processes can be made, if anywhere."""
    for number, controllers, path in _own_cgroups():
        below = path.lstrip("/")
        if "pids" in controllers.split(","):
            return _CGROUPS / "pids" / below / name
        if number == "0":
            parent = _CGROUPS / below
            enabled = parent / "cgroup.subtree_control"
            if enabled.exists() and "pids" in enabled.read_text().split():
                return parent / name
    return None


def _own_cgroups() -> Iterable[tuple[str, str, str]]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        yield number, controllers, path
