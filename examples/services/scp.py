"""Machines that copy their logs to a server with scp, and read them back.

hyperscale run scp.py --set 'url=scp://user@localhost/incoming?key=id_ed25519'
"""

from hyperscale import Workflow, check, step
from hyperscale.testing import Param, SCPResponse

url = Param("scp://localhost/", secret=True)


class Deliveries(Workflow):
    vus = 4
    duration = "10s"

    @step()
    async def deliver(self) -> SCPResponse:
        return await self.client.scp.upload(url, f"orders-{self.vu}.csv", "lamp,20\n" * 1000)

    @step("deliver")
    async def read_back(self) -> SCPResponse:
        return await self.client.scp.download(url, f"orders-{self.vu}.csv")

    @check()
    def is_whole(self, read_back: SCPResponse) -> bool:
        return read_back.bytes_received == 8000
