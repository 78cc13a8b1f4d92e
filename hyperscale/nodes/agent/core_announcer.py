"""Sends the announcements of a worker's cores to managers.

Announcements are repeated each second, so a reply is only needed until an allocator has
confirmed for the first time that it knows this worker.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from hyperscale.jobs.messages import AnnounceCores, AnnounceCoresReply
from hyperscale.nodes.agent.bundle_fetcher import SpawnTask
from hyperscale.nodes.agent.manager_links import ManagerLinks
from hyperscale.wire.errors import CallError

REPLY_S = 2.0
_log = logging.getLogger("hyperscale.agent")


class CoreAnnouncer:
    """The latest announcement, and whether an allocator has confirmed one."""

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
        deadline_s = asyncio.get_running_loop().time() + REPLY_S
        try:
            reply = await self._managers.call(
                node, cores, AnnounceCoresReply, deadline_s=deadline_s
            )
        except CallError as error:
            _log.debug("cores.unanswered: %s", error, extra={"to": node})
            return
        if reply.is_known and not self.is_confirmed:
            self.is_confirmed = True
            self._on_confirmed()
