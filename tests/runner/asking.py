"""A workflow with parameters, which tests hand to `LocalRunner` as a class."""

from hyperscale import Param, Workflow, step
from hyperscale.testing import URL, HTTPResponse

asked_base = Param("http://127.0.0.1:1")
asked_key = Param(secret=True)


class Asks(Workflow):
    asked_times = Param(1)
    vus = 1
    duration = "30s"
    iterations = asked_times

    @step()
    async def go(self, url: URL = f"{asked_base}/json") -> HTTPResponse:
        assert asked_key
        return await self.client.http.get(url, headers={"X-Key": asked_key})
