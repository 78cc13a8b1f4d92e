"""The HTTP client of one virtual user, on the native engine in an event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvloop

from hyperscale._native import Recorder
from hyperscale.clients import ClientHub
from hyperscale.clients.http import HTTPClient
from hyperscale.clients.scope import StepScope, current_step
from hyperscale.plan import Connections, WorkflowPlan

Result = TypeVar("Result")


class Lab:
    """The clients of virtual users and what they recorded."""

    def __init__(self, hub: ClientHub, recorder: Recorder) -> None:
        self.hub = hub
        self.recorder = recorder
        self.http: HTTPClient = hub.client(0).http

    def user(self, number: int) -> HTTPClient:
        return self.hub.client(number).http

    @property
    def sent(self) -> int:
        report = self.recorder.report(["step"], workflow="Lab", slot=0, sequence=1, elapsed_s=1.0)
        return report.sent


@asynccontextmanager
async def open_lab(
    connections: str = "per-vu", timeout_s: float = 10.0, sees_body: bool = True
) -> AsyncIterator[Lab]:
    plan = WorkflowPlan(
        name="Lab",
        vus=1,
        duration_s=1.0,
        timeout_s=timeout_s,
        connections=Connections(connections),
    )
    recorder = Recorder(1)
    hub = ClientHub(plan, recorder)
    current_step.set(StepScope(step=0, sees_body=sees_body))
    try:
        yield Lab(hub, recorder)
    finally:
        hub.close()


def in_lab(work: Callable[[Lab], Awaitable[Result]], **options: Any) -> Result:
    """Run `work` with an open lab, for at most 30 s."""

    async def main() -> Result:
        async with asyncio.timeout(30), open_lab(**options) as lab:
            return await work(lab)

    return uvloop.run(main())
