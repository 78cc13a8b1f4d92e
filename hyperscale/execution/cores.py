"""How many executors this process may use, and which core each is pinned to.

Asks the kernel what is allowed (affinity, cgroup quota), never how busy it is.
"""

import os
from collections.abc import Sequence
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def default_executors() -> int:
    """One executor per core this process may really use, at least one."""
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup_cores(Path("/proc/self/cgroup").read_text(encoding="ascii"), _CGROUP)
    # Rounded down: an executor throttled by its quota would measure the throttling.
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def cgroup_cores(membership: str, root: Path) -> float | None:
    """The tightest CPU quota, in cores, over this process's control groups; None if none.

    `membership` is the text of /proc/self/cgroup. A container often sees its own group
    mounted as the root, so the path is tried, then each parent up to the mount point.
    """
    quotas: list[float] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            bases, read = [root], _quota_v2
        elif "cpu" in controllers.split(","):
            bases, read = [root / controllers, root / "cpu"], _quota_v1
        else:
            continue
        for base in bases:
            group = base / path.lstrip("/")
            for directory in (group, *group.parents):
                quota = read(directory)
                if quota is not None:
                    quotas.append(quota)
                if directory == base:
                    break
    return min(quotas, default=None)


def pinned_cores(size: int) -> Sequence[int | None]:
    """A core for each of `size` executors, or None for each when they outnumber the cores.

    The first core differs from process to process, so small runs side by side on a large
    machine do not all crowd onto core 0.
    """
    cores = sorted(os.sched_getaffinity(0))
    if size > len(cores):
        return [None] * size
    first = os.getpid() % len(cores)
    return [cores[(first + index) % len(cores)] for index in range(size)]


def _quota_v2(directory: Path) -> float | None:
    try:
        quota, period = (directory / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(directory: Path) -> float | None:
    try:
        quota = int((directory / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((directory / "cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
