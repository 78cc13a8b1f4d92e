"""A gate and two datacenters in one program: one job over both, and the figures of each.

python examples/many_datacenters.py     (with `hyperscale target` running)
"""

import asyncio
from typing import Any

from hyperscale import (
    GateServer,
    HyperscaleClient,
    ManagerServer,
    WorkerServer,
    Workflow,
    step,
)
from hyperscale.testing import URL, HTTPResponse

BASE = "http://localhost:8080"


class Browse(Workflow):
    vus = 4  # of the job: the datacenters share them
    duration = "3s"

    @step()
    async def home(self, url: URL = f"{BASE}/delay/5") -> HTTPResponse:
        return await self.client.http.get(url)


def settings(name: str, datacenter: str = "default", **tables: Any) -> dict[str, Any]:
    node = {"id": name, "datacenter": datacenter, "data_dir": f"data/{name}", "cores": 1}
    return {"node": node, "listen": {"port": 0, "http_port": 0}, **tables}


async def main() -> None:
    gate = GateServer(settings("gate-1"))
    await gate.start(timeout_s=30)
    nodes: list[ManagerServer | WorkerServer] = []
    for where in ("east", "west"):
        manager = ManagerServer(settings(f"{where}-m", where, gates={"seeds": [gate.address]}))
        await manager.start(timeout_s=30)
        seeds = {"seeds": [manager.address]}
        worker = WorkerServer(settings(f"{where}-w", where, discovery=seeds))
        await worker.start(timeout_s=30)
        nodes += [worker, manager]
    async with HyperscaleClient(gate_tcp_addrs=[gate.address]) as client:
        while True:
            rows = await client.list_datacenters()
            if [row.health for row in rows] == ["healthy", "healthy"]:
                break
            await asyncio.sleep(0.2)
        job = await client.submit_job([Browse], target_datacenters=["east", "west"])
        final = await client.wait_for_completion(job)
    for part in final.result.datacenter_results:
        (browse,) = part.workflows
        p99 = f"p99 {browse.latency_ms.p99:.1f} ms"
        print(f"{part.datacenter}: {part.status}, {browse.vus} users, {p99}")
    print(f"{final.status}: {final.total_completed} ok, {final.total_failed} failed")
    for node in nodes:
        await node.graceful_shutdown()
    await gate.graceful_shutdown()


if __name__ == "__main__":
    asyncio.run(main())
