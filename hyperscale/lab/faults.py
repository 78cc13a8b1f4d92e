"""Faults for a local cluster: a seeded plan of them, and the injector that carries it out.

The plan is pure: the same seed and the same nodes give the same plan. At any time a majority of
the gates and, in each datacenter that has not failed as a whole, a majority of the managers and at
least one worker are up, so that the job can end. The injector owns which nodes are down because of
a fault, and brings all of them back.
"""

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from hyperscale.client.cluster_file import ClusterFile, ClusterNode, read_cluster
from hyperscale.errors import RunError
from hyperscale.lab.cluster import NodeRunningError, restart_node
from hyperscale.lab.node_processes import children_of, is_running

PAUSE_S_MAX = 12.0
_LEAD_S = 1.0  # by then the load has started
_STOP_S = 20.0
_RESTART_S = 30.0
_POLL_S = 0.1


class FaultKind(Enum):
    """What happens to a node."""

    KILL = "kill"  # SIGKILL, restarted after `away_s`
    PAUSE = "pause"  # SIGSTOP of the node's process for `away_s`
    PAUSE_ALL = "pause_all"  # SIGSTOP of the node and its executors for `away_s`
    RESTART = "restart"  # SIGTERM, restarted `away_s` after the node has ended


_CONTROL_FAULTS = (FaultKind.KILL, FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)
_WORKER_FAULTS = (*_CONTROL_FAULTS[:-1], FaultKind.PAUSE_ALL, FaultKind.RESTART)
_DATACENTER_FAULTS = (FaultKind.KILL, FaultKind.PAUSE_ALL)
_DATACENTER_SHARE = 0.15  # of the faults, in a cluster with several datacenters


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a node or of a whole datacenter, `at_s` after the job was submitted."""

    at_s: float
    kind: FaultKind
    name: str  # of the node or the datacenter
    nodes: tuple[str, ...]
    away_s: float

    def describe(self) -> str:
        """Return the fault as a line for people."""
        what = {
            FaultKind.KILL: f"kill {self.name}, restart it after {self.away_s:.1f} s",
            FaultKind.PAUSE: f"pause {self.name} for {self.away_s:.1f} s",
            FaultKind.PAUSE_ALL: f"pause {self.name} and its executors for {self.away_s:.1f} s",
            FaultKind.RESTART: f"restart {self.name}",
        }
        return f"{self.at_s:5.1f} s  {what[self.kind]}"


class Tier(NamedTuple):
    """Nodes that stand in for each other."""

    nodes: tuple[str, ...]
    kinds: tuple[FaultKind, ...]
    down_max: int  # how many may be down at the same time


def tiers_of(cluster: ClusterFile) -> list[Tier]:
    """Return the gates, the managers and the workers of each datacenter."""
    tiers = []
    for control in (cluster.gates, *_by_datacenter(cluster, cluster.managers)):
        names = tuple(node.id for node in control)
        tiers.append(Tier(names, _CONTROL_FAULTS, (len(names) - 1) // 2))
    for workers in _by_datacenter(cluster, cluster.workers):
        names = tuple(node.id for node in workers)
        tiers.append(Tier(names, _WORKER_FAULTS, len(names) - 1))
    return [tier for tier in tiers if tier.nodes]


def _by_datacenter(
    cluster: ClusterFile, nodes: Sequence[ClusterNode]
) -> Iterator[list[ClusterNode]]:
    for name in cluster.datacenters:
        yield [node for node in nodes if node.datacenter == name]


def make_plan(seed: int, cluster: ClusterFile, duration_s: float) -> list[Fault]:
    """Return faults in order of time, all over by the end of the load or shortly after.

    Each tier keeps a majority, or at least one worker, except in a datacenter that fails as a
    whole; one of several datacenters does at a time.
    """
    rng = random.Random(seed)  # noqa: S311  a seed makes a plan, not a secret
    tiers = tiers_of(cluster)
    datacenters = {
        name: tuple(node.id for node in cluster.nodes if node.datacenter == name)
        for name in cluster.datacenters
    }
    plan: list[Fault] = []
    at_s = _LEAD_S + rng.uniform(0.0, 2.0)
    while at_s < duration_s - 1.0:
        ongoing = [fault for fault in plan if _over_at_s(fault) > at_s]
        busy = {node for fault in ongoing for node in fault.nodes}
        if len(datacenters) > 1 and rng.random() < _DATACENTER_SHARE:
            kind, name = rng.choice(_DATACENTER_FAULTS), rng.choice(sorted(datacenters))
            nodes, is_possible = datacenters[name], not any(f.name in datacenters for f in ongoing)
            is_possible = is_possible and busy.isdisjoint(nodes)
        else:
            tier = rng.choice(tiers)
            kind = rng.choice(tier.kinds)
            free = [node for node in tier.nodes if node not in busy]
            name = rng.choice(free or tier.nodes)
            nodes, is_possible = (name,), len(tier.nodes) - len(free) < tier.down_max
        away_s = round(_away_s(kind, rng), 2)
        if is_possible:
            plan.append(Fault(round(at_s, 2), kind, name, nodes, away_s))
        at_s += rng.expovariate(1 / 2.5) + 0.3
    return plan


def _away_s(kind: FaultKind, rng: random.Random) -> float:
    match kind:
        case FaultKind.PAUSE | FaultKind.PAUSE_ALL:
            return rng.choice((rng.uniform(0.5, 4.0), rng.uniform(4.0, PAUSE_S_MAX)))
        case FaultKind.KILL:
            return rng.uniform(0.2, 4.0)
        case FaultKind.RESTART:
            return rng.uniform(0.0, 1.0)


def _over_at_s(fault: Fault) -> float:
    """Return when the nodes have certainly recovered: started, joined and caught up."""
    if fault.kind is FaultKind.PAUSE:
        return fault.at_s + fault.away_s + 2.0
    return fault.at_s + fault.away_s + (4.0 if len(fault.nodes) == 1 else 10.0)


class FaultInjector:
    """The faults of one chaos run. `log` gets a line for each event."""

    def __init__(self, directory: Path, log: Callable[[str], None]) -> None:
        self._directory = directory
        self._log = log
        self._down: dict[str, int] = {}  # node that a fault ended -> the process that it had
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def inject(self, fault: Fault, *, began_s: float) -> None:
        """Wait for the fault's time, inject it, and return when its nodes are back."""
        await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
        async with AsyncExitStack() as stack:
            for name in sorted(fault.nodes):  # a node may take longer to stop than planned
                await stack.enter_async_context(self._busy[name])
            cluster = read_cluster(self._directory)
            nodes = [cluster.node(name) for name in fault.nodes]
            match fault.kind:
                case FaultKind.PAUSE | FaultKind.PAUSE_ALL:
                    await self._pause(nodes, fault)
                case FaultKind.KILL | FaultKind.RESTART:
                    await self._end(nodes, fault)

    async def bring_back(self) -> None:
        """Restart every node that is still down because of a fault."""
        for node in sorted(self._down):
            try:
                await self._restart(node)
            except RunError as error:
                self._log(f"{node} could not be restarted: {error}")

    async def _pause(self, nodes: Sequence[ClusterNode], fault: Fault) -> None:
        pids = [node.pid for node in nodes]
        if fault.kind is FaultKind.PAUSE_ALL:
            pids += [child for node in nodes for child in children_of(node.pid)]
        self._log(f"{fault.name} paused, {len(pids)} processes")
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.away_s)
        finally:
            for pid in reversed(pids):
                _signal(pid, signal.SIGCONT)
        self._log(f"{fault.name} resumed")

    async def _end(self, nodes: Sequence[ClusterNode], fault: Fault) -> None:
        is_kill = fault.kind is FaultKind.KILL
        self._log(f"{fault.name} {'killed' if is_kill else 'sent SIGTERM'}")
        for node in nodes:
            self._down[node.id] = node.pid
            _signal(node.pid, signal.SIGKILL if is_kill else signal.SIGTERM)
        for node in nodes:
            await self._ended(node)
        await asyncio.sleep(fault.away_s)
        for node in nodes:
            await self._restart(node.id)
            del self._down[node.id]

    async def _ended(self, node: ClusterNode) -> None:
        """Wait until a node has ended; kill it if it takes long."""
        deadline_s = time.monotonic() + _STOP_S
        while is_running(node.pid):
            if time.monotonic() > deadline_s:
                _signal(node.pid, signal.SIGKILL)
                self._log(f"{node.id} did not stop within {_STOP_S:g} s and was killed")
                deadline_s += _STOP_S
            await asyncio.sleep(0.02)

    async def _restart(self, node: str) -> None:
        """Restart a node; try again while `cluster up` has not noticed that the node ended."""
        deadline_s = time.monotonic() + _RESTART_S
        while True:
            try:
                pid = await asyncio.to_thread(restart_node, self._directory, node)
            except RunError as error:
                if read_cluster(self._directory).node(node).pid != self._down[node]:
                    return  # an earlier call was cancelled, but restarted the node
                if time.monotonic() > deadline_s or not isinstance(error, NodeRunningError):
                    raise
                await asyncio.sleep(_POLL_S)
            else:
                self._log(f"{node} restarted, pid {pid}")
                return


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
