"""A partner that delivers files by FTP: it uploads, lists and reads them back.

hyperscale run ftp.py --set url=ftp://user:password@localhost/incoming
"""

from hyperscale import Workflow, check, step
from hyperscale.testing import FTPResponse, Param

url = Param("ftp://localhost/", secret=True)


class Deliveries(Workflow):
    vus = 4
    duration = "10s"

    @step()
    async def deliver(self) -> FTPResponse:
        return await self.client.ftp.upload(url, f"orders-{self.vu}.csv", "lamp,20\n" * 1000)

    @step("deliver")
    async def look(self) -> FTPResponse:
        return await self.client.ftp.list(url)

    @step("look")
    async def read_back(self) -> FTPResponse:
        return await self.client.ftp.download(url, f"orders-{self.vu}.csv")

    @check()
    def is_whole(self, read_back: FTPResponse) -> bool:
        return read_back.bytes_received == 8000
