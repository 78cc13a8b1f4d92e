"""`Workflow`: the base class of every test, and its attributes.

An executor makes one instance per virtual user and attaches a client to it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeAlias, cast

from hyperscale.plan import ArrivalKind, Connections, Priority

if TYPE_CHECKING:
    from hyperscale.clients import Client

# Attributes of a later version: refused, never silently ignored.
COMING_ATTRIBUTES = ("weights", "on_isolation")
VU_ATTRIBUTES = ("client", "context", "vu", "iteration")
"""What a run gives to every virtual user."""

# Virtual users, by id, whose hook with per="vu" or per="executor" runs now. No flag on the users:
# it would cost each of them memory.
_settable: set[int] = set()


PriorityName: TypeAlias = Literal["low", "normal", "high", "exclusive", "auto"]
ArrivalsName: TypeAlias = Literal["even", "poisson"]
ConnectionsName: TypeAlias = Literal["per-vu", "shared", "per-request"]


class _Detached:
    """Raises an error if `self.client` is read before an executor attached a client."""

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__}.client exists only on a virtual user, while a run is on"
        )


class Workflow:
    """A load test: `vus` virtual users loop its steps for `duration`.

    Set the attributes below on the class; mark methods with `@step()` and the other
    decorators of `hyperscale.graph`.
    """

    vus: int = 1000
    """Virtual users, each looping the steps by itself."""
    duration: str | float = "1m"
    """How long every virtual user keeps looping."""
    priority: PriorityName | Priority = "auto"
    """Share of the cores: low, normal, high, exclusive or auto."""
    timeout: str | float = "30s"
    """Longest time for one request."""
    grace: str | float = "1s"
    """How long steps in flight at the end of `duration` may take before they are cut: a time, or
    "longest" for as long as the longest request so far took. Never longer than `timeout`."""
    interval: str | float | None = None
    """Pace: iterations of a virtual user start this far apart. Users begin spread over one interval
    and keep their phase; a start that falls into a longer iteration is left out."""
    think: str | float | Sequence[str | float] | None = None
    """Pause between iterations of a virtual user: a time, or a range such as `("1s", "3s")`."""
    iterations: int | str | None = None
    """Stop after this many iterations of all virtual users together, if before `duration`; as
    "10/vu", after this many of each."""
    rate: str | None = None
    """Iterations that begin per second, whether or not earlier ones have ended: "500/s",
    "30000/min". Latencies of first steps count from when the iteration was due."""
    max_vus: int | None = None
    """With a rate: the most iterations that run at once (1000). An arrival beyond is dropped."""
    arrivals: ArrivalsName | ArrivalKind = "even"
    """With a rate: "even", or at random as a "poisson" process."""
    stages: Sequence[tuple[str | float, int | str]] | None = None
    """Load over time, linear from 0 and from stage to stage: `[("1m", 100), ("5m", 100)]` in users,
    or with rates such as "500/s". A stage of "0s" is a jump."""
    weight: float | None = None
    """Its share of the load of `mix = Mix(...)` in the test file, or of `--vus`."""
    warmup: str | float | None = None
    """The beginning of the workflow, which is run but is in no statistics: "30s"."""
    thresholds: Mapping[str, str | Mapping[str, object]] = MappingProxyType({})
    """Conditions for the run to pass: `{"login.p99": "<250ms", "errors": "<1%"}`."""
    constraints: Mapping[str, str | Sequence[str]] = MappingProxyType({})
    """On a cluster: labels that every worker of the workflow must have, each with its value or
    several to choose from: `{"zone": "a", "arch": ["amd64", "arm64"]}`."""
    spread: str | None = None
    """On a cluster: the label over whose values the cores of the workflow are spread evenly."""
    tags: Collection[str] = ()
    connections: ConnectionsName | Connections = "per-vu"
    """Which requests share connections: "per-vu" (kept alive), "shared" or "per-request"."""
    streams: int = 100
    """Requests at once on a connection of HTTP/2; further ones open another connection."""
    resolve: Mapping[str, str | Collection[str]] = MappingProxyType({})
    """Addresses of hosts that are not looked up: `{"shop.test": "127.0.0.1"}`."""
    bind: str | Collection[str] = ()
    """Local addresses that connections come from, in turn: each gives some 28,000 connections."""
    proxy: str | None = None
    """A proxy for all connections: "http://host:3128" or "socks5://user:password@host:1080"."""
    unix_socket: str | None = None
    """The path of a Unix socket that all connections go to, whatever the host in the URL."""
    tracing: str | float = 0.0
    """Share of HTTP requests that carry a W3C `traceparent` header: "1%", or 0.01."""
    allow_failures: bool = False
    """True lets the run pass although not one request succeeded, or the test's own code raised in
    more than 1 % of the iterations. Thresholds and checks still decide."""
    abstract: bool = False
    """True on a class that is only a base for others (not inherited): it is never run."""

    if TYPE_CHECKING:
        client: Client
        """Protocol clients of this virtual user: `self.client.http.get(url)`."""
    else:
        client = _Detached()
    context: dict[str, Any]
    """The values of one virtual user, which no other user sees: `self.context["cart"] = []`.

    At the start it holds what other workflows provided and what `@setup()` put into it, the same
    for every user. Parameters of steps get these values by name. The context of a workflow without
    tests is passed on to the workflows that depend on it.
    """

    vu: int
    """The number of this virtual user, from 0. No other user of the workflow has it, on any
    machine, and a user that runs again after a failure keeps it."""
    iteration: int
    """Which iteration this virtual user is in, from 0."""

    _depends: ClassVar[tuple[object, ...]] = ()
    # Last result by step, for `self.<step>.response`; most users never have one of their own.
    _responses: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # What `@state` uses were given, by method.
    _received: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})

    if not TYPE_CHECKING:  # a type checker looks at the __init__ of each class
        # In __new__, so that a subclass with its own __init__ need not call ours.
        def __new__(cls, *_args, **_kwargs):
            instance = super().__new__(cls)
            set_attribute(instance, "context", {})
            return instance

        def __setattr__(self, name, value):
            # Setup may run on another machine, and users come and go: an attribute set anywhere
            # else would be there for some users and missing for others.
            if id(self) not in _settable and _is_attached(self):
                raise AttributeError(
                    f"self.{name} cannot be set here: keep values of one user in "
                    f"self.context[{name!r}], or set self.{name} in a hook with "
                    '@setup(per="vu") or, for all users of a process, @setup(per="executor")'
                )
            set_attribute(self, name, value)


set_attribute = object.__setattr__
"""Sets an attribute of a virtual user at any time."""


def _is_attached(instance: Workflow) -> bool:
    try:
        object.__getattribute__(instance, "vu")
    except AttributeError:
        return False
    return True


def attach(
    instance: Workflow,
    *,
    client: "Client",
    context: dict[str, Any],
    received: Mapping[str, Mapping[str, Any]],
    vu: int,
) -> None:
    """Make `instance` a virtual user: attach its client, its context and the provided values."""
    set_attribute(instance, "client", client)
    set_attribute(instance, "context", context)
    if received:
        set_attribute(instance, "_received", received)
    set_attribute(instance, "vu", vu)
    set_attribute(instance, "iteration", 0)


@contextmanager
def settable(instance: Workflow) -> Iterator[None]:
    """Let user code set attributes of the virtual user."""
    _settable.add(id(instance))
    try:
        yield
    finally:
        _settable.discard(id(instance))


def remember(instance: Workflow, step: str, result: object) -> None:
    """Keep a step's result for `self.<step>.response`."""
    if not instance._responses:
        set_attribute(instance, "_responses", {})
    cast(dict[str, Any], instance._responses)[step] = result
