"""Kills, pauses and restarts nodes of a local cluster, and brings all of them back.

Owns which nodes are down because of a fault. Does not decide which faults happen (`fault_plan`).
"""

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hyperscale.client.cluster_file import ClusterNode, read_cluster
from hyperscale.errors import RunError
from hyperscale.lab.control import NodeRunningError, restart_node
from hyperscale.lab.fault_plan import Fault, FaultKind
from hyperscale.lab.node_processes import children_of, is_running

_STOP_S = 20.0
_RESTART_S = 30.0
_POLL_S = 0.1


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
