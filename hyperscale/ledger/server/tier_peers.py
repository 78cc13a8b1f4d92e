"""Links to the other nodes of a tier, at the addresses that membership knows."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from hyperscale.config.addresses import split_address
from hyperscale.membership.events import LIVING, Member, MemberState
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import CallError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.roles import Role
from hyperscale.wire.server import PeerServer
from hyperscale.wire.versions import CURRENT, OLDEST, Version, parse_version

_log = logging.getLogger("hyperscale.ledger")


class MembershipView(Protocol):
    """The members that a `MemberNode` knows."""

    def members(self) -> list[Member]: ...
    def known(self, node: str) -> Member | None: ...


class TierPeers:
    """The nodes of this node's tier as membership sees them, and connections to them."""

    def __init__(
        self,
        server: PeerServer,
        membership: MembershipView,
        role: Role,
        is_fit: Callable[[Member], bool],
        announced: Callable[[Member], str],
    ) -> None:
        """`announced` returns the version that a member announces; empty before it has."""
        self._server = server
        self._membership = membership
        self._role = role
        self._is_fit = is_fit
        self._announced = announced
        self._links: dict[str, PeerLink] = {}
        self._seen_dead_s: dict[str, float] = {}

    def link(self, node: str) -> PeerLink | None:
        """Return a lasting link to a node; None if the node was never seen."""
        member = self._membership.known(node)
        known = self._links.get(node)
        if member is None:
            return known
        host, port = split_address(member.stream_address)
        if known is not None:
            if (known.host, known.port) == (host, port):
                return known
            known.close()
        self._links[node] = self._server.link(host, port, node_id=node)
        return self._links[node]

    def connection(self, node: str) -> Connection | None:
        """Return the open connection to a node, if there is one."""
        found = self._server.connection_to(node)
        if found is None:
            self.link(node)  # dials, from now on
        return found

    def send(self, node: str, message: Struct) -> None:
        """Send a one-way message, if there is a connection; it may get lost."""
        link = self.link(node)
        connection = None if link is None else link.connection
        if connection is None:
            return
        try:
            connection.send(message)
        except CallError as error:
            _log.debug("message.dropped: %s", error, extra={"to": node})

    def living(self) -> list[str]:
        """Return the sorted nodes of the tier that are not known to be dead, with this one."""
        members = self._membership.members()
        living = {m.node for m in members if m.role is self._role and m.state in LIVING}
        return sorted({self._server.local.node_id, *living})

    def dead_for_s(self, node: str) -> float | None:
        """Return for how long a node has been dead; None while it lives."""
        now_s = asyncio.get_running_loop().time()
        if node in self.living():
            self._seen_dead_s.pop(node, None)
            return None
        return now_s - self._seen_dead_s.setdefault(node, now_s)

    def is_fit(self, node: str) -> bool:
        """Return True if a node may lead: alive, not overloaded, not leaving."""
        found = self._membership.known(node)
        if found is None or found.role is not self._role:
            return False
        return found.state is MemberState.ALIVE and self._is_fit(found)

    def version_of(self, node: str) -> Version | None:
        """Return the version that a living node of the tier announces; None if it is unknown."""
        if node == self._server.local.node_id:
            return CURRENT
        member = self._membership.known(node)
        if member is None or member.role is not self._role or member.state not in LIVING:
            return None
        return parse_version(self._announced(member))

    def worker_versions(self) -> dict[str, Version]:
        """Return the versions of the living workers; one that announced none counts as oldest."""
        return {
            member.node: parse_version(self._announced(member)) or OLDEST
            for member in self._membership.members()
            if member.role is Role.WORKER and member.state in LIVING
        }
