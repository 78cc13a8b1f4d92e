"""The HTTP client of one virtual user, on the native engine in an event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvloop

from hyperscale._native import Recorder
from hyperscale.clients import ClientHub
from hyperscale.clients.grpc import GRPCClient
from hyperscale.clients.http import HTTP2Client, HTTP3Client, HTTPClient
from hyperscale.clients.scope import StepScope, current_step
from hyperscale.plan import Connections, WorkflowPlan
from hyperscale.testing.network import Network

Result = TypeVar("Result")


class Lab:
    """The clients of virtual users and what they recorded."""

    def __init__(self, hub: ClientHub, recorder: Recorder) -> None:
        self.hub = hub
        self.recorder = recorder
        client = hub.client(0)
        self.http: HTTPClient = client.http
        self.http2: HTTP2Client = client.http2
        self.http3: HTTP3Client = client.http3
        self.grpc: GRPCClient = client.grpc

    def user(self, number: int) -> HTTPClient:
        return self.hub.client(number).http

    @property
    def sent(self) -> int:
        report = self.recorder.report(["step"], workflow="Lab", slot=0, sequence=1, elapsed_s=1.0)
        return report.sent


@asynccontextmanager
async def open_lab(
    connections: str = "per-vu",
    timeout_s: float = 10.0,
    sees_body: bool = True,
    streams: int = 100,
    network: Mapping[str, Any] | None = None,
) -> AsyncIterator[Lab]:
    plan = WorkflowPlan(
        name="Lab",
        vus=1,
        duration_s=1.0,
        timeout_s=timeout_s,
        connections=Connections(connections),
        streams=streams,
    )
    recorder = Recorder(1)
    way = Network().with_options(network or {}, lambda name: f"Lab.{name}")
    hub = ClientHub(plan, recorder, network=way)
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
