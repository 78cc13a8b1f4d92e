"""Take nodes out of service from Python."""

import asyncio
from pathlib import Path

import pytest

from hyperscale import HyperscaleClient, ManagerServer, WorkerServer
from hyperscale.client.messages import WorkerRow
from hyperscale.errors import InputError, RunError
from tests.lab.loops import on_loop

ANY_PORT = {"port": 0, "http_port": 0}


async def the_worker(client: HyperscaleClient, *, is_draining: bool) -> WorkerRow:
    """Wait until the allocator knows the only worker in this state; return its row."""
    async with asyncio.timeout(30):
        while True:
            reply = await client.get_workers()
            if not reply.unknown and [w.is_draining for w in reply.workers] == [is_draining]:
                return reply.workers[0]
            await asyncio.sleep(0.05)


@on_loop
async def test_only_a_known_node_that_the_cluster_can_spare_is_drained(tmp_path: Path) -> None:
    manager = ManagerServer({"listen": ANY_PORT, "node": {"data_dir": str(tmp_path / "manager")}})
    await manager.start(timeout_s=60)
    worker = WorkerServer(
        {
            "listen": ANY_PORT,
            "node": {"data_dir": str(tmp_path / "worker")},
            "discovery": {"seeds": [manager.address]},
        }
    )
    await worker.start(timeout_s=60)
    async with HyperscaleClient([manager.address]) as client:
        row = await the_worker(client, is_draining=False)
        for _ in range(2):  # a second drain is harmless
            assert (await client.drain_node(row.worker)).left == 0
        await the_worker(client, is_draining=True)
        with pytest.raises(InputError, match="no manager and no worker 'worker-9'") as unknown:
            await client.drain_node("worker-9")
        assert "hyperscale workers" in unknown.value.hint
        with pytest.raises(RunError, match="is the only active manager"):
            await client.drain_node(manager.node_id)
    await worker.graceful_shutdown()
    await manager.graceful_shutdown()
