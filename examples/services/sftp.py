"""A partner that delivers files by SFTP: it uploads, lists and reads them back.

hyperscale run sftp.py --set 'url=sftp://user@localhost/incoming?key=id_ed25519'
"""

from hyperscale import Workflow, check, step
from hyperscale.testing import Param, SFTPResponse

url = Param("sftp://localhost/", secret=True)


class Deliveries(Workflow):
    vus = 4
    duration = "10s"

    @step()
    async def deliver(self) -> SFTPResponse:
        return await self.client.sftp.upload(url, f"orders-{self.vu}.csv", "lamp,20\n" * 1000)

    @step("deliver")
    async def look(self) -> SFTPResponse:
        return await self.client.sftp.list(url)

    @step("look")
    async def read_back(self) -> SFTPResponse:
        return await self.client.sftp.download(url, f"orders-{self.vu}.csv")

    @check()
    def is_whole(self, read_back: SFTPResponse) -> bool:
        return read_back.bytes_received == 8000
