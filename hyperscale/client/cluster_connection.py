"""The client as a peer of its cluster: who it is, how long it lives, one question at a time."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from hyperscale.client.manager_connections import Address, ManagerConnections
from hyperscale.client.watch import unknown_job
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InvariantError
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.credentials import VERSION, asking_role, incarnation_now, security_of
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.listener import ServerLimits
from hyperscale.wire.messages import Introduction
from hyperscale.wire.server import PeerServer

ASK_S = 30.0
_HANDSHAKE_S = 3.0

_R = TypeVar("_R", bound=Struct)


class ClusterConnection:
    """Opened once, closed once; between the two it asks managers."""

    def __init__(
        self,
        config: NodeConfig,
        addresses: Sequence[Address],
        *,
        name: str,
        patience_s: float,
        rng: Random,
        on_trouble: Callable[[str], None],
    ) -> None:
        """`patience_s`: how long to try while no manager can be reached at all."""
        self.patience_s = patience_s
        self.on_trouble = on_trouble
        self._config = config
        self._addresses = addresses
        self._name = name or f"client-{secrets.token_hex(6)}"
        self._rng = rng
        self._managers: ManagerConnections | None = None
        self._tasks: TaskSupervisor | None = None
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    @property
    def managers(self) -> ManagerConnections:
        """The connections to managers; raise `InvariantError` unless the client is started."""
        if self._managers is None:
            raise InvariantError("the client is not started", hint="await start() first")
        if self._stop.is_set():
            raise InvariantError("the client is stopped", hint="make another one")
        return self._managers

    @property
    def tasks(self) -> TaskSupervisor:
        """The tasks of the client, which end with it."""
        if self._tasks is None:
            raise InvariantError("the client is not started", hint="await start() first")
        return self._tasks

    async def open(self) -> None:
        """Get ready to ask. No manager is dialled before the first question."""
        if self._life is not None:
            raise InvariantError("a client can be started only once", hint="make another one")
        opened: asyncio.Future[ManagerConnections] = asyncio.get_running_loop().create_future()
        self._tasks = TaskSupervisor()
        self._life = asyncio.create_task(self._live(opened), name=self._name)
        either: list[asyncio.Future[Any]] = [self._life, opened]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            opened.cancel()
            await self._life  # raises the reason why the client could not be started
        self._managers = opened.result()

    async def close(self) -> None:
        """Cancel the client's tasks and close its connections."""
        if self._tasks is not None:
            await self._tasks.close()
        self._stop.set()
        if self._life is not None:
            await self._life

    async def ask(self, message: Struct, reply: type[_R], *, within_s: float = ASK_S) -> _R:
        """Return the first answer of a manager."""
        return await self.managers.ask(
            message, reply, within_s=within_s, patience_s=self.patience_s
        )

    async def ask_about(self, job_id: str, message: Struct, reply: type[_R]) -> _R:
        """Return the answer to a question about a job; raise `InputError` if it is unknown."""
        try:
            return await self.ask(message, reply)
        except RemoteError as error:
            if error.code is RemoteErrorCode.UNKNOWN_JOB:
                raise unknown_job(job_id) from error
            raise

    async def _live(self, opened: "asyncio.Future[ManagerConnections]") -> None:
        node = self._config.node
        local = Introduction(
            cluster=node.cluster,
            environment=node.environment,
            role=asking_role(self._config),
            node_id=self._name,
            incarnation=incarnation_now(),
            version=VERSION,
        )
        limits = ServerLimits(handshake_s=_HANDSHAKE_S)
        async with PeerServer(local, security_of(self._config), limits=limits) as server:
            addresses = list(dict.fromkeys(self._addresses))
            self._rng.shuffle(addresses)  # clients with the same list use different managers
            opened.set_result(ManagerConnections(server, addresses, self._rng, self._report))
            await self._stop.wait()

    def _report(self, trouble: str) -> None:
        self.on_trouble(trouble)  # the attribute may be replaced at any time
