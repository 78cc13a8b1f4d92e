"""How many virtual users this machine can run at once: memory, file descriptors, ports.

More users than these would not be more load: the surplus fails to connect, or the machine swaps.
"""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hyperscale.errors import InputError

USER_BYTES_MIN = 4 * 1024
"""The least that a user takes, with its connection in the kernel."""
_OWN_DESCRIPTORS = 64  # of an executor: its loop, pipes, libraries
_MEMORY = Path("/proc/meminfo")
_GROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class UserLimit:
    """One resource: for how many users it is enough, and what to do about that."""

    users: int
    what: str
    remedy: str


def memory_limit() -> UserLimit:
    free_bytes = _available_bytes()
    return UserLimit(
        free_bytes // USER_BYTES_MIN,
        f"memory for at most {free_bytes // USER_BYTES_MIN:,} ({free_bytes / 2**30:.1f} GiB free)",
        "add memory",
    )


def descriptor_limit(executors: int) -> UserLimit:
    """Limit connections by the descriptors of executors that are yet to be started."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # executors raise theirs to the most
    return _descriptor_limit(most, _OWN_DESCRIPTORS, executors)


def own_descriptor_limit() -> UserLimit:
    """Limit connections by the descriptors that this executor has left."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _descriptor_limit(most, len(os.listdir("/proc/self/fd")), 1)


def _descriptor_limit(most: int, used: int, executors: int) -> UserLimit:
    users = max(0, most - used) * executors
    processes = "an executor" if executors == 1 else f"each of {executors} executors"
    return UserLimit(
        users, f"descriptors for {users:,} ({most:,} for {processes})", f"ulimit -n above {most:,}"
    )


def port_limit(addresses: Mapping[str, int], sources: int = 1) -> UserLimit:
    """Limit connections by local ports; `addresses` has the number of IP addresses by host,
    `sources` is how many local addresses connections come from."""
    low, high = map(int, _PORTS.read_text(encoding="ascii").split())
    users = (high - low + 1) * sum(addresses.values()) * sources
    return UserLimit(
        users,
        f"ports for {users:,} connections to {', '.join(addresses)}",
        'sysctl -w net.ipv4.ip_local_port_range="1024 65535", or further addresses in bind',
    )


def refuse_excess(where: str, vus: int, *limits: UserLimit) -> None:
    """Raise InputError if `vus` are more users than one of the limits allows."""
    short = [limit for limit in limits if limit.users < vus]
    if short:
        most = min(limit.users for limit in limits)
        raise InputError(
            f"{where}: {vus:,} virtual users are more than this machine can run: it has "
            f"{', '.join(limit.what for limit in limits)}",
            hint=f"use at most {most:,}, raise the limit "
            f"({', '.join(limit.remedy for limit in short)}), share connections "
            '(connections = "shared") or run the test on a cluster',
        )


def _available_bytes() -> int:
    fields = dict(line.split(":", 1) for line in _MEMORY.read_text("ascii").splitlines())
    free_bytes = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        return min(free_bytes, int(_GROUP_MEMORY.read_text("ascii")))
    except (OSError, ValueError):  # no such file, or no limit: "max"
        return free_bytes
