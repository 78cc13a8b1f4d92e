"""The authoring API: `Workflow` and its decorators, and how classes become a plan."""

from hyperscale.graph.blueprint import Blueprint, Hook, blueprint
from hyperscale.graph.hooks import (
    Provide,
    Use,
    action,
    check,
    depends,
    metric,
    setup,
    state,
    step,
    teardown,
)
from hyperscale.graph.loading import collect, load_module
from hyperscale.graph.planning import Overrides, build_plan
from hyperscale.graph.workflow import Workflow

__all__ = [
    "Blueprint",
    "Hook",
    "Overrides",
    "Provide",
    "Use",
    "Workflow",
    "action",
    "blueprint",
    "build_plan",
    "check",
    "collect",
    "depends",
    "load_module",
    "metric",
    "setup",
    "state",
    "step",
    "teardown",
]
