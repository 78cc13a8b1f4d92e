"""Faults for a local cluster: a seeded plan of them, and the injector that carries it out.

The plan is pure: the same seed and the same nodes give the same plan. At any time a majority of
the managers and at least one worker are up, so that the job can end. The injector owns which nodes
are down because of a fault, and brings all of them back.
"""

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hyperscale.client.cluster_file import ClusterNode, read_cluster
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


_MANAGER_FAULTS = (FaultKind.KILL, FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)
_WORKER_FAULTS = (*_MANAGER_FAULTS[:-1], FaultKind.PAUSE_ALL, FaultKind.RESTART)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one node, `at_s` after the job was submitted."""

    at_s: float
    kind: FaultKind
    node: str
    away_s: float

    def describe(self) -> str:
        """Return the fault as a line for people."""
        what = {
            FaultKind.KILL: f"kill {self.node}, restart it after {self.away_s:.1f} s",
            FaultKind.PAUSE: f"pause {self.node} for {self.away_s:.1f} s",
            FaultKind.PAUSE_ALL: f"pause {self.node} and its executors for {self.away_s:.1f} s",
            FaultKind.RESTART: f"restart {self.node}",
        }
        return f"{self.at_s:5.1f} s  {what[self.kind]}"


def make_plan(
    seed: int, managers: Sequence[str], workers: Sequence[str], duration_s: float
) -> list[Fault]:
    """Return faults in order of time, all over by the end of the load or shortly after."""
    rng = random.Random(seed)  # noqa: S311  a seed makes a plan, not a secret
    plan: list[Fault] = []
    at_s = _LEAD_S + rng.uniform(0.0, 2.0)
    while at_s < duration_s - 1.0:
        is_worker = bool(workers) and rng.random() < 0.5
        tier = workers if is_worker else managers
        kind = rng.choice(_WORKER_FAULTS if is_worker else _MANAGER_FAULTS)
        away_s = _away_s(kind, rng)
        most = len(tier) - 1 if is_worker else (len(tier) - 1) // 2
        busy = {each.node for each in plan if each.node in tier and _over_at_s(each) > at_s}
        free = [node for node in tier if node not in busy]
        if len(busy) < most and free:
            plan.append(Fault(round(at_s, 2), kind, rng.choice(free), round(away_s, 2)))
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
    """Return when the node has certainly recovered: started, joined and caught up."""
    return fault.at_s + fault.away_s + (4.0 if fault.kind is not FaultKind.PAUSE else 2.0)


class FaultInjector:
    """The faults of one chaos run. `log` gets a line for each event."""

    def __init__(self, directory: Path, log: Callable[[str], None]) -> None:
        self._directory = directory
        self._log = log
        self._down: dict[str, int] = {}  # node that a fault ended -> the process that it had
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def inject(self, fault: Fault, *, began_s: float) -> None:
        """Wait for the fault's time, inject it, and return when the node is back."""
        await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
        async with self._busy[fault.node]:  # a node may take longer to stop than planned
            node = read_cluster(self._directory).node(fault.node)
            match fault.kind:
                case FaultKind.PAUSE | FaultKind.PAUSE_ALL:
                    await self._pause(node, fault)
                case FaultKind.KILL | FaultKind.RESTART:
                    await self._end(node, fault)

    async def bring_back(self) -> None:
        """Restart every node that is still down because of a fault."""
        for node in sorted(self._down):
            try:
                await self._restart(node)
            except RunError as error:
                self._log(f"{node} could not be restarted: {error}")

    async def _pause(self, node: ClusterNode, fault: Fault) -> None:
        pids = [node.pid]
        if fault.kind is FaultKind.PAUSE_ALL:
            pids += children_of(node.pid)
        self._log(f"{node.id} paused, {len(pids)} processes")
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.away_s)
        finally:
            for pid in reversed(pids):
                _signal(pid, signal.SIGCONT)
        self._log(f"{node.id} resumed")

    async def _end(self, node: ClusterNode, fault: Fault) -> None:
        self._down[node.id] = node.pid
        is_kill = fault.kind is FaultKind.KILL
        self._log(f"{node.id} {'killed' if is_kill else 'sent SIGTERM'}")
        _signal(node.pid, signal.SIGKILL if is_kill else signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_S
        while is_running(node.pid):
            if time.monotonic() > deadline_s:
                _signal(node.pid, signal.SIGKILL)
                self._log(f"{node.id} did not stop within {_STOP_S:g} s and was killed")
                deadline_s += _STOP_S
            await asyncio.sleep(0.02)
        await asyncio.sleep(fault.away_s)
        await self._restart(node.id)
        del self._down[node.id]

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
