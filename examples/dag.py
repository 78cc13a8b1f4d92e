"""Steps and workflows in order, and side by side where nothing forbids it.

Steps: `login`, then `items` and `cart` at the same time, then `pay`.
Workflows: `Browse` and `Buy` at the same time, `Report` after both.

    hyperscale run examples/dag.py
"""

from hyperscale import Workflow, action, depends, step
from hyperscale.testing import URL, HTTPResponse


class Browse(Workflow):
    vus = 10
    duration = "3s"
    interval = "10ms"
    priority = "low"

    @step()
    async def home(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)


class Buy(Workflow):
    vus = 10
    duration = "3s"

    @step()
    async def login(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("login")
    async def items(self, url: URL = "http://localhost:8080/delay/10") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("login")
    async def cart(self, url: URL = "http://localhost:8080/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)

    # A parameter named like an earlier step receives what that step returned.
    @step("items", "cart")
    async def pay(
        self,
        items: HTTPResponse | None = None,
        cart: HTTPResponse | None = None,
        url: URL = "http://localhost:8080/echo",
    ) -> HTTPResponse:
        seen = [response.status for response in (items, cart) if response]
        return await self.client.http.post(url, json={"seen": seen})


@depends("Browse", "Buy")
class Report(Workflow):
    vus = 1
    duration = "10s"

    # No step returns a response, so this is not a load test: it runs once, on one core.
    @action()
    async def announce(self) -> None:
        print("browsing and buying are over")
