"""Messages from a worker to managers: by node id, made to fit, and the announcements of its cores.

A link is kept to each manager that was ever contacted, while the manager is a member. A message
that cannot be sent is dropped: the agent repeats every message that matters.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hyperscale._native import shed_reports
from hyperscale.config.addresses import split_address
from hyperscale.errors import InvariantError
from hyperscale.jobs.messages import (
    AnnounceCores,
    AnnounceCoresReply,
    DeliverResult,
    ListAttemptsReply,
    PartProgress,
    PartView,
    ReportProgress,
)
from hyperscale.membership.events import LIVING, Member
from hyperscale.wire.errors import CallError, UnreachableError
from hyperscale.wire.link import PeerLink
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.roles import Role
from hyperscale.wire.server import PeerServer
from hyperscale.wire.streams import ReplyStream

SpawnTask = Callable[[Coroutine[Any, Any, Any], str], "asyncio.Task[Any]"]

REPLY_S = 2.0

_Message = TypeVar("_Message", bound=Struct)
_Reply = TypeVar("_Reply", bound=Struct)
_Item = TypeVar("_Item", bound=Struct)

_encode = msgspec.msgpack.Encoder().encode
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
            (self._server.connection_to(node) or self._link(node)).send(message)
        except CallError as error:
            _log.debug("message.dropped: %s", error, extra={"to": node})
        except InvariantError as error:  # too large; no reason to end the worker
            _log.error("message.unfit: %s", error, extra={"to": node})

    async def call(self, node: str, message: Struct, reply: type[_Reply]) -> _Reply:
        """Send a request and return its reply; raise `CallError` if there is none in time."""
        deadline_s = asyncio.get_running_loop().time() + REPLY_S
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


class CoreAnnouncer:
    """Sends the announcements of a worker's cores to managers.

    Announcements are repeated each second, so a reply is only needed until an allocator has
    confirmed for the first time that it knows this worker.
    """

    def __init__(
        self, managers: ManagerLinks, spawn: SpawnTask, *, on_confirmed: Callable[[], None]
    ) -> None:
        self.is_confirmed = False
        """An allocator knows the cores. A later allocator waits for them before it grants."""
        self._managers = managers
        self._spawn = spawn
        self._on_confirmed = on_confirmed
        self._latest: AnnounceCores | None = None

    def announce(self, cores: AnnounceCores) -> None:
        """Send a new announcement to every manager."""
        self._latest = cores
        self.send_latest(self._managers.all())

    def send_latest(self, nodes: Iterable[str]) -> None:
        """Send the latest announcement to these managers."""
        if self._latest is None:
            return
        for node in nodes:
            if self.is_confirmed:
                self._managers.send(node, self._latest)
            else:
                self._spawn(self._call(node, self._latest), f"announce-cores:{node}")

    async def _call(self, node: str, cores: AnnounceCores) -> None:
        try:
            reply = await self._managers.call(node, cores, AnnounceCoresReply)
        except CallError as error:
            _log.debug("cores.unanswered: %s", error, extra={"to": node})
            return
        if reply.is_known and not self.is_confirmed:
            self.is_confirmed = True
            self._on_confirmed()


def fit(message: _Message) -> _Message:
    """Return the message, with less detail in its reports if it would be over its size class.

    Reports lose detail, never counts."""
    parts: Sequence[DeliverResult | PartProgress | PartView] = ()
    if isinstance(message, DeliverResult):
        parts = [message]
    elif isinstance(message, ReportProgress | ListAttemptsReply):
        parts = message.parts
    reports = [part.report for part in parts if part.report is not None]
    if not reports:
        return message
    excess = len(_encode(message)) - int(REGISTRY.spec_of(message).size)
    if excess <= 0:
        return message
    shed = iter(shed_reports(reports, max(0, sum(map(len, reports)) - excess)))
    if isinstance(message, DeliverResult):
        return msgspec.structs.replace(message, report=next(shed))
    fitted = [
        part if part.report is None else msgspec.structs.replace(part, report=next(shed))
        for part in parts
    ]
    return msgspec.structs.replace(message, parts=fitted)
