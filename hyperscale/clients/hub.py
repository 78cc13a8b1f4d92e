"""The clients of one slot: they share an engine, a recorder and prepared request parts."""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import urlsplit

from hyperscale._native import Engine, Exchange, Program, Recorder, Sender, Template, resolve
from hyperscale.clients.auth import Authorizer
from hyperscale.clients.bodies import encode_data
from hyperscale.clients.grpc import GRPCBook, GRPCClient
from hyperscale.clients.http import HTTP2Client, HTTP3Client, HTTPClient, RequestError
from hyperscale.clients.libraries import ENGINE_CLIENTS, client_class, engine_client_class
from hyperscale.clients.library import CallRoom
from hyperscale.clients.parts import Send
from hyperscale.clients.scope import NO_STEP, current_step
from hyperscale.clients.templates import TemplateBook
from hyperscale.config.addresses import split_address
from hyperscale.errors import InputError, InvariantError
from hyperscale.plan import WorkflowPlan
from hyperscale.testing import (
    GRPCResponse,
    HTTP2Response,
    HTTP3Response,
    HTTPResponse,
    OptimizedArg,
)
from hyperscale.testing.arguments import (
    STREAM_SCHEMES,
    AuthScheme,
    DataBytes,
    DataDict,
    DataList,
    DataText,
    UrlValue,
)
from hyperscale.testing.network import Network
from hyperscale.testing.protocols import (
    NATIVE_PROTOCOLS,
    PROTOCOLS,
    protocol_of,
    split_service_url,
)
from hyperscale.testing.services import reflect

if TYPE_CHECKING:
    from hyperscale.clients.browser import BrowserClient
    from hyperscale.clients.ftp import FTPClient
    from hyperscale.clients.graphql import GraphQLClient
    from hyperscale.clients.kafka import KafkaClient
    from hyperscale.clients.mongodb import MongoDBClient
    from hyperscale.clients.mqtt import MQTTClient
    from hyperscale.clients.mysql import MySQLClient
    from hyperscale.clients.postgres import PostgresClient
    from hyperscale.clients.rabbitmq import RabbitMQClient
    from hyperscale.clients.redis import RedisClient
    from hyperscale.clients.scp import SCPClient
    from hyperscale.clients.sftp import SFTPClient
    from hyperscale.clients.smtp import SMTPClient
    from hyperscale.clients.sse import SSEClient
    from hyperscale.clients.tcp import TCPClient
    from hyperscale.clients.udp import UDPClient
    from hyperscale.clients.websocket import WebsocketClient

CompiledStep = tuple[list[Template], int | None, int, list[int], list[int]]
"""A request (or one for each row of a feed, and the number of that feed), its place in the
recorder, the steps it follows, the statuses it accepts."""


class NativeClients:
    """Makes the clients that the engine serves. All virtual users share the prepared requests."""

    def __init__(self, plan: WorkflowPlan, send: Send, network: Network) -> None:
        self._send = send
        self._authorizer = Authorizer()
        timeout_s, streams = plan.timeout_s, plan.streams
        self._http = TemplateBook(timeout_s, streams=streams, tracing=plan.tracing, network=network)
        self._http2 = TemplateBook(
            timeout_s,
            protocol="http2",
            streams=streams,
            response_type=HTTP2Response,
            tracing=plan.tracing,
            network=network,
        )
        self._http3 = TemplateBook(
            timeout_s,
            protocol="http3",
            streams=streams,
            response_type=HTTP3Response,
            tracing=plan.tracing,
            network=network,
        )
        self._grpc = GRPCBook(
            timeout_s, streams=streams, network=network, descriptors=plan.descriptors
        )
        self._takes_datagrams = network.proxy is None and network.unix_socket is None

    def make(self, name: str, vu: int, user: object) -> Any:
        """Return the client of this name for a virtual user, the instance of its workflow."""
        return self._make(name, vu, self._send, self._authorizer, user)

    def _make(
        self, name: str, vu: int, send: Send, authorizer: Authorizer | None, user: object
    ) -> Any:
        match name:
            case "http":
                return HTTPClient(self._http, send, vu, authorizer, user)
            case "http2":
                return HTTP2Client(self._http2, send, vu, authorizer, user)
            case "http3":
                return HTTP3Client(self._http3, send, vu, authorizer, user)
            case "grpc":
                return GRPCClient(self._grpc, send, vu)
        raise InvariantError(f"{name} is no client of the engine")

    def compile(
        self, name: str, method: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Template:
        """Return the request that `client.<name>.<method>(*args, **kwargs)` would send."""
        unsent: Send = lambda template, *_, **__: cast(Any, template)  # noqa: E731 - it has a type
        if name in NATIVE_PROTOCOLS:
            client = self._make(name, 0, unsent, None, None)
        else:
            client = engine_client_class(name)(self._make("http", 0, unsent, None, None))
        return cast(Template, getattr(client, method)(*args, **kwargs))

    def describe(self, files: Iterable[bytes]) -> None:
        """Add descriptions of gRPC services."""
        self._grpc.describe(files)

    def check_method(self, method: str) -> None:
        """Raise InputError if gRPC services are described, but not this method."""
        self._grpc.check(method)

    def keep_more(self, requests: int) -> None:
        """Keep as many further requests: those of the rows of a feed."""
        self._http.keep_more(requests)
        self._http2.keep_more(requests)
        self._http3.keep_more(requests)

    def templates(self, url: str) -> tuple[Template, ...]:
        """Return a request to this URL for each protocol, that of `client.http` first."""
        has_http3 = url.startswith("https:") and self._takes_datagrams
        return (
            self._http.template("GET", url, {}),
            self._http2.template("GET", url, {}),
            *((self._http3.template("GET", url, {}),) if has_http3 else ()),
            self._grpc.one(url, "grpc.health.v1.Health/Check", b"", {}),
        )


class Client:
    """The protocol clients of one virtual user: `self.client.http.get(url)`.

    All but the HTTP client are made when they are first used.
    """

    if not TYPE_CHECKING:
        __slots__ = (
            "_native",
            "_room",
            "_user",
            "_vu",
            *NATIVE_PROTOCOLS,
            *ENGINE_CLIENTS,
            *PROTOCOLS,
        )

    def __init__(self, native: NativeClients, vu: int, user: object, room: CallRoom) -> None:
        """`user` is the instance of the workflow that has a context."""
        self._native, self._vu, self._user = native, vu, user
        self.http = native.make("http", vu, user)
        self._room = room

    if TYPE_CHECKING:
        browser: BrowserClient
        ftp: FTPClient
        graphql: GraphQLClient
        sse: SSEClient
        tcp: TCPClient
        udp: UDPClient
        websocket: WebsocketClient
        grpc: GRPCClient
        http: HTTPClient
        http2: HTTP2Client
        http3: HTTP3Client
        kafka: KafkaClient
        mongodb: MongoDBClient
        mqtt: MQTTClient
        mysql: MySQLClient
        postgres: PostgresClient
        rabbitmq: RabbitMQClient
        redis: RedisClient
        scp: SCPClient
        sftp: SFTPClient
        smtp: SMTPClient
    else:

        def __getattr__(self, name):
            if name in NATIVE_PROTOCOLS:
                client = self._native.make(name, self._vu, self._user)
            elif name in ENGINE_CLIENTS:
                client = engine_client_class(name)(self.http)
            else:
                client = client_class(name)(self._room)
            setattr(self, name, client)  # from now on, this method is not called for it
            return client


class ClientHub:
    """Makes the clients of virtual users and prepares request parts before the run starts."""

    def __init__(
        self,
        plan: WorkflowPlan,
        recorder: Recorder,
        *,
        network: Network = Network(),  # noqa: B008 - immutable
        trace: Callable[[Exchange], object] | None = None,
        show: Callable[[int, str], None] | None = None,
    ) -> None:
        """`network` is the way of the engine's connections. `trace` is called with every finished
        exchange, body included; `show` with the step and the text of every finished call of a
        client with a library."""
        self._connections = plan.connections.value
        self._network = network
        self._room = CallRoom(recorder, plan.connections, plan.timeout_s, show)
        self._recorder = recorder
        self._addresses: dict[tuple[str, int], asyncio.Future[list[str]]] = {}
        self._is_guarded = self._is_halted = False
        # The users' sockets may need as many descriptors as the system permits.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._loop = loop = asyncio.get_running_loop()
        self._engine: Engine | None = Engine(
            recorder,
            loop,
            HTTPResponse,
            RequestError,
            trace=trace,
            connections=self._connections,
        )
        loop.add_reader(self._engine.fileno(), self._engine.poll)
        self._sender = Sender(self._engine, current_step.get, NO_STEP, sees_all=trace is not None)
        self._native = NativeClients(plan, self._sender, network)

    def client(self, vu: int, user: object = None) -> Client:
        """Return the clients of a virtual user, the instance of its workflow."""
        return Client(self._native, vu, user, self._room)

    async def prepare(self, arg: OptimizedArg) -> None:
        """Resolve or encode one request part, once. Raises InputError if that fails."""
        if arg.optimized is not None:
            return
        if isinstance(arg, UrlValue) and (row := protocol_of(urlsplit(arg).scheme)) is not None:
            service = split_service_url(arg, row)
            await self._look_up(service.shown, service.hosts)
            arg.optimized = arg
        elif isinstance(arg, UrlValue) and urlsplit(arg).scheme in STREAM_SCHEMES:
            dialled = self._network.dialled(arg.authority)
            if dialled is not None:
                await self._look_up(arg, (split_address(dialled),))
            arg.optimized = arg
        elif isinstance(arg, UrlValue):
            template, *others = self._native.templates(arg)
            await self._pin(template)
            for other in others:
                await self._pin(other)
            arg.optimized = template
        elif isinstance(arg, DataDict | DataList | DataText | DataBytes):
            arg.optimized = encode_data(arg)
        elif not isinstance(arg, AuthScheme):  # which is made for each request
            arg.optimized = arg

    async def prepare_rows(self, parts: Sequence[OptimizedArg]) -> None:
        """Prepare the request part of each row of a feed."""
        self._native.keep_more(len(parts))
        hosts = set()
        for part in parts:
            if part.optimized is not None:
                continue
            if isinstance(part, UrlValue):
                # One URL of each host is enough: requests are rendered when they are first sent.
                host = part.split("/", 3)[:3][-1]
                if host in hosts:
                    part.optimized = part
                    continue
                hosts.add(host)
            await self.prepare(part)

    def check_network(self) -> None:
        """Raise InputError if this machine lacks a source address or the Unix socket."""
        for text in self._network.bind:
            family = socket.AF_INET6 if ":" in text else socket.AF_INET
            try:
                with socket.socket(family, socket.SOCK_DGRAM) as probe:
                    probe.bind((text, 0))
            except OSError as error:
                raise InputError(
                    f"bind: {text} is no address of this machine: {error.strerror or error}",
                    hint="`ip address` lists them; all of 127.0.0.0/8 are",
                ) from error
        path = self._network.unix_socket
        if path is not None and not Path(path).is_socket():
            raise InputError(f"unix_socket: {path} is not a Unix socket", hint="start the server")

    async def reflect(self, url: str) -> None:
        """Have a server describe its gRPC services. Raises InputError if it does not."""
        grpc = self.client(0).grpc

        def ask(method: str, messages: list[bytes]) -> Awaitable[GRPCResponse]:
            return grpc.bidi_stream(url, method, messages)

        try:
            self._native.describe(await reflect(ask))
        except RequestError as error:
            raise InputError(f"server reflection: {error}") from error

    def check_method(self, method: str) -> None:
        """Raise InputError if gRPC services are described, but not this method."""
        self._native.check_method(method)

    async def require(self, protocol: str) -> None:
        """Prepare a client for its first call. Raises InputError if it cannot work here."""
        if protocol in PROTOCOLS:
            await client_class(protocol).prepare(self._room)

    async def _look_up(self, url: str, hosts: Iterable[tuple[str, int]]) -> None:
        """Look the hosts up, so that a wrong name ends the run before it starts."""
        for host in hosts:
            try:
                await asyncio.to_thread(resolve, *host)
            except OSError as error:
                raise InputError(f"{url}: cannot resolve the host: {error}") from error

    async def _pin(self, template: Template) -> None:
        """Resolve the host, unless that was done, and use its addresses for the whole run."""
        host = template.unresolved
        if host is None:
            return
        if host not in self._addresses:
            self._addresses[host] = asyncio.ensure_future(asyncio.to_thread(resolve, *host))
        try:
            addresses = await asyncio.shield(self._addresses[host])
        except OSError as error:
            raise InputError(f"{template.url}: cannot resolve {host[0]!r}: {error}") from error
        if self._engine is not None:
            self._engine.pin(template, addresses)

    def compile(
        self, client: str, method: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Template:
        """Return the request that `client.<client>.<method>(*args, **kwargs)` would send."""
        return self._native.compile(client, method, args, kwargs)

    def program(
        self, layers: list[list[CompiledStep]], vus: int, iterations: int | None
    ) -> Program:
        """Return the native loop over compiled steps; it uses the resolved addresses."""
        program = Program(
            self._recorder, layers, vus, iterations=iterations, connections=self._connections
        )
        for requests, *_ in chain.from_iterable(layers):
            for host, template in {each.unresolved: each for each in requests}.items():
                known = None if host is None else self._addresses.get(host)
                if known is not None:
                    program.pin(template, known.result())
        return program

    @property
    def in_flight(self) -> int:
        return self._engine.in_flight if self._engine else 0

    @property
    def connections(self) -> int:
        """Open connections of the engine."""
        return self._engine.connections if self._engine else 0

    def cut(self) -> None:
        """Abort every request in flight; tasks that await one are cancelled."""
        if self._engine is not None:
            self._engine.cut_all()

    def halt(self) -> None:
        """Send nothing more: calls made from now on wait until they are cancelled.

        Only sets flags, so it may be called between any two instructions.
        """
        self._is_halted = self._room.is_halted = True
        self._sender.replace(_never)
        if self._engine is not None:
            self._engine.halt()

    def resume(self) -> None:
        """Send calls again, such as those of teardown hooks."""
        if self._is_halted and self._engine is not None:
            self._is_halted = self._room.is_halted = False
            self._engine.resume()
            self._sender.resume(self._engine)

    def guard(self) -> None:
        """Poll the engine from now on only while it is not halted."""
        if self._is_guarded or self._engine is None:
            return
        self._is_guarded = True
        poll = self._engine.poll

        # A Python function in between, so that the interpreter gets to handle its signals
        # before anything is written.
        def poll_unless_halted() -> None:
            if not self._is_halted:
                poll()

        self._loop.add_reader(self._engine.fileno(), poll_unless_halted)

    async def drain(self) -> None:
        """Close the connections of clients with a library, in the way that their protocols ask."""
        await self._room.drain()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.cut_all()
            self._loop.remove_reader(self._engine.fileno())
            self._sender.replace(_closed)
            # The last reference to the engine: its connections end now, not when garbage is
            # collected.
            self._engine = None


async def _never(*_: object) -> HTTPResponse:
    """Wait until cancelled, in place of a request that is not sent."""
    await asyncio.get_running_loop().create_future()
    raise InvariantError("a request that was not sent was answered")


def _closed(*_: object) -> NoReturn:
    raise InvariantError("a client was used after its engine was closed")
