from collections.abc import Iterator

import pytest

from tests.lab.cluster import Cluster, running_cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three managers and three workers of one core, for all tests of a module."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "lab") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The same, whole again whatever the test before did to it."""
    shared.heal()
    return shared
