"""Each iteration browses or buys: of steps with a weight, one is chosen.

hyperscale run examples/alternatives.py
"""

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse


class Shop(Workflow):
    vus = 10
    iterations = 1000

    @step()
    async def home(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)

    # Three of four iterations, in the long run. The choice is the same in every run.
    @step("home", weight=3)
    async def browse(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home", weight=1)
    async def buy(self, url: URL = "http://localhost:8080/echo") -> HTTPResponse:
        return await self.client.http.post(url)

    # Only after the alternative it waits for.
    @step("buy")
    async def pay(self, url: URL = "http://localhost:8080/echo") -> HTTPResponse:
        return await self.client.http.post(url)

    # After either of them.
    @step("browse", "buy")
    async def leave(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)
