"""How a worker reaches managers: by node id, over whatever connection there is.

A lasting link to each manager that was ever spoken to, for as long as it is a member. What
cannot be sent is dropped: everything a worker says by itself it says again.
"""

import logging
from collections.abc import Iterable
from typing import Protocol, TypeVar

from msgspec import Struct

from hyperscale.config.addresses import split_address
from hyperscale.errors import InvariantError
from hyperscale.membership.events import LIVING, Member
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import CallError, UnreachableError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.roles import Role
from hyperscale.wire.streams import ReplyStream

_Reply = TypeVar("_Reply", bound=Struct)
_Item = TypeVar("_Item", bound=Struct)

_log = logging.getLogger("hyperscale.agent")


class Peers(Protocol):
    """What is needed of the `PeerServer`."""

    @property
    def connections(self) -> list[Connection]: ...

    def connection_to(self, node_id: str) -> Connection | None: ...

    def link(self, host: str, port: int, *, node_id: str | None = None) -> PeerLink: ...


class Roster(Protocol):
    def members(self) -> list[Member]: ...


class Managers:
    def __init__(self, peers: Peers, roster: Roster) -> None:
        self._peers = peers
        self._roster = roster
        self._links: dict[str, tuple[str, PeerLink]] = {}

    def everyone(self) -> Iterable[str]:
        """Every manager that may be there: members, and whoever else connected as one."""
        found = {
            member.node
            for member in self._roster.members()
            if member.role is Role.MANAGER and member.state in LIVING
        }
        found |= {
            connection.peer.node_id
            for connection in self._peers.connections
            if connection.peer.role is Role.MANAGER
        }
        return sorted(found)

    def send(self, node: str, message: Struct) -> None:
        """One way; dropped if it cannot be taken now, or ever."""
        try:
            connection = self._peers.connection_to(node)
            if connection is not None:
                connection.send(message)
            else:
                self._link(node).send(message)
        except CallError as error:
            _log.debug("message.dropped: %s", error, extra={"to": node})
        except InvariantError as error:  # it is too large: no reason to end everything else
            _log.error("message.unfit: %s", error, extra={"to": node})

    async def call(
        self, node: str, message: Struct, reply: type[_Reply], *, deadline_s: float
    ) -> _Reply:
        """Raises a `CallError`."""
        connection = self._peers.connection_to(node)
        if connection is not None:
            return await connection.call(message, reply, deadline_s=deadline_s)
        return await self._link(node).call(message, reply, deadline_s=deadline_s, retries=0)

    async def stream(
        self, node: str, message: Struct, item: type[_Item], *, deadline_s: float
    ) -> ReplyStream[_Item]:
        connection = self._peers.connection_to(node)
        if connection is not None:
            return connection.stream(message, item, deadline_s=deadline_s)
        return await self._link(node).stream(message, item, deadline_s=deadline_s)

    def changed(self, member: Member) -> None:
        """A manager that is no member any more is not dialled for ever."""
        if member.node in self._links and member.state not in LIVING:
            self._links.pop(member.node)[1].close()

    def close(self) -> None:
        while self._links:
            self._links.popitem()[1][1].close()

    def _link(self, node: str) -> PeerLink:
        known = {member.node: member for member in self._roster.members()}.get(node)
        if known is None or known.state not in LIVING:
            raise UnreachableError(f"{node} is not connected, and no member of the cluster")
        address, link = self._links.get(node, ("", None))
        if link is not None and address == known.stream_address:
            return link
        if link is not None:
            link.close()
        link = self._peers.link(*split_address(known.stream_address), node_id=node)
        self._links[node] = (known.stream_address, link)
        return link
