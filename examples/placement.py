"""Labels of workers, and workflows that ask for them: a cluster of two zones in one program.

    python examples/placement.py

On real machines a worker gets its labels from its command line, `hyperscale worker --label zone=a`,
or from `[worker] labels = {zone = "a"}` in its configuration file.
"""

import asyncio

from hyperscale import HyperscaleClient, ManagerServer, WorkerServer, Workflow, step
from hyperscale.errors import InputError
from hyperscale.testing import URL, HTTPResponse

ANY_PORT = {"port": 0, "http_port": 0}


class FromBothZones(Workflow):
    vus = 4
    duration = "1s"
    interval = "10ms"
    spread = "zone"

    @step()
    async def home(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)


class FromZoneB(Workflow):
    vus = 4
    duration = "1s"
    interval = "10ms"
    constraints = {"zone": "b", "os": ["linux", "darwin"]}

    @step()
    async def home(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)


async def main() -> None:
    manager = ManagerServer({"node": {"id": "manager-1"}, "listen": ANY_PORT})
    await manager.start(timeout_s=30)
    workers = [
        WorkerServer(
            {
                "node": {"id": f"worker-{zone}", "cores": 1},
                "worker": {"labels": {"zone": zone}},
                "listen": ANY_PORT,
                "discovery": {"seeds": [manager.address]},
            }
        )
        for zone in ("a", "b")
    ]
    for worker in workers:
        await worker.start(timeout_s=30)
    async with HyperscaleClient([manager.address]) as client:
        for workflow in (FromBothZones, FromZoneB):
            job = await client.submit_job([workflow])
            final = await client.wait_for_completion(job, timeout="1m")
            (result,) = final.workflow_results
            print(f"{result.name} ran on {result.cores} cores")
        try:
            await client.submit_job([FromBothZones], constraints={"zone": "c"})
        except InputError as error:
            print(error.message)
    for node in (*workers, manager):
        await node.graceful_shutdown()


# Workers import this file too: what only the script is to do stays below this line.
if __name__ == "__main__":
    asyncio.run(main())
