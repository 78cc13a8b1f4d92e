"""Clusters of node processes for tests, their directories, and the file of soak results."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.nodes import NodeCluster
from tests.lab.soak_report import MEMBERS, Report

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> "Iterator[None]":
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def report() -> Report:
    return Report(MEMBERS)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in its own directory: nodes keep their data below it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeCluster]:
    """Yield a cluster of the test; print the logs of its nodes if the test fails."""
    with NodeCluster(tmp_path) as running:
        yield running
        if request.node.stash.get(_FAILED, False):
            for node in running.nodes:
                sys.stderr.write(f"--- {node.name}\n{node.output()[-4000:]}\n")
