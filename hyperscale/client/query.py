"""Ask one node one question, as an operator, over a connection of its own."""

import asyncio
import secrets
from typing import TypeVar

from msgspec import Struct

from hyperscale.client.cluster_connection import introduction
from hyperscale.client.manager_connections import dial_reason, user_error
from hyperscale.config.addresses import format_address
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import RunError
from hyperscale.wire.errors import CallError, PeerProtocolError, RemoteError, RemoteErrorCode
from hyperscale.wire.roles import Role
from hyperscale.wire.security import security_of
from hyperscale.wire.server import PeerServer

_HTTP = "is that the address of a node? Its HTTP port is another one"

_Answer = TypeVar("_Answer", bound=Struct)


async def ask(
    config: NodeConfig,
    host: str,
    port: int,
    question: Struct,
    answer: type[_Answer],
    *,
    timeout_s: float,
) -> _Answer:
    """Return what the node at this address answers an operator."""
    local = introduction(config, Role.OPERATOR, f"operator-{secrets.token_hex(6)}")
    where = format_address(host, port)
    try:
        async with PeerServer(local, security_of(config)) as server, asyncio.timeout(timeout_s):
            connection = await server.dial(host, port)
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            return await connection.call(question, answer, deadline_s=deadline_s)
    except TimeoutError:
        raise RunError(f"{where} did not answer in time", hint=_HTTP) from None
    except PeerProtocolError as error:
        mistake = user_error((host, port), error)
        if mistake is None:
            raise RunError(
                f"{where} cannot be reached: {dial_reason(error)}", hint=_HTTP
            ) from error
        raise mistake from error
    except RemoteError as error:
        if error.code is RemoteErrorCode.UNKNOWN_MESSAGE:
            raise RunError(
                f"{where} is a node of a role that does not answer this question",
                hint="give the address of a manager",
            ) from error
        raise RunError(f"{where}: {error}") from error
    except ConnectionRefusedError as error:
        raise RunError(
            f"{where} cannot be reached: connection refused", hint="is a node running there?"
        ) from error
    except (OSError, CallError) as error:
        raise RunError(
            f"{where} cannot be reached: {getattr(error, 'strerror', None) or error}",
            hint="is a node running there?",
        ) from error
