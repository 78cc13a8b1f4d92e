"""One node as a member of its cluster: sockets, cores and HTTP endpoint.

    async with open_member(config, spec) as member:
        await member.wait_ready()
        ...
        await member.leave()

A member listens before it looks for other members, which it does in the background: nodes may be
started in any order. It closes everything in the opposite order. What a manager or a worker adds
comes through the services of its `RoleSpec`.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from hyperscale.config.addresses import parse_address
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.health.load_monitor import LoadMonitor
from hyperscale.health.overload import OverloadDetector
from hyperscale.health.signals import RoutingDecision, why_not_ready
from hyperscale.membership.core import Membership
from hyperscale.membership.discovery import Discovery
from hyperscale.membership.events import (
    Member,
    MemberChanged,
    MemberDied,
    MemberState,
    MetadataChanged,
)
from hyperscale.membership.local_node import LocalIdentity
from hyperscale.membership.messages import PushPull
from hyperscale.nodes.data_directory import hold_data_directory
from hyperscale.nodes.datagram_memory import SAVE_S, DatagramMemory
from hyperscale.nodes.discovery import Resolver
from hyperscale.nodes.member_metrics import member_metrics
from hyperscale.nodes.membership import MembershipDriver
from hyperscale.nodes.messages import (
    AnnouncedLoad,
    ListMembers,
    ListMembersReply,
    MemberRow,
    NodeMetadata,
    metadata_of,
    routing_of,
)
from hyperscale.nodes.settings import (
    WILDCARDS,
    advertised_address,
    discovery_config,
    http_address_of,
    membership_config,
)
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.telemetry.http import (
    ReadinessReport,
    Response,
    Routes,
    bind_http,
    json_response,
    serve_http,
)
from hyperscale.telemetry.metrics import CONTENT_TYPE, Family, render
from hyperscale.wire.admission import WATERMARKS, Admission, OverloadLevel
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.datagrams import DatagramSocket, bind_datagrams
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.outbox import OUTBOX_BYTES_MAX
from hyperscale.wire.roles import Role
from hyperscale.wire.sealing import DatagramSealer
from hyperscale.wire.security import incarnation_now, security_of_node
from hyperscale.wire.server import PeerServer
from hyperscale.wire.versions import VERSION

_BIND_TRIES = 20
_ADDRESS_CHECK_S = 5.0
_DNS_PORT = 53


class NodeService:
    """A part of a role that lives as long as its node. Override the methods it needs.

    Its constructor adds its handlers; nothing has been awaited by then. The methods are called in
    this order: `start` (the node is a member and answers), `leave` (before the node leaves, within
    `node.stop_s`), `stop` (always, also after a failure) and `ended` (always, when the node is
    closed).
    """

    async def start(self) -> None:
        """Start to work; start tasks with `member.tasks`."""

    async def leave(self) -> None:
        """Hand work over to other nodes."""

    async def stop(self) -> None:
        """End every task and close every file of this service."""

    def ended(self) -> None:
        """Release what handlers used: the node is closed and answers no more."""

    def changed(self, change: MemberChanged | MemberDied) -> None:
        """Take note that a member joined, changed, left or died."""

    def why_not_ready(self) -> tuple[str, ...]:
        """Return why this service keeps the node from being ready; empty if it does not."""
        return ()

    def reload(self) -> None:
        """Read again what may change while the node runs."""

    def collect(self) -> list[Family]:
        """Return the metrics of this service."""
        return []

    def metadata(self) -> dict[str, Any]:
        """Return the fields of `NodeMetadata` that this service sets.

        Call `member.announce` when they change."""
        return {}


class RoleSpec(Struct, frozen=True, kw_only=True):
    """What a role adds to a member."""

    role: Role
    counts_cpu: bool
    services: Callable[["MemberNode", Handlers], Iterable[NodeService]]
    needs: frozenset[Role] = frozenset()
    """The node has joined when it knows a live member of one of these roles; empty: at once."""


class MemberNode:
    """A running member, made by `open_member`."""

    def __init__(
        self,
        config: NodeConfig,
        spec: RoleSpec,
        *,
        server: PeerServer,
        datagrams: DatagramSocket,
        address: str,
        http: tuple[str, int],
        rng: Random,
    ) -> None:
        self._started_s = now_s = time.monotonic()
        local = server.local
        core = Membership(
            LocalIdentity(
                node=local.node_id,
                incarnation=local.incarnation,
                role=local.role,
                address=address,
            ),
            membership_config(config),
            rng=rng,
            now_s=now_s,
        )
        discovery = Discovery(
            local.node_id, address, discovery_config(config), rng=rng, now_s=now_s
        )
        self.config = config
        self.address = address
        self.http_address = http_address_of(*http, address)
        self._http = http
        self.datagrams = datagrams
        self.server = server
        self.tasks = TaskSupervisor()
        self.driver = MembershipDriver(
            core,
            discovery,
            address=address,
            resolver=_resolver(config),
            server=server,
            datagrams=datagrams,
            tasks=self.tasks,
            on_change=self._member_changed,
        )
        self.load_monitor = LoadMonitor(
            OverloadDetector(counts_cpu=spec.counts_cpu),
            # The share of the role's request limit that is in use, CRITICAL requests excluded.
            in_flight_share=lambda: (
                sum(server.admission.in_flight[1:]) / WATERMARKS[local.role].total
            ),
            # The fullest outgoing queue.
            queue_share=lambda: max(
                (each.session.outbox.held_bytes / OUTBOX_BYTES_MAX for each in server.connections),
                default=0.0,
            ),
            on_level=self._overload_changed,
        )
        self._is_leaving = False
        self.services: list[NodeService] = []
        self._needs = spec.needs
        self._readiness_changed = asyncio.Event()

    @property
    def node_id(self) -> str:
        return self.driver.core.local.node

    def members(self) -> list[Member]:
        """Return every member this node knows, itself first."""
        return self.driver.core.members()

    def known(self, node: str) -> Member | None:
        """Return one member, or None if this node does not know it."""
        return self.driver.core.member(node)

    def why_not_ready(self) -> tuple[str, ...]:
        """Return why this node is not ready; empty if it is."""
        alive = (peer for peer in self.driver.core.table.living if peer.state is MemberState.ALIVE)
        reasons = why_not_ready(
            has_joined=not self._needs or any(peer.role in self._needs for peer in alive),
            is_leaving=self._is_leaving,
            overload=self.load_monitor.level,
        )
        for service in self.services:
            reasons += service.why_not_ready()
        return reasons

    def follow_address(self, bound_host: str, bound_port: int) -> None:
        """Announce another address if the outward address of this machine has changed."""
        try:
            address = advertised_address(self.config, bound_host, bound_port)
        except InputError:
            return  # there is no network at the moment
        if address != self.address:
            self.address = address
            self.http_address = http_address_of(*self._http, address)
            self.driver.move(address)
            self.announce()

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the node is ready; raise `RunError` after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.why_not_ready():
                    self._readiness_changed.clear()
                    await self._readiness_changed.wait()
        except TimeoutError:
            why = ", ".join(self.why_not_ready())
            raise RunError(
                f"{self.node_id} is not ready after {timeout_s:g} s: {why}",
                hint="the node's log says which peers it refused and which seeds do not answer",
            ) from None

    async def leave(self) -> None:
        """Leave the cluster: let services hand over, then announce that this node leaves."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self.announce()
        for service in self.services:
            await service.leave()
        self.driver.leave()
        await asyncio.wait(
            [self.driver.left, self.tasks.failed], return_when=asyncio.FIRST_COMPLETED
        )

    def announce(self) -> None:
        """Announce readiness, load and the services' metadata to the other members."""
        metadata = NodeMetadata(
            version=VERSION,
            datacenter=self.config.node.datacenter,
            is_ready=not self.why_not_ready(),
            overload=AnnouncedLoad[self.load_monitor.level.name],
            http=self.http_address,
        )
        for service in self.services:
            metadata = msgspec.structs.replace(metadata, **service.metadata())
        self.driver.feed(MetadataChanged(msgspec.msgpack.encode(metadata)))
        self._readiness_changed.set()

    def list_members(self, _call: InboundCall, _request: ListMembers) -> ListMembersReply:
        """Answer an operator: every member this node knows."""
        own, *others = self.members()
        now_s, local = time.monotonic(), self.server.local
        own = msgspec.structs.replace(own, since_s=self._started_s)
        routes = local.role is Role.MANAGER
        rows = [_row(own, now_s, is_self=True)]
        rows += [_row(each, now_s, routing_of(each) if routes else None) for each in others]
        return ListMembersReply(local.cluster, local.environment, tuple(rows))

    def _overload_changed(self, level: OverloadLevel) -> None:
        self.server.admission.load = level
        self.announce()

    def _member_changed(self, changed: MemberChanged | MemberDied) -> None:
        for service in self.services:
            service.changed(changed)
        if changed.member.role in self._needs:
            self.announce()  # the node may have joined, or lost the last such member
        self._readiness_changed.set()

    def metrics(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        own = member_metrics(
            self.driver,
            self.server,
            started_s=self._started_s,
            is_ready=not self.why_not_ready(),
        )
        collectors = [service.collect for service in self.services]
        return render([lambda: own, self.load_monitor.collect, *collectors])

    def reload(self) -> None:
        """Have every service read again what may change while the node runs."""
        for service in self.services:
            service.reload()

    def healthz(self) -> Response:
        """Answer /healthz: the process is alive."""
        status = {"status": "ok", "node": self.node_id, "role": str(self.server.local.role)}
        return json_response(HTTPStatus.OK, status)

    def readyz(self) -> Response:
        """Answer /readyz: whether the node should get work, and why not."""
        why_not = self.why_not_ready()
        status = HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK
        return json_response(status, ReadinessReport(ready=not why_not, why_not=why_not))


@asynccontextmanager
async def open_member(config: NodeConfig, spec: RoleSpec) -> AsyncIterator[MemberNode]:
    """Run a member for as long as the context lasts."""
    security = security_of_node(config)
    security.check_bind(config.listen.host)
    security.check_datagrams(config.listen.host)
    rng = Random()  # noqa: S311  for jitter and choices, not for keys
    handlers = Handlers()
    async with AsyncExitStack() as stack:
        key = stack.enter_context(hold_data_directory(config))
        memory = DatagramMemory(Path(config.node.data_dir))
        remembered = memory.read()
        local = Introduction(
            cluster=config.node.cluster,
            environment=config.node.environment,
            role=spec.role,
            node_id=config.node.id,
            incarnation=max(incarnation_now(), remembered.incarnation + 1),
            version=VERSION,
            datacenter=config.node.datacenter,
            key=key,
        )
        admission = Admission(WATERMARKS[spec.role], rng)
        server = PeerServer(local, security, handlers, admission=admission, rng=rng)
        services: list[NodeService] = []

        def end_services() -> None:
            for service in services:
                service.ended()

        stack.callback(end_services)
        await stack.enter_async_context(server)
        bound, address = await _bind(config, server)
        server.local = local = msgspec.structs.replace(local, address=address)
        # Nothing is awaited until every handler is added, so no request finds one missing.
        sealer = DatagramSealer(
            security.secrets,
            local.node_id,
            local.incarnation,
            cluster=local.cluster,
            environment=local.environment,
            remembered=remembered.seen,
        )
        memory.save(sealer)
        stack.callback(memory.save, sealer)
        datagrams = stack.enter_context(DatagramSocket(bound, sealer))
        listen = config.listen
        http_socket = stack.enter_context(
            bind_http(listen.http_host or listen.host, listen.http_port)
        )
        member = MemberNode(
            config,
            spec,
            server=server,
            datagrams=datagrams,
            address=address,
            http=http_socket.getsockname()[:2],
            rng=rng,
        )
        handlers.add(PushPull, member.load_monitor.timed(member.driver.push_pull_requested))
        handlers.add(ListMembers, member.load_monitor.timed(member.list_members))
        for service in spec.services(member, handlers):
            services.append(service)
            stack.push_async_callback(service.stop)
        member.services = services
        routes: Routes = {
            "/metrics": lambda: Response(HTTPStatus.OK, CONTENT_TYPE, member.metrics()),
            "/healthz": member.healthz,
            "/readyz": member.readyz,
        }
        await stack.enter_async_context(serve_http(http_socket, routes))
        stack.push_async_callback(member.tasks.close)
        stack.callback(member.driver.stop)
        member.driver.start()
        member.tasks.spawn(member.load_monitor.run(), "load-monitor")
        member.tasks.spawn_every(SAVE_S, partial(memory.save, sealer), "datagram-memory")
        bound_at = bound.getsockname()[:2]
        if bound_at[0] in WILDCARDS and not config.listen.advertise:
            follow = partial(member.follow_address, *bound_at)
            member.tasks.spawn_every(_ADDRESS_CHECK_S, follow, "follow-address")
        for service in services:
            await service.start()
        member.announce()
        yield member


async def _bind(config: NodeConfig, server: PeerServer) -> tuple[socket.socket, str]:
    """Bind UDP and TCP to one port; return the UDP socket and the address to announce."""
    host, port = config.listen.host, config.listen.port
    for tries_left in reversed(range(_BIND_TRIES if port == 0 else 1)):
        bound = bind_datagrams(host, port)
        try:
            address = advertised_address(config, *bound.getsockname()[:2])
            await server.listen(host, bound.getsockname()[1])
        except BaseException as error:
            bound.close()
            # A port that is free for UDP may be taken for TCP: try another one.
            if not isinstance(error, InputError) or not tries_left:
                raise
        else:
            return bound, address
    raise InvariantError("no port was tried")


def _resolver(config: NodeConfig) -> Resolver | None:
    """Return a DNS resolver if the configuration names DNS names to look up.

    Loading it takes a tenth of a second, and it needs resolv.conf.
    """
    if not config.discovery.dns:
        return None
    from hyperscale.membership.dns_resolver import DnsResolver  # noqa: PLC0415  see above

    servers = [
        parse_address(server, default_port=_DNS_PORT, where="discovery.name_servers")
        for server in config.discovery.name_servers
    ]
    return DnsResolver(
        default_port=config.discovery.default_port,
        name_servers=[host for host, _ in servers],
        port=servers[0][1] if servers else _DNS_PORT,
    ).resolve


def _row(
    member: Member, now_s: float, routing: RoutingDecision | None = None, *, is_self: bool = False
) -> MemberRow:
    return MemberRow(
        node=member.node,
        role=member.role,
        state=member.state,
        address=member.address,
        incarnation=member.incarnation,
        since_s=max(0.0, now_s - member.since_s),
        rtt_s=member.rtt_s,
        metadata=metadata_of(member.metadata),
        is_self=is_self,
        routing=routing,
    )
