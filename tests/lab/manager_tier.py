"""A tier of real manager processes that keep their data and their ports over restarts."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyperscale.ledger.server.operator_messages import (
    GetLedgerStatus,
    GetLedgerStatusReply,
    Verify,
    VerifyReply,
)
from tests.lab.ledger_clients import asked
from tests.lab.nodes import NodeCluster, NodeProcess
from tests.lab.ports import free_port
from tests.lab.waiting import until


class ManagerTier:
    """Managers m0, m1, … of one ledger."""

    def __init__(
        self, cluster: NodeCluster, size: int = 3, *, flags: Sequence[str] = (), **options: Any
    ) -> None:
        self.cluster = cluster
        self.flags = flags
        self.options = options
        self.names = [f"m{number}" for number in range(size)]
        self.ports = {name: free_port() for name in self.names}
        self.founders = size
        self.nodes: dict[str, NodeProcess] = {}
        for name in self.names:
            self.start(name)
        self.wait_ready()

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{self.ports[name]}" for name in self.names]

    def data(self, name: str) -> Path:
        return self.cluster.directory / "hyperscale-data" / name

    def start(self, name: str, *flags: str, **options: Any) -> NodeProcess:
        former = self.nodes.get(name)
        if former is not None:
            former.close()
            self.cluster.nodes.remove(former)
        if name not in self.names:
            self.names.append(name)
            self.ports[name] = free_port()
        seeds = [word for each in self.addresses for word in ("--seed", each)]
        node = self.cluster.start(
            "manager",
            name,
            *("--port", str(self.ports[name]), "--founders", str(self.founders)),
            *(*seeds, *self.flags, *flags),
            **{**self.options, **options},
        )
        self.nodes[name] = node
        return node

    def kill(self, name: str) -> float:
        return self.nodes[name].kill()

    def wait_ready(self, *names: str) -> None:
        for name in names or self.names:
            node = self.nodes[name]
            node.wait_listening()
            until(lambda node=node: node.get("/readyz")[0] == 200, what=f"{name} is ready")

    def told(self, name: str) -> GetLedgerStatusReply:
        """Return the ledger status of one manager."""
        return asked(
            self.addresses, GetLedgerStatus(), GetLedgerStatusReply, self.names.index(name)
        )

    def leader_of(self, group: int) -> str:
        """Wait until all running managers agree on the leader of a group; return its name."""
        deadline_s = time.monotonic() + 30
        while True:
            running = [n for n in self.names if self.nodes[n].process.poll() is None]
            rows = [r for n in running for r in self.told(n).replicas if r.group == group]
            leaders = {row.leader for row in rows}
            if len(leaders) == 1 and leaders <= set(running):
                return leaders.pop()
            assert time.monotonic() < deadline_s, f"group {group} is led by {leaders}"

    def wait_settled(self) -> None:
        """Wait until the preferred leaders lead and no key slot migrates."""

        def is_settled() -> bool:
            told = self.told(self.names[0])
            leaders = {row.group: row.leader for row in told.replicas}
            return not told.migrations and all(
                row.settled == row.voters and leaders.get(row.group, row.leader) == row.leader
                for row in told.groups
                if row.state == "active"
            )

        until(is_settled, what="the groups are settled")

    def wait_equal(self, via: str = "") -> VerifyReply:
        """Wait until all replicas of all groups answer with equal digests."""
        deadline_s = time.monotonic() + 40
        number = self.names.index(via) if via else 0
        while True:
            told = asked(self.addresses, Verify(), VerifyReply, number)
            states: dict[int, set[str]] = {}
            for row in told.rows:
                states.setdefault(row.group, set()).add(row.digest)
            known = {group: found - {""} for group, found in states.items()}
            assert all(len(found) <= 1 for found in known.values()), told.rows
            if all("" not in found for found in states.values()):
                return told
            assert time.monotonic() < deadline_s, told.rows
            time.sleep(0.2)
