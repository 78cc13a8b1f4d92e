from collections.abc import Iterator

import pytest

from tests.lab.cluster import Cluster, running_cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run three managers and three workers of one core for all tests of a module."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "lab") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """Yield the shared cluster with all nodes ready and no jobs."""
    shared.heal()
    return shared
