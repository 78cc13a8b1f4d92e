"""A cluster per test, with the logs of its nodes shown when it fails."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.lab import Cluster

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> "Iterator[None]":
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(tmp_path) as running:
        yield running
        if request.node.stash.get(_FAILED, False):
            for node in running.nodes:
                sys.stderr.write(f"--- {node.name}\n{node.output()[-4000:]}\n")
