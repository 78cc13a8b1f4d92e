"""Load tests written as Python classes.

    from hyperscale import Workflow, step
    from hyperscale.testing import URL, HTTPResponse

Names are fetched when they are first used, so importing the package costs nothing.
"""

TYPE_CHECKING = False  # for type checkers; importing `typing` would delay every command
if TYPE_CHECKING:
    from hyperscale.client.client import HyperscaleClient
    from hyperscale.client.submission import JobSubmission
    from hyperscale.graph import (
        Provide,
        Use,
        Workflow,
        action,
        check,
        depends,
        metric,
        setup,
        state,
        step,
        teardown,
    )
    from hyperscale.nodes.gate import GateServer
    from hyperscale.nodes.manager import ManagerServer
    from hyperscale.nodes.worker import WorkerServer
    from hyperscale.runner import LocalRunner
    from hyperscale.testing.feed import Feed
    from hyperscale.testing.mix import Mix
    from hyperscale.testing.parameters import Param

__all__ = [
    "Feed",
    "GateServer",
    "HyperscaleClient",
    "JobSubmission",
    "LocalRunner",
    "ManagerServer",
    "Mix",
    "Param",
    "Provide",
    "Use",
    "WorkerServer",
    "Workflow",
    "action",
    "check",
    "depends",
    "metric",
    "setup",
    "state",
    "step",
    "teardown",
]

_HOMES = {
    "Feed": "hyperscale.testing.feed",
    "GateServer": "hyperscale.nodes.gate",
    "HyperscaleClient": "hyperscale.client.client",
    "JobSubmission": "hyperscale.client.submission",
    "LocalRunner": "hyperscale.runner",
    "ManagerServer": "hyperscale.nodes.manager",
    "Mix": "hyperscale.testing.mix",
    "Param": "hyperscale.testing.parameters",
    "WorkerServer": "hyperscale.nodes.worker",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'hyperscale' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  commands start sooner without it

    home = _HOMES.get(name, "hyperscale.graph")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
