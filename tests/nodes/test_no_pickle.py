"""No message can execute code: no module of a node imports pickle.

Twice over: by the graph of imports, lazy ones included, and by what a running node has loaded.
"""

import subprocess
import sys

import grimp
import pytest

PACKAGES = ("wire", "membership", "health", "nodes")
EXECUTES_CODE = ("pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "xmlrpc")

LOADED = """
import asyncio, pkgutil, sys
import hyperscale
for package in {packages}:
    module = __import__(f"hyperscale.{{package}}", fromlist=["x"])
    for found in pkgutil.iter_modules(module.__path__, f"hyperscale.{{package}}."):
        __import__(found.name)
from hyperscale import ManagerServer

async def main():
    node = ManagerServer({{"listen": {{"port": 0, "http_port": 0}}}})
    await node.start()
    await node.graceful_shutdown()

asyncio.run(main())
print(*sorted(set(sys.modules) & {forbidden}))
"""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        "hyperscale",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )


def is_of_the_user(module: str) -> bool:
    """Return True for modules of the client, which pickles classes that have no file.

    No node imports them."""
    return module.startswith(("hyperscale.client.client", "hyperscale.lab")) and (
        module != "hyperscale.client.messages"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_no_node_module_imports_pickle(graph: grimp.ImportGraph, package: str) -> None:
    start = f"hyperscale.{package}"
    modules = {start, *graph.find_descendants(start)}
    modules = {module for module in modules if not is_of_the_user(module)}
    assert len(modules) > 3, "the package has moved"
    found = []
    for module in modules:
        for forbidden in EXECUTES_CODE:
            if forbidden in graph.modules:
                chain = graph.find_shortest_chain(module, forbidden)
                if chain is not None:
                    found.append(" -> ".join(chain))
    assert not found


def test_the_import_graph_contains_the_node_modules(graph: grimp.ImportGraph) -> None:
    """The executor may unpickle, as it runs user code anyway: the search finds it there."""
    assert any(
        graph.find_shortest_chain(module, "cloudpickle")
        or graph.find_shortest_chain(module, "pickle")
        for module in graph.find_descendants("hyperscale.execution")
        if {"cloudpickle", "pickle"} & graph.modules
    )


def test_a_running_node_has_loaded_no_pickle() -> None:
    script = LOADED.format(packages=PACKAGES, forbidden=set(EXECUTES_CODE) - {"marshal"})
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
