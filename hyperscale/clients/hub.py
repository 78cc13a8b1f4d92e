"""The clients of one workflow part: they share an engine, a recorder and prepared parts."""

import asyncio
import resource
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from hyperscale._native import Engine, Exchange, Program, Recorder, Template, resolve
from hyperscale.clients.bodies import encode_data
from hyperscale.clients.errors import RequestError
from hyperscale.clients.http import HTTPClient, Response, Send
from hyperscale.clients.scope import StepScope, current_step
from hyperscale.clients.templates import TemplateBook
from hyperscale.errors import InputError, InvariantError
from hyperscale.plan import WorkflowPlan
from hyperscale.testing import HTTPResponse, OptimizedArg
from hyperscale.testing.arguments import DataBytes, DataDict, DataList, DataText, UrlValue

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

# Calls made outside any step, such as in a Provide hook, belong to no row.
_NO_STEP = StepScope(step=2**32 - 1, sees_body=True)

_Made = TypeVar("_Made")
SendNative = Callable[[Template, int, int, bool], Response]

CompiledStep = tuple[Template, int, Sequence[int], Sequence[int]]
"""A request, its place in the recorder, the steps it follows, the statuses it accepts."""


class Client:
    """What a virtual user calls through: `self.client.http.get(url)`."""

    __slots__ = ("http",)

    def __init__(self, http: HTTPClient) -> None:
        self.http = http


class ClientHub:
    """Makes the clients of virtual users and prepares request parts before the clock starts."""

    def __init__(
        self,
        plan: WorkflowPlan,
        recorder: Recorder,
        *,
        trace: Callable[[Exchange], object] | None = None,
    ) -> None:
        """`trace` is shown every finished exchange, body included."""
        self._connections = plan.connections.value
        self._trace = trace
        self._recorder = recorder
        self._book = TemplateBook(plan.timeout_s)
        self._engine: Engine | None = None
        self._loop: AbstractEventLoop | None = None
        self._send: Send = _unopened
        self._rebind: Callable[[SendNative | None], None] = lambda _: None
        self._is_guarded = self._is_halted = False
        self._addresses: dict[tuple[str, int], asyncio.Future[list[str]]] = {}
        self._pinned: dict[tuple[str, int], tuple[Template, list[str]]] = {}

    def open(self, loop: "AbstractEventLoop") -> None:
        """Puts the engine into `loop`. Allows as many descriptors as the system permits."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        trace = self._trace
        engine = Engine(
            self._recorder,
            loop,
            HTTPResponse if trace is None else _traced(trace, HTTPResponse),
            RequestError if trace is None else _traced(trace, RequestError),
            connections=self._connections,
        )
        loop.add_reader(engine.fileno(), engine.poll)
        self._engine, self._loop = engine, loop
        send_native: SendNative = engine.send
        get_step = current_step.get
        sees_all = trace is not None

        def send(template: Template, vu: int) -> Response:
            step, sees_body = get_step(_NO_STEP)
            return send_native(template, vu, step, sees_body or sees_all)

        async def never(*_: object) -> HTTPResponse:
            await loop.create_future()
            raise InvariantError("a request that was not sent was answered")

        def rebind(function: SendNative | None) -> None:
            nonlocal send_native
            send_native = function or never

        # Clients keep these functions for good, and the engine lives as long as they know it.
        self._send, self._rebind = send, rebind

    def client(self, vu: int) -> Client:
        return Client(HTTPClient(self._book, self._send, vu))

    async def prepare(self, hook_name: str, arg: OptimizedArg, protocol: str) -> None:
        """Resolves or encodes one request part, once. InputError says why it cannot."""
        if protocol != "http":
            raise InputError(f"{hook_name}: the {protocol} client is not part of this version")
        if arg.optimized is not None:
            return
        if isinstance(arg, UrlValue):
            template = self._book.template("GET", arg, {})
            await self._pin(hook_name, template)
            arg.optimized = template
        elif isinstance(arg, DataDict | DataList | DataText | DataBytes):
            arg.optimized = encode_data(arg)
        else:
            arg.optimized = arg

    async def _pin(self, hook_name: str, template: Template) -> None:
        """Looks the host up, unless another part did, and fixes its addresses for the run."""
        host = (template.host, template.port)
        if host not in self._addresses:
            self._addresses[host] = asyncio.ensure_future(asyncio.to_thread(resolve, *host))
        try:
            addresses = await asyncio.shield(self._addresses[host])
        except OSError as error:
            raise InputError(
                f"{hook_name}: {template.url}: cannot resolve the host: {error}"
            ) from error
        self._pinned[host] = (template, addresses)
        if self._engine is not None:
            self._engine.pin(template, addresses)

    def compile(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Template:
        """The request that `client.http.<method>(*args, **kwargs)` would send."""
        client = HTTPClient(self._book, lambda template, _vu: cast(Any, template), 0)
        return cast(Template, getattr(client, method)(*args, **kwargs))

    def program(
        self, layers: Sequence[Sequence[CompiledStep]], vus: int, iterations: int | None
    ) -> Program:
        """The native loop over compiled steps, on the same addresses."""
        program = Program(
            self._recorder,
            [
                [(t, step, list(after), list(accepts)) for t, step, after, accepts in layer]
                for layer in layers
            ],
            vus,
            iterations=iterations,
            connections=self._connections,
        )
        for layer in layers:
            for template, *_ in layer:
                known = self._pinned.get((template.host, template.port))
                if known is not None:
                    program.pin(template, known[1])
        return program

    def in_flight(self) -> int:
        return self._engine.in_flight if self._engine else 0

    def cut(self) -> None:
        """Abort every request in flight; tasks that await one are cancelled."""
        if self._engine is not None:
            self._engine.abort_all()

    def halt(self) -> None:
        """Nothing more is sent: calls made from here on wait until they are cancelled.

        Only sets flags, and may be called between any two instructions. What the engine
        still has to write it writes only if it is polled, which `guard` prevents.
        """
        self._is_halted = True
        self._rebind(None)

    def resume(self) -> None:
        """Lets calls through again, such as those of teardown hooks."""
        if self._is_halted and self._engine is not None:
            self._is_halted = False
            self._rebind(self._engine.send)

    def guard(self) -> None:
        """From here on the engine works only while it is not halted."""
        engine, loop = self._engine, self._loop
        if self._is_guarded or engine is None or loop is None:
            return
        self._is_guarded = True
        poll = engine.poll

        # A Python function in between, so that the interpreter gets to handle its signals
        # before anything is written.
        def poll_unless_halted() -> None:
            if not self._is_halted:
                poll()

        loop.add_reader(engine.fileno(), poll_unless_halted)

    def close(self) -> None:
        if self._engine is not None and self._loop is not None:
            self._engine.abort_all()
            self._loop.remove_reader(self._engine.fileno())
            self._rebind(_closed)
            # The last reference to the engine: its connections end here, not when a collector
            # comes by.
            self._engine = self._loop = None
            self._send = _unopened


def _traced(
    trace: Callable[[Exchange], object], make: Callable[[Exchange], _Made]
) -> Callable[[Exchange], _Made]:
    last: Exchange | None = None

    def show(exchange: Exchange) -> _Made:
        nonlocal last
        # A task asks for a result twice: to see whether it raises, and to have it.
        if exchange is not last:
            last = exchange
            trace(exchange)
        return make(exchange)

    return show


def _closed(_template: Template, _vu: int, _step: int, _sees_body: bool) -> NoReturn:
    raise InvariantError("a client was used after its engine was closed")


def _unopened(_template: Template, _vu: int) -> NoReturn:
    raise InvariantError("a client was used before its engine was opened, or after it closed")
