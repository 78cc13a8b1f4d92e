"""A cluster and its client in one program: submit, be told, get the results.

    python examples/cluster.py

With a cluster that is there already (`hyperscale cluster up`, or managers elsewhere) only the
client is needed: HyperscaleClient(directory="hyperscale-cluster"), or with addresses.
"""

import asyncio

from hyperscale import HyperscaleClient, ManagerServer, WorkerServer, Workflow, step
from hyperscale.testing import URL, HTTPResponse

ANY_PORT = {"port": 0, "http_port": 0}


class Smoke(Workflow):
    vus = 5
    duration = "2s"
    interval = "10ms"

    @step()
    async def home(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)


async def main() -> None:
    manager = ManagerServer({"node": {"id": "manager-1"}, "listen": ANY_PORT})
    await manager.start(timeout_s=30)
    worker = WorkerServer(
        {
            "node": {"id": "worker-1", "cores": 1},
            "listen": ANY_PORT,
            "discovery": {"seeds": [manager.address]},
        }
    )
    await worker.start(timeout_s=30)
    async with HyperscaleClient([manager.address]) as client:
        job = await client.submit_job(
            [Smoke],
            on_status_update=lambda push: print(f"{push.job_id} is {push.status}"),
        )
        async for push in client.stream_workflow_results(job):
            print(f"{push.workflow_name}: {push.total_completed} ok, {push.total_failed} failed")
        final = await client.wait_for_completion(job, timeout="1m")
        print(f"{final.status} in {final.elapsed_seconds:.1f} s on {final.datacenter}")
    await worker.graceful_shutdown()
    await manager.graceful_shutdown()


# Workers import this file too: what only the script is to do stays below this line.
if __name__ == "__main__":
    asyncio.run(main())
