"""A whole checkout: a shop that is created once, users that log in once, five steps, checks,
a metric and thresholds.

    hyperscale run examples/checkout.py
    hyperscale run examples/checkout.py --set base=https://shop.test --vus 100 --duration 1m
"""

from hyperscale import Param, Workflow, check, metric, setup, step, teardown
from hyperscale.testing import URL, HTTPResponse

base = Param("http://localhost:8080")


class Checkout(Workflow):
    vus = 20
    duration = "5s"
    interval = "100ms"
    timeout = "2s"
    thresholds = {"errors": "<1%", "pay.p99": "<2s"}

    @setup()
    async def open_shop(self, url: URL = f"{base}/echo") -> None:
        """Once for the whole job: every user starts with this context."""
        created = await self.client.http.post(url, json={"shop": "load test"})
        self.context["shop"] = created.json()["method"]

    @setup(per="vu")
    async def log_in(self, url: URL = f"{base}/cookies/set?session=open") -> None:
        """Once for each user: its cookies stay with it, and so do attributes of `self`."""
        await self.client.http.get(url)
        self.email = f"user-{self.vu}@shop.test"

    @step()
    async def home(self, url: URL = f"{base}/") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home")
    async def items(self, url: URL = f"{base}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home")
    async def cart(self, url: URL = f"{base}/delay/5") -> HTTPResponse:
        return await self.client.http.get(url)

    # After both, which run at the same time.
    @step("items", "cart")
    async def order(self, items: HTTPResponse, url: URL = f"{base}/echo") -> HTTPResponse:
        body = {"shop": self.context["shop"], "by": self.email, "items": len(items.content)}
        return await self.client.http.post(url, json=body)

    @step("order")
    async def pay(self, order: HTTPResponse, url: URL = f"{base}/echo") -> HTTPResponse:
        return await self.client.http.post(url, json={"order": order.status, "n": self.iteration})

    @check()
    def is_ordered(self, order: HTTPResponse) -> bool:
        return self.email in order.text

    @metric("distribution")
    def page_bytes(self, home: HTTPResponse, items: HTTPResponse) -> int:
        return len(home.content) + len(items.content)

    @teardown()
    async def close_shop(self, url: URL = f"{base}/echo") -> None:
        await self.client.http.delete(url)
