"""Messages from a worker to managers, by node id, over an existing connection or a link.

A link is kept to each manager that was ever contacted, while the manager is a member. A message
that cannot be sent is dropped: the agent repeats whatever matters.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from hyperscale.config.addresses import split_address
from hyperscale.errors import InvariantError
from hyperscale.membership.events import LIVING, Member
from hyperscale.wire.errors import CallError, UnreachableError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.roles import Role
from hyperscale.wire.server import PeerServer
from hyperscale.wire.streams import ReplyStream

_Reply = TypeVar("_Reply", bound=Struct)
_Item = TypeVar("_Item", bound=Struct)

_log = logging.getLogger("hyperscale.agent")


class ManagerLinks:
    """Links of one worker to managers."""

    def __init__(self, server: PeerServer, members: Callable[[], list[Member]]) -> None:
        self._server = server
        self._members = members
        self._links: dict[str, tuple[str, PeerLink]] = {}  # node -> address, link

    def all(self) -> list[str]:
        """Return every manager: living members, and peers that connected as managers."""
        found = {
            member.node
            for member in self._members()
            if member.role is Role.MANAGER and member.state in LIVING
        }
        found |= {
            connection.peer.node_id
            for connection in self._server.connections
            if connection.peer.role is Role.MANAGER
        }
        return sorted(found)

    def send(self, node: str, message: Struct) -> None:
        """Send a one-way message; drop it if that is not possible now."""
        try:
            connection = self._server.connection_to(node)
            if connection is not None:
                connection.send(message)
            else:
                self._link(node).send(message)
        except CallError as error:
            _log.debug("message.dropped: %s", error, extra={"to": node})
        except InvariantError as error:  # too large; no reason to end the worker
            _log.error("message.unfit: %s", error, extra={"to": node})

    async def call(
        self, node: str, message: Struct, reply: type[_Reply], *, deadline_s: float
    ) -> _Reply:
        """Send a request and return its reply; raise `CallError` if there is none in time."""
        connection = self._server.connection_to(node)
        if connection is not None:
            return await connection.call(message, reply, deadline_s=deadline_s)
        return await self._link(node).call(message, reply, deadline_s=deadline_s, retries=0)

    async def stream(
        self, node: str, message: Struct, item: type[_Item], *, deadline_s: float
    ) -> ReplyStream[_Item]:
        """Send a request that is answered by a stream."""
        connection = self._server.connection_to(node)
        if connection is not None:
            return connection.stream(message, item, deadline_s=deadline_s)
        return await self._link(node).stream(message, item, deadline_s=deadline_s)

    def member_changed(self, member: Member) -> None:
        """Close the link to a manager that is not a living member any more."""
        if member.node in self._links and member.state not in LIVING:
            self._links.pop(member.node)[1].close()

    def close(self) -> None:
        """Close every link."""
        while self._links:
            self._links.popitem()[1][1].close()

    def _link(self, node: str) -> PeerLink:
        known = {member.node: member for member in self._members()}.get(node)
        if known is None or known.state not in LIVING:
            raise UnreachableError(f"{node} is neither connected nor a member of the cluster")
        address, link = self._links.get(node, ("", None))
        if link is not None and address == known.stream_address:
            return link
        if link is not None:
            link.close()
        link = self._server.link(*split_address(known.stream_address), node_id=node)
        self._links[node] = (known.stream_address, link)
        return link
