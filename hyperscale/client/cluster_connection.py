"""The client as a peer of its cluster: who it is, how long it lives, one question at a time.

`ask_node` asks one node one question, as an operator, over a connection of its own.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from msgspec import Struct

from hyperscale.client.manager_connections import (
    Address,
    ManagerConnections,
    NotAllowedError,
    dial_reason,
    user_error,
)
from hyperscale.config.addresses import format_address
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import CallError, PeerProtocolError, RemoteError, RemoteErrorCode
from hyperscale.wire.listener import ServerLimits
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import Role
from hyperscale.wire.security import asking_role, incarnation_now, security_of
from hyperscale.wire.server import PeerServer
from hyperscale.wire.versions import VERSION

ASK_S = 30.0
_HANDSHAKE_S = 3.0
_HTTP = "is that the address of a node? Its HTTP port is another one"

_R = TypeVar("_R", bound=Struct)


class UnknownJobError(InputError):
    """The cluster does not know the job. `flags` reach the cluster, for the command in the hint."""

    def __init__(self, job: str, *, flags: str = "") -> None:
        hint = f"'hyperscale jobs{flags}' lists the jobs"
        super().__init__(f"there is no job {job!r} in this cluster", hint=hint)
        self.job = job


def introduction(config: NodeConfig, role: Role, name: str) -> Introduction:
    """Return how a client or an operator introduces itself to the nodes of its cluster."""
    return Introduction(
        cluster=config.node.cluster,
        environment=config.node.environment,
        role=role,
        node_id=name,
        incarnation=incarnation_now(),
        version=VERSION,
    )


@dataclass(frozen=True, slots=True)
class _Started:
    managers: ManagerConnections
    tasks: TaskSupervisor
    life: asyncio.Task[None]


class ClusterConnection:
    """Opened once, closed once; between the two it asks managers.

    `patience_s`: how long to try while no manager can be reached at all.
    """

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
        self.patience_s = patience_s
        self.on_trouble = on_trouble
        self._config = config
        self._addresses = list(dict.fromkeys(addresses))
        self._name = name or f"client-{secrets.token_hex(6)}"
        self._rng = rng
        self._started: _Started | None = None
        self._stop = asyncio.Event()

    @property
    def managers(self) -> ManagerConnections:
        """The connections to managers; raise `InvariantError` unless the client is started."""
        return self._require_started().managers

    @property
    def tasks(self) -> TaskSupervisor:
        """The tasks of the client, which end with it."""
        return self._require_started().tasks

    def _require_started(self) -> _Started:
        if self._started is None:
            raise InvariantError("the client is not started", hint="await start() first")
        if self._stop.is_set():
            raise InvariantError("the client is stopped", hint="make another one")
        return self._started

    async def open(self) -> None:
        """Get ready to ask. No manager is dialled before the first question."""
        if self._started is not None:
            raise InvariantError("a client can be started only once", hint="make another one")
        local = introduction(self._config, asking_role(self._config), self._name)
        limits = ServerLimits(handshake_s=_HANDSHAKE_S)
        server = PeerServer(local, security_of(self._config), limits=limits)
        self._rng.shuffle(self._addresses)  # clients with the same list use different managers
        managers = ManagerConnections(server, self._addresses, self._rng, self.on_trouble)
        is_open = asyncio.Event()
        life = asyncio.create_task(self._live(server, is_open), name=self._name)
        self._started = _Started(managers, TaskSupervisor(), life)
        await is_open.wait()

    async def close(self) -> None:
        """Cancel the client's tasks and close its connections."""
        if self._started is not None:
            await self._started.tasks.close()
        self._stop.set()
        if self._started is not None:
            await self._started.life

    async def _live(self, server: PeerServer, is_open: asyncio.Event) -> None:
        """Enter and leave the server in one task, as its task group requires."""
        async with server:
            is_open.set()
            await self._stop.wait()

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
                raise UnknownJobError(job_id) from error
            raise

    async def datacenters(self) -> list[str]:
        """Return the datacenters of the managers that this client has reached."""
        await self.managers.connected()
        return self.managers.datacenters


async def ask_node(
    config: NodeConfig,
    host: str,
    port: int,
    question: Struct,
    answer: type[_R],
    *,
    timeout_s: float,
) -> _R:
    """Return what the node at this address answers an operator."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    async with operator_connection(config, host, port, timeout_s=timeout_s) as connection:
        return await connection.call(question, answer, deadline_s=deadline_s)


@contextlib.asynccontextmanager
async def operator_connection(
    config: NodeConfig, host: str, port: int, *, timeout_s: float
) -> AsyncIterator[Connection]:
    """Connect to one node as an operator, for at most `timeout_s`; errors are for people."""
    role = asking_role(config) if config.security.certificate else Role.OPERATOR
    local = introduction(config, role, f"operator-{secrets.token_hex(6)}")
    where = format_address(host, port)
    try:
        async with PeerServer(local, security_of(config)) as server, asyncio.timeout(timeout_s):
            yield await server.dial(host, port)
    except TimeoutError:
        raise RunError(f"{where} did not answer in time", hint=_HTTP) from None
    except PeerProtocolError as error:
        unreachable = RunError(f"{where} cannot be reached: {dial_reason(error)}", hint=_HTTP)
        raise user_error((host, port), error) or unreachable from error
    except RemoteError as error:
        if error.code in (RemoteErrorCode.UNKNOWN_MESSAGE, RemoteErrorCode.UNHANDLED):
            raise RunError(
                f"{where} is a node of a role that does not answer this question",
                hint="give the address of a manager or, with --datacenter, of a gate",
            ) from error
        if error.code is RemoteErrorCode.ROLE:
            raise NotAllowedError(error.detail, hint=error.hint) from error
        if error.code is RemoteErrorCode.INVALID:
            raise InputError(error.message, hint=error.hint) from error
        raise RunError(f"{where}: {error}") from error
    except (OSError, CallError) as error:
        raise RunError(
            f"{where} cannot be reached: {dial_reason(error)}", hint="is a node running there?"
        ) from error
