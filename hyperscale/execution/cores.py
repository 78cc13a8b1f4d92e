"""How many executors this process may use, and which core each is pinned to.

Both follow from what the kernel permits (affinity, cgroup quota), not from how busy it is.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def default_executors() -> int:
    """Return one executor per core that this process may use, at least one."""
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup_cores(Path("/proc/self/cgroup").read_text(encoding="ascii"), _CGROUP)
    # Rounded down: an executor throttled by its quota would measure the throttling.
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def cgroup_cores(membership: str, root: Path) -> float | None:
    """Return the lowest CPU quota of the control groups of this process, in cores; None if none.

    `membership` is the text of /proc/self/cgroup. A container often sees its own group
    mounted as the root, so the path is tried, then each parent up to the mount point.
    """
    quotas: list[float] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            bases = [root]
        elif "cpu" in controllers.split(","):
            bases = [root / controllers, root / "cpu"]
        else:
            continue
        for base in bases:
            group = base / path.lstrip("/")
            for directory in (group, *group.parents):
                quotas += _quotas(directory)
                if directory == base:
                    break
    return min(quotas, default=None)


def pinned_cores(size: int) -> Sequence[int | None]:
    """Return a core for each of `size` executors, or None for each if there are too few cores.

    The first core depends on the process, so that small runs on one machine do not share core 0.
    """
    cores = sorted(os.sched_getaffinity(0))
    if size > len(cores):
        return [None] * size
    first = os.getpid() % len(cores)
    return [cores[(first + index) % len(cores)] for index in range(size)]


def _quotas(directory: Path) -> Iterator[float]:
    """Yield the quota in the files of version 2 or 1 of control groups, if there is one."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            text = " ".join((directory / name).read_text(encoding="ascii") for name in names)
            quota, period = map(int, text.split())
        except (OSError, ValueError):  # no such file, or no limit: "max"
            continue
        if quota > 0 and period > 0:
            yield quota / period
