"""Asking a node something, as an operator: one connection, one question."""

import asyncio
import secrets

from hyperscale.config.addresses import format_address
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import RunError
from hyperscale.nodes.identity import VERSION, incarnation_now, security_of
from hyperscale.nodes.messages import MembersAsked, MembersTold
from hyperscale.wire.errors import CallError
from hyperscale.wire.messages import Introduction
from hyperscale.wire.peer import PeerServer
from hyperscale.wire.roles import Role


async def ask_members(config: NodeConfig, host: str, port: int, *, timeout_s: float) -> MembersTold:
    """Everyone the node at this address knows."""
    local = Introduction(
        cluster=config.node.cluster,
        environment=config.node.environment,
        role=Role.OPERATOR,
        node_id=f"operator-{secrets.token_hex(6)}",
        incarnation=incarnation_now(),
        version=VERSION,
    )
    where = format_address(host, port)
    try:
        async with PeerServer(local, security_of(config)) as server, asyncio.timeout(timeout_s):
            connection = await server.dial(host, port)
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            return await connection.call(MembersAsked(), MembersTold, deadline_s=deadline_s)
    except TimeoutError:
        raise RunError(f"{where} did not answer within {timeout_s:g} s") from None
    except (OSError, CallError) as error:
        raise RunError(
            f"{where} cannot be asked: {getattr(error, 'strerror', None) or error}",
            hint="is a node running there?",
        ) from error
