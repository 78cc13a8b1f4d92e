"""Import paths of the authoring API, and the modules that they load."""

import subprocess
import sys
from importlib import import_module

import pytest

import hyperscale
from hyperscale import graph, testing

AUTHORING = ("Workflow", "step", "action", "check", "metric", "state", "depends")


@pytest.mark.parametrize("path", ["hyperscale", "hyperscale.graph", "hyperscale.core.graph"])
def test_the_authoring_api_is_the_same_under_every_path(path: str) -> None:
    module = import_module(path)
    for name in (*AUTHORING, "setup", "teardown"):
        assert getattr(module, name) is getattr(graph, name)


def test_hooks_have_the_import_path_of_published_tests() -> None:
    hooks = import_module("hyperscale.core.hooks")
    assert (hooks.Provide, hooks.Use, hooks.Hook) == (graph.Provide, graph.Use, graph.Hook)


def test_plugins_and_the_runner_have_the_import_paths_of_published_tests() -> None:
    plugin = import_module("hyperscale.plugin")
    reporting = import_module("hyperscale.reporting")
    assert plugin.CustomResult is testing.CustomResult
    for name in ("CustomReporter", "StepMetricSet", "WorkflowMetricSet"):
        assert getattr(plugin, name) is getattr(reporting, name)
    runner = import_module("hyperscale.core.jobs.runner.local_runner")
    assert runner.LocalRunner is hyperscale.LocalRunner


def test_importing_the_package_alone_loads_nothing_of_it() -> None:
    code = "import sys, hyperscale; print([m for m in sys.modules if 'hyperscale.' in m])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_package_lists_its_names_and_refuses_others() -> None:
    assert set(hyperscale.__all__) <= set(dir(hyperscale))
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        hyperscale.nosuch  # noqa: B018 - reading it is the test


def test_authoring_needs_no_native_module() -> None:
    code = "import sys, hyperscale.graph, hyperscale.jobs.provisioner, hyperscale.plan.context\n"
    code += "print('hyperscale._native' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
