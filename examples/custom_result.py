"""A step that measures something of its own: any work, any library, as a `CustomResult`.

Here two requests make one measurement: the step's time is the time of both.

    hyperscale run examples/custom_result.py
"""

from dataclasses import dataclass

from hyperscale import Workflow, check, step
from hyperscale.testing import URL, CustomResult


@dataclass
class Transfer(CustomResult):
    """What the step returns: counted, timed, and passed on like a response."""

    bytes_moved: int
    statuses: tuple[int, int]


class Mirror(Workflow):
    vus = 10
    duration = "3s"

    @step()
    async def copy(
        self,
        source: URL = "http://localhost:8080/bytes/1024",
        destination: URL = "http://localhost:8080/echo",
    ) -> Transfer:
        fetched = await self.client.http.get(source)
        stored = await self.client.http.put(destination, data=fetched.content)
        return Transfer(len(fetched.content), (fetched.status, stored.status))

    @check()
    def all_moved(self, copy: Transfer) -> bool:
        return copy.bytes_moved == 1024 and copy.statuses == (200, 200)
