"""What makes a node a worker: the service that gives it an agent."""

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
from hyperscale.nodes.member import MemberNode, Service
from hyperscale.nodes.metrics import Family
from hyperscale.wire.handlers import Handlers

_HAND_OVER_SHARE = 0.7
"""Of the time a node has to stop: the rest is for its farewell."""


class AgentService(Service):
    """There is a driver from `attach` on; a node that fails before has none to stop."""

    def __init__(self, config: NodeConfig, cores: int) -> None:
        self._cores = cores
        self._directory = Path(config.node.data_dir)
        self._hand_over_s = config.node.stop_s * _HAND_OVER_SHARE
        self.driver: AgentDriver | None = None

    def attach(self, member: MemberNode, handlers: Handlers) -> None:
        driver = AgentDriver(member, cores=self._cores, directory=self._directory)
        commanded = member.vitals.timed(driver.commanded)
        handlers.add(PreparePart, commanded)
        handlers.add(StartPart, commanded)
        handlers.add(StopPart, commanded)
        handlers.add(RenewLeases, commanded)
        handlers.add(ListAttempts, commanded)
        handlers.add(AcknowledgeResult, commanded)
        handlers.add(DrainWorker, driver.drain_asked)
        self.driver = driver

    async def start(self) -> None:
        if self.driver is not None:
            await self.driver.open()

    async def leave(self) -> None:
        if self.driver is not None:
            with contextlib.suppress(TimeoutError):  # what is left is on disk
                async with asyncio.timeout(self._hand_over_s):
                    await self.driver.hand_over()

    async def stop(self) -> None:
        if self.driver is not None:
            await self.driver.close()

    def changed(self, change: MemberChanged | MemberDied) -> None:
        if self.driver is not None:
            self.driver.changed(change)

    def why_not_ready(self) -> tuple[str, ...]:
        return ("it is starting",) if self.driver is None else self.driver.why_not_ready()

    def metadata(self) -> dict[str, Any]:
        return {"free": self._cores} if self.driver is None else self.driver.metadata()

    def collect(self) -> list[Family]:
        return [] if self.driver is None else self.driver.collect()
