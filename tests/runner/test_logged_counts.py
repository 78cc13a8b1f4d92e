"""Every count of local runs of many shapes equals the log of a server that others wrote."""

from pathlib import Path

import pytest

from hyperscale.reporting.results import RunStatus
from tests.lab.logged_servers import SERVERS
from tests.lab.shapes import assert_counted, write_shapes
from tests.runner.test_counts import run_once


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("server", SERVERS)
def test_a_run_of_every_shape_counts_what_the_server_logged(
    tmp_path: Path, server: str, workers: int
) -> None:
    with SERVERS[server](tmp_path / server) as logged:
        result = run_once(write_shapes(tmp_path / "shapes.py", logged.url), workers)
        assert result.status is RunStatus.COMPLETED, result
        assert {workflow.cores for workflow in result.workflows} == {workers}
        assert_counted(result, logged)
