"""`Workflow`: the base class of every test, and its attributes.

An executor makes one instance per virtual user and attaches a client to it.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from hyperscale.plan import Connections, Priority

if TYPE_CHECKING:
    from hyperscale.clients import Client

# Attributes of a later version: refused, never silently ignored.
COMING_ATTRIBUTES = ("rate", "stages", "data", "weights", "on_isolation")


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
    priority: str | Priority = "auto"
    """Share of the cores: low, normal, high, exclusive or auto."""
    timeout: str | float = "30s"
    """Longest time for one request."""
    interval: str | float | None = None
    """Think time: iterations of a virtual user start at least this far apart."""
    iterations: int | None = None
    """Stop after this many iterations of all virtual users together, if before `duration`."""
    thresholds: Mapping[str, str | Mapping[str, object]] = MappingProxyType({})
    """Conditions for the run to pass: `{"login.p99": "<250ms", "errors": "<1%"}`."""
    tags: Collection[str] = ()
    connections: str | Connections = "per-vu"
    """Which requests share connections: "per-vu" (kept alive), "shared" or "per-request"."""
    abstract: bool = False
    """True on a class that is only a base for others (not inherited): it is never run."""

    if TYPE_CHECKING:
        client: Client
        """Protocol clients of this virtual user: `self.client.http.get(url)`."""
    else:
        client = _Detached()
    context: dict[str, Any]
    """The values of one virtual user; at the start, those that other workflows provided.

    Parameters of steps get these values by name. The context of a workflow without tests is passed
    on to the workflows that depend on it.
    """

    _depends: ClassVar[tuple[object, ...]] = ()
    _responses: dict[str, Any]  # last result by step, for `self.<step>.response`
    _received: Mapping[str, Mapping[str, Any]]  # what `@state` uses were given, by method

    if not TYPE_CHECKING:  # a type checker looks at the __init__ of each class
        # In __new__, so that a subclass with its own __init__ need not call ours.
        def __new__(cls, *_args, **_kwargs):
            instance = super().__new__(cls)
            instance.context = {}
            instance._responses = {}
            instance._received = {}
            return instance


def attach(
    instance: Workflow,
    *,
    client: "Client",
    context: dict[str, Any],
    received: Mapping[str, Mapping[str, Any]],
) -> None:
    """Make `instance` a virtual user: attach its client, its context and the provided values."""
    instance.client = client
    instance.context = context
    instance._received = received


def remember(instance: Workflow, step: str, result: object) -> None:
    """Keep a step's result for `self.<step>.response`."""
    instance._responses[step] = result
