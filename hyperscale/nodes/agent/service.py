"""The service that makes a node a worker: its agent and the commands it handles."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from hyperscale.config.schema import NodeConfig
from hyperscale.jobs.messages import (
    AcknowledgeResult,
    DrainWorker,
    ListAttempts,
    PreparePart,
    RenewLeases,
    StartPart,
    StopPart,
)
from hyperscale.membership.events import MemberChanged, MemberDied
from hyperscale.nodes.agent.agent_driver import AgentDriver
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.telemetry.metrics import Family
from hyperscale.wire.handlers import Handlers

_HAND_OVER_SHARE = 0.7
"""Share of a node's time to stop in which results are handed over; then the node leaves."""


class AgentService(NodeService):
    """The agent of one node. It has a driver from `attach` on."""

    def __init__(self, config: NodeConfig, cores: int) -> None:
        self._cores = cores
        self._directory = Path(config.node.data_dir)
        self._hand_over_s = config.node.stop_s * _HAND_OVER_SHARE
        self.driver: AgentDriver | None = None

    def attach(self, member: MemberNode, handlers: Handlers) -> None:
        driver = AgentDriver(member, cores=self._cores, directory=self._directory)
        command = member.load_monitor.timed(driver.command_received)
        handlers.add(PreparePart, command)
        handlers.add(StartPart, command)
        handlers.add(StopPart, command)
        handlers.add(RenewLeases, command)
        handlers.add(ListAttempts, command)
        handlers.add(AcknowledgeResult, command)
        handlers.add(DrainWorker, driver.drain_requested)
        self.driver = driver

    async def start(self) -> None:
        if self.driver is not None:
            await self.driver.open()

    async def leave(self) -> None:
        if self.driver is not None:
            with contextlib.suppress(TimeoutError):  # unacknowledged results are on disk
                async with asyncio.timeout(self._hand_over_s):
                    await self.driver.hand_over()

    async def stop(self) -> None:
        if self.driver is not None:
            await self.driver.close()

    def changed(self, change: MemberChanged | MemberDied) -> None:
        if self.driver is not None:
            self.driver.member_changed(change)

    def why_not_ready(self) -> tuple[str, ...]:
        return ("the worker is starting",) if self.driver is None else self.driver.why_not_ready()

    def metadata(self) -> dict[str, Any]:
        return {"free": self._cores} if self.driver is None else self.driver.metadata()

    def collect(self) -> list[Family]:
        return [] if self.driver is None else self.driver.collect()
