"""Runs the discovery core of a node: probes candidate addresses over TCP and resolves DNS names."""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from hyperscale.config.addresses import format_address, split_address
from hyperscale.errors import InvariantError
from hyperscale.membership.discovery import (
    ContactMember,
    Discovery,
    DiscoveryEffect,
    DiscoveryEvent,
    NameResolved,
    NameUnresolved,
    ProbeAddress,
    ProbeAnswered,
    ProbeFailed,
    ResolveName,
    WarnOperator,
)
from hyperscale.sansio.core import Tick
from hyperscale.sansio.driver import CoreDriver
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.telemetry.metrics import DurationHistogram
from hyperscale.wire.errors import CallError, PeerProtocolError, RefusalReason
from hyperscale.wire.server import PeerServer

_DNS_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

Resolver = Callable[[str, float], Awaitable[NameResolved | NameUnresolved]]
"""Resolves a DNS name within a number of seconds."""

_log = logging.getLogger("hyperscale.membership")


class DiscoveryDriver:
    """Feeds the discovery core and performs its effects."""

    def __init__(
        self,
        core: Discovery,
        *,
        address: str,
        server: PeerServer,
        tasks: TaskSupervisor,
        resolver: Resolver | None,
        on_contact: Callable[[str], None],
    ) -> None:
        """`on_contact` gets the stream address of each member that discovery finds."""
        self.core = core
        self.address = address
        self.node_at: dict[str, str] = {}  # address -> node that answered a probe there
        self.dns_lookups: Counter[str] = Counter()
        self.dns_duration = DurationHistogram(
            "hyperscale_discovery_dns_resolution_duration_seconds",
            "How long DNS lookups took",
            _DNS_BOUNDS_S,
        )
        self._server = server
        self._tasks = tasks
        self._resolver = resolver
        self._on_contact = on_contact
        driver: CoreDriver[DiscoveryEvent, DiscoveryEffect] = CoreDriver(
            core, self._perform, clock=time.monotonic, on_failure=tasks.fail
        )
        self.feed = driver.feed
        self.stop = driver.stop

    def start(self) -> None:
        """Probe the first candidates."""
        self.feed(Tick())

    def _perform(self, effect: DiscoveryEffect) -> None:
        # The core waits for the outcome of a probe, so a task that fails must end the node.
        match effect:
            case ProbeAddress(address, timeout_s):
                self._tasks.spawn(self._probe(address, timeout_s), f"probe:{address}")
            case ResolveName(name, timeout_s):
                self._tasks.spawn(self._resolve(name, timeout_s), f"resolve:{name}")
            case ContactMember(address):
                self._on_contact(address)
            case WarnOperator(text):
                _log.warning("discovery.warned", extra={"detail": text})

    async def _probe(self, address: str, timeout_s: float) -> None:
        host, port = split_address(address)
        peer = self._server.local
        try:
            async with asyncio.timeout(timeout_s):
                if not await self._is_local(host, port):
                    peer = (await self._server.dial(host, port)).peer
                    self.node_at[address] = peer.node_id
        except PeerProtocolError as error:
            if error.reason is RefusalReason.NAME_UNCERTAIN:  # decided within seconds: ask again
                _log.info("name.uncertain: %s", error.message, extra={"address": address})
                self.feed(ProbeFailed(address))
                return
            # LOOPED: this node answered at an address it does not know as its own.
            if error.reason is not RefusalReason.LOOPED:
                self.feed(ProbeFailed(address, str(error)))
                return
        except (CallError, OSError) as error:
            _log.debug("probe.failed: %s", error, extra={"address": address})
            self.feed(ProbeFailed(address))
            return
        self.feed(ProbeAnswered(address, peer.node_id, peer.cluster, peer.environment))

    async def _is_local(self, host: str, port: int) -> bool:
        """Return True if `host:port` resolves to the address of this node."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return any(format_address(*place[:2]) == self.address for *_, place in found)

    async def _resolve(self, name: str, timeout_s: float) -> None:
        if self._resolver is None:
            raise InvariantError(f"cannot resolve {name}: this node has no DNS resolver")
        began_s = time.monotonic()
        outcome = await self._resolver(name, timeout_s)
        self.dns_duration.observe(time.monotonic() - began_s)
        self.dns_lookups["error" if isinstance(outcome, NameUnresolved) else "success"] += 1
        self.feed(outcome)
