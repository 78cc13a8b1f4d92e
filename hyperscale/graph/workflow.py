"""`Workflow`: the base of every test, and the attributes one can set.

Holds no behaviour of a run. An executor makes one instance per virtual user and attaches
its client; the rest of what an instance carries is the user's own.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from hyperscale.plan import Connections, Priority

if TYPE_CHECKING:
    from hyperscale.clients import Client

# Attributes the design knows and a run does not yet: refused, never silently ignored.
COMING_ATTRIBUTES = ("rate", "stages", "data", "weights", "on_isolation")


class _Detached:
    """Stands in for `self.client` until an executor attaches one."""

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__}.client exists only on a virtual user while a run is on"
        )


class Workflow:
    """A load test: its steps are looped by `vus` virtual users for `duration`.

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
    """What must hold for the run to pass: `{"login.p99": "<250ms", "errors": "<1%"}`."""
    tags: Collection[str] = ()
    connections: str | Connections = "per-vu"
    """Whose connections are: "per-vu" (kept alive), "shared" or "per-request"."""
    abstract: bool = False
    """True on a class that is only a base for others (not inherited): it is never run."""

    if TYPE_CHECKING:
        client: Client
        """Protocol clients of this virtual user: `self.client.http.get(url)`."""
    else:
        client = _Detached()
    context: dict[str, Any]
    """A virtual user's own values, beginning with what other workflows provided.

    Parameters of steps take them by name. What a workflow without tests leaves here, those
    that depend on it begin with.
    """

    _depends: ClassVar[tuple[object, ...]] = ()
    _responses: dict[str, Any]  # last result by step, for `self.<step>.response`
    _received: Mapping[str, Mapping[str, Any]]  # what `@state` uses were given, by method

    if not TYPE_CHECKING:  # how a class is called is for its own __init__ to say
        # In __new__, so that a subclass with its own __init__ need not call ours.
        def __new__(cls, *_args, **_kwargs):
            instance = super().__new__(cls)
            instance.context = {}
            instance._responses = {}
            instance._received = {}
            return instance

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "<locals>" not in cls.__qualname__:
            _DEFINED.setdefault(cls.__module__, []).append(cls)


# Every class written at the top of a module, by module: a second one of the same name
# replaces the first in the module, so only this list can tell.
_DEFINED: dict[str, list[type[Workflow]]] = {}


def defined_in(module: str) -> list[type[Workflow]]:
    """The workflow classes that `module` defined, in order, replaced ones included."""
    return list(_DEFINED.get(module, ()))


def forget_module(module: str) -> None:
    """Before a module is loaded anew."""
    _DEFINED.pop(module, None)


def attach(
    instance: Workflow,
    *,
    client: "Client",
    context: dict[str, Any],
    received: Mapping[str, Mapping[str, Any]],
) -> None:
    """Make `instance` a virtual user: its client, its own context, what it was provided."""
    instance.client = client
    instance.context = context
    instance._received = received


def remember(instance: Workflow, step: str, result: object) -> None:
    """Keep a step's result for `self.<step>.response`."""
    instance._responses[step] = result
