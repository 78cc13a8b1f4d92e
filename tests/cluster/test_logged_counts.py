"""Every count of jobs of many shapes on three workers equals the log of a server that others
wrote."""

from pathlib import Path

import pytest

from hyperscale.reporting.results import RunStatus
from tests.lab.cluster import Cluster
from tests.lab.logged_servers import SERVERS
from tests.lab.loops import on_loop
from tests.lab.shapes import assert_counted, write_shapes


@pytest.mark.timeout(120)
@pytest.mark.parametrize("server", SERVERS)
@on_loop
async def test_a_job_of_every_shape_counts_what_the_server_logged(
    cluster: Cluster, tmp_path: Path, server: str
) -> None:
    with SERVERS[server](tmp_path / server) as logged:
        async with cluster.client() as client:
            job = await client.submit_job(write_shapes(tmp_path / "shapes.py", logged.url))
            result = (await client.wait_for_completion(job)).result
        assert result.status is RunStatus.COMPLETED, result
        assert (result.gaps, result.segments) == ([], [])
        assert {len(workflow.workers) for workflow in result.workflows} == {3}
        assert_counted(result, logged)
