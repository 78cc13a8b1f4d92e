"""Stand-ins for managers with scripted answers, and a client that asks them."""

from collections.abc import AsyncGenerator, Callable, Coroutine
from random import Random
from typing import Any

from hyperscale.client.manager_connections import ManagerConnections
from hyperscale.client.messages import GetJob, GetJobReply, WatchJob, WatchJobUpdate
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import JobView
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security, incarnation_now
from hyperscale.wire.server import PeerServer
from hyperscale.wire.versions import VERSION


def introduction(role: Role, name: str) -> Introduction:
    return Introduction(
        cluster="hyperscale",
        environment="default",
        role=role,
        node_id=name,
        incarnation=incarnation_now(),
        version=VERSION,
        datacenter="dc1",
    )


Answer = Callable[[InboundCall, GetJob], Coroutine[Any, Any, GetJobReply]]
Watch = Callable[[InboundCall, WatchJob], AsyncGenerator[WatchJobUpdate, None]]


class StandInManagers:
    """Managers with scripted answers, and their addresses."""

    def __init__(self, secret: str = "") -> None:
        self._security = Security(secrets=Secrets(secret) if secret else None)
        self._stack: list[PeerServer] = []
        self.addresses: list[tuple[str, int]] = []

    async def manager(self, answer: Answer, watch: Watch | None = None) -> None:
        handlers = Handlers()
        handlers.add(GetJob, answer)
        if watch is not None:
            handlers.add(WatchJob, watch)
        name = f"manager-{len(self._stack)}"
        server = PeerServer(introduction(Role.MANAGER, name), self._security, handlers)
        await server.__aenter__()
        self._stack.append(server)
        self.addresses.append(await server.listen("127.0.0.1", 0))

    async def __aenter__(self) -> "StandInManagers":
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._stack:
            await server.__aexit__(None, None, None)


def asking(server: PeerServer, lab: StandInManagers) -> ManagerConnections:
    """Connections to the stand-ins, in the order in which they were made."""
    return ManagerConnections(server, lab.addresses, Random(1))


def client(secret: str = "") -> PeerServer:
    security = Security(secrets=Secrets(secret) if secret else None)
    return PeerServer(introduction(Role.CLIENT, "client-1"), security)


async def good(_call: InboundCall, _asked: GetJob) -> GetJobReply:
    return GetJobReply(job=JobView(job="x", status=JobStatus.RUNNING, file="shop.py"))


def failing(*errors: Exception) -> Answer:
    left = list(errors)

    async def answer(call: InboundCall, asked: GetJob) -> GetJobReply:
        if left:
            raise left.pop(0)
        return await good(call, asked)

    return answer
