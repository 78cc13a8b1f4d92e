"""One node as a member of its cluster: sockets, cores and endpoint, in their order of life.

    async with open_member(config, duties) as member:
        await member.wait_ready()
        ...
        await member.leave()

Listens before it looks for others, looks for others in the background (any start order works),
and closes in the opposite order. Nothing of it is left afterwards. What a manager or a worker
adds comes through `Duties`; nothing here knows which role it serves.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from hyperscale.config.addresses import parse_address, split_address
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.health.overload import OverloadDetector, OverloadLevel
from hyperscale.health.progress import WorkProgress
from hyperscale.membership.core import LocalIdentity, Membership
from hyperscale.membership.discovery import Discovery
from hyperscale.membership.events import (
    Member,
    MemberChanged,
    MemberDied,
    MemberState,
    MetadataChanged,
)
from hyperscale.membership.messages import View
from hyperscale.nodes.datagrams import Datagrams, bind_datagrams
from hyperscale.nodes.http import (
    HttpEndpoint,
    ReadinessReport,
    Response,
    Routes,
    bind_http,
    json_response,
)
from hyperscale.nodes.identity import (
    advertised_address,
    http_address_of,
    may_move,
    node_id_of,
)
from hyperscale.nodes.load_monitor import LoadMonitor
from hyperscale.nodes.member_metrics import MemberMetrics
from hyperscale.nodes.membership import MembershipDriver, Resolver
from hyperscale.nodes.messages import (
    ListMembers,
    ListMembersReply,
    MemberRow,
    NodeMetadata,
    metadata_of,
)
from hyperscale.nodes.metrics import CONTENT_TYPE, Collector, Family, render
from hyperscale.nodes.settings import discovery_config, membership_config
from hyperscale.nodes.worker_health import Workers
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.admission import WATERMARKS, Admission, Load
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.credentials import VERSION, incarnation_now, security_of
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.outbox import OUTBOX_BYTES_MAX
from hyperscale.wire.roles import Role
from hyperscale.wire.sealing import DatagramSealer
from hyperscale.wire.server import PeerServer

_BIND_TRIES = 20
_LOOK_AGAIN_S = 5.0
_DNS_PORT = 53


class Standing(Struct, frozen=True, kw_only=True):
    """How a member stands, for its role to say whether it should get work."""

    has_joined: bool
    is_leaving: bool
    overload: OverloadLevel


class Service:
    """A part of a role that lives as long as its node. Override what it needs.

    In this order: `attach` (handlers are added, nothing has been awaited yet), `start` (the node
    is a member and answers), `leave` (before the farewell, within `node.stop_s`), `stop`
    (always, also after a failure; no task or file of it may be left), `ended` (always, at last).
    """

    def attach(self, member: "MemberNode", handlers: Handlers) -> None:
        """Takes note of its node and adds the messages it answers."""

    async def start(self) -> None:
        """Begins; tasks are started with `member.tasks`."""

    async def leave(self) -> None:
        """Hands over what others can go on with."""

    async def stop(self) -> None:
        """Leaves nothing behind."""

    def ended(self) -> None:
        """The node is closed: nobody asks it anything any more."""

    def changed(self, change: MemberChanged | MemberDied) -> None:
        """A member came, changed or went."""

    def why_not_ready(self) -> tuple[str, ...]:
        """Why the node should get no work because of this part of it."""
        return ()

    def collect(self) -> list[Family]:
        """Its numbers, for /metrics."""
        return []

    def metadata(self) -> dict[str, Any]:
        """Fields of `NodeMetadata` it answers for; `member.describe` when they change."""
        return {}


class Duties(Struct, frozen=True, kw_only=True):
    """What a role adds to a member."""

    role: Role
    counts_cpu: bool
    why_not_ready: Callable[[Standing], tuple[str, ...]]
    needs: frozenset[Role] = frozenset()
    """It has joined when a living member of one of these roles is known; empty: at once."""
    cores: int = 0
    workers: Workers | None = None
    """Where a role keeps an eye on workers."""
    services: tuple[Service, ...] = ()


class MemberNode:
    """A running member. Made by `open_member`, complete and with its sockets bound."""

    def __init__(
        self,
        config: NodeConfig,
        duties: Duties,
        *,
        server: PeerServer,
        datagrams: Datagrams,
        address: str,
        http: tuple[str, int],
        rng: Random,
    ) -> None:
        now_s = time.monotonic()
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
        self._http_host = http[0]
        self.server = server
        self.tasks = TaskSupervisor()
        self.driver = MembershipDriver(
            core,
            discovery,
            address=address,
            server=server,
            datagrams=datagrams,
            tasks=self.tasks,
            resolver=_resolver(config),
            on_change=self._member_changed,
        )
        self.vitals = LoadMonitor(
            OverloadDetector(counts_cpu=duties.counts_cpu),
            in_flight_share=lambda: _in_flight_share(server),
            queue_share=lambda: _queue_share(server),
            on_level=self._overload_changed,
        )
        self._metrics = MemberMetrics(self.driver, server, datagrams)
        self._duties = duties
        self._started_s = now_s
        self._is_leaving = False
        self._changed = asyncio.Event()

    @property
    def node_id(self) -> str:
        return self.driver.core.node

    def members(self) -> list[Member]:
        """Every member this node knows, itself first."""
        return self.driver.core.members()

    def known(self, node: str) -> Member | None:
        """One of them."""
        return self.driver.core.member(node)

    def why_not_ready(self) -> tuple[str, ...]:
        """Why this node should get no work now; empty if it should."""
        needs = self._duties.needs
        standing = Standing(
            has_joined=not needs
            or any(
                peer.role in needs and peer.state is MemberState.ALIVE
                for peer in self.driver.core.roster.living
            ),
            is_leaving=self._is_leaving,
            overload=self.vitals.level,
        )
        own = self._duties.why_not_ready(standing)
        return own + tuple(why for each in self._duties.services for why in each.why_not_ready())

    async def follow_address(self, bound_host: str, bound_port: int) -> None:
        """Looks again and again which address of this machine faces outwards; tells the others."""
        http_port = split_address(self.http_address)[1]
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            try:
                address = advertised_address(self.config, bound_host, bound_port)
            except InputError:
                continue  # no network just now
            if address != self.address:
                self.address = address
                self.http_address = http_address_of(self._http_host, http_port, address)
                self.driver.move(address)
                self.describe()

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Returns when the node is ready; raises `RunError` if it is not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.why_not_ready():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            why = ", ".join(self.why_not_ready())
            raise RunError(
                f"{self.node_id} is not ready after {timeout_s:g} s: {why}",
                hint="its log says what was refused, or which seeds do not answer",
            ) from None

    async def leave(self) -> None:
        """Tells the others that this node goes, and waits until it is told."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self.describe()
        for service in self._duties.services:
            await service.leave()
        self.driver.leave()
        await asyncio.wait(
            [self.driver.gone, self.tasks.failed], return_when=asyncio.FIRST_COMPLETED
        )

    def describe(self) -> None:
        """Lets the others know how this node does now."""
        metadata = NodeMetadata(
            version=VERSION,
            datacenter=self.config.node.datacenter,
            cores=self._duties.cores,
            is_ready=not self.why_not_ready(),
            overload=self.vitals.level.name.lower(),
            progress=str(WorkProgress.IDLE),
            http=self.http_address,
        )
        for service in self._duties.services:
            metadata = msgspec.structs.replace(metadata, **service.metadata())
        self.driver.feed(MetadataChanged(msgspec.msgpack.encode(metadata)))
        self._changed.set()

    def members_told(self, _call: InboundCall, _asked: ListMembers) -> ListMembersReply:
        """Answers an operator."""
        own, *others = self.members()
        now_s = time.monotonic()
        rows = [_row(msgspec.structs.replace(own, since_s=self._started_s), now_s, is_self=True)]
        workers = self._duties.workers
        for member in others:
            routing = "" if workers is None else workers.decision(member.node)
            rows.append(_row(member, now_s, routing=routing))
        node = self.config.node
        return ListMembersReply(
            cluster=node.cluster, environment=node.environment, members=tuple(rows)
        )

    def _overload_changed(self, level: OverloadLevel) -> None:
        self.server.admission.load = Load(level)
        self.describe()

    def _member_changed(self, changed: MemberChanged | MemberDied) -> None:
        if self._duties.workers is not None:
            self._duties.workers.changed(changed)
        for service in self._duties.services:
            service.changed(changed)
        if changed.member.role in self._duties.needs:
            self.describe()  # whether this node is ready may depend on it
        self._changed.set()

    def metrics(self) -> bytes:
        """All numbers, as Prometheus reads them."""
        collectors: list[Collector] = [self._metrics.collect, self.vitals.collect]
        if self._duties.workers is not None:
            collectors.append(self._duties.workers.collect)
        collectors.extend(service.collect for service in self._duties.services)
        return render(collectors)

    def healthz(self) -> Response:
        status = {"status": "ok", "node": self.node_id, "role": str(self._duties.role)}
        return json_response(HTTPStatus.OK, msgspec.json.encode(status))

    def readyz(self) -> Response:
        why_not = self.why_not_ready()
        body = msgspec.json.encode(ReadinessReport(ready=not why_not, why_not=why_not))
        return json_response(HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK, body)


@asynccontextmanager
async def open_member(config: NodeConfig, duties: Duties) -> AsyncIterator[MemberNode]:
    """A member, until the context ends."""
    security = security_of(config)
    security.check_bind(config.listen.host)
    security.check_datagrams(config.listen.host)
    rng = Random()  # noqa: S311  for jitter and choices, not for keys
    handlers = Handlers()
    local = Introduction(
        cluster=config.node.cluster,
        environment=config.node.environment,
        role=duties.role,
        node_id=node_id_of(config),
        incarnation=incarnation_now(),
        version=VERSION,
        datacenter=config.node.datacenter,
    )
    admission = Admission(WATERMARKS[duties.role], rng)
    server = PeerServer(local, security, handlers, admission=admission, rng=rng)
    async with AsyncExitStack() as stack:
        for service in duties.services:
            stack.callback(service.ended)
        await stack.enter_async_context(server)
        bound, address = await _bind(config, server)
        # Nothing is awaited from here until the handlers are complete: nobody is answered before.
        sealer = DatagramSealer(
            security.secrets,
            local.node_id,
            local.incarnation,
            cluster=local.cluster,
            environment=local.environment,
        )
        datagrams = stack.enter_context(Datagrams(bound, sealer))
        listen = config.listen
        http_socket = stack.enter_context(
            bind_http(listen.http_host or listen.host, listen.http_port)
        )
        member = MemberNode(
            config,
            duties,
            server=server,
            datagrams=datagrams,
            address=address,
            http=http_socket.getsockname()[:2],
            rng=rng,
        )
        handlers.add(View, member.vitals.timed(member.driver.asked))
        handlers.add(ListMembers, member.vitals.timed(member.members_told))
        for service in duties.services:
            service.attach(member, handlers)
            stack.push_async_callback(service.stop)
        routes: Routes = {
            "/metrics": lambda: Response(HTTPStatus.OK, CONTENT_TYPE, member.metrics()),
            "/healthz": member.healthz,
            "/readyz": member.readyz,
        }
        await stack.enter_async_context(HttpEndpoint(http_socket, routes))
        stack.push_async_callback(member.tasks.close)
        stack.callback(member.driver.stop)
        member.driver.start()
        member.tasks.spawn(member.vitals.run(), "vitals")
        if may_move(config, bound.getsockname()[0]):
            place = bound.getsockname()[:2]
            member.tasks.spawn(member.follow_address(*place), "follow-address")
        for service in duties.services:
            await service.start()
        member.describe()
        yield member


async def _bind(config: NodeConfig, server: PeerServer) -> tuple[socket.socket, str]:
    """The UDP socket, with the TCP listener on the same port, and the address others use."""
    host, port = config.listen.host, config.listen.port
    for tries_left in reversed(range(_BIND_TRIES if port == 0 else 1)):
        bound = bind_datagrams(host, port)
        try:
            address = advertised_address(config, *bound.getsockname()[:2])
            await server.listen(host, bound.getsockname()[1])
        except BaseException as error:
            bound.close()
            # A port that is free for UDP may be taken for TCP: then another is chosen.
            if not isinstance(error, InputError) or not tries_left:
                raise
        else:
            return bound, address
    raise InvariantError("no port was tried")


def _resolver(config: NodeConfig) -> Resolver | None:
    """Only where names are to be looked up: it costs a tenth of a second and wants resolv.conf."""
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


def _in_flight_share(server: PeerServer) -> float:
    """Requests below CRITICAL being carried out, of the most this role takes on."""
    return sum(server.admission.in_flight[1:]) / WATERMARKS[server.local.role].total


def _queue_share(server: PeerServer) -> float:
    """The longest queue to a peer, of what a queue may hold."""
    held = (each.session.outbox.held_bytes for each in server.connections)
    return max(held, default=0) / OUTBOX_BYTES_MAX


def _row(member: Member, now_s: float, *, is_self: bool = False, routing: str = "") -> MemberRow:
    return MemberRow(
        node=member.node,
        role=str(member.role),
        state=str(member.state),
        address=member.address,
        incarnation=member.incarnation,
        since_s=max(0.0, now_s - member.since_s),
        rtt_s=member.rtt_s,
        metadata=metadata_of(member.metadata),
        is_self=is_self,
        routing=routing,
    )
