"""Load at a rate, and in stages with pauses.

hyperscale run examples/load_shapes.py
"""

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse


class Visitors(Workflow):
    """Open: 100 iterations begin every second, whether or not earlier ones have ended."""

    rate = "100/s"
    duration = "3s"
    max_vus = 200
    arrivals = "poisson"
    # Latencies count from when an iteration was due, so waiting for a free user is in them.
    thresholds = {"p99": "<2s", "iteration.p99": "<2s", "dropped": "<5%"}

    @step()
    async def page(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)


class Shoppers(Workflow):
    """Closed: users join for one second, stay for another, and leave after their iteration."""

    stages = [("1s", 10), ("1s", 10), ("1s", 0)]
    think = ("50ms", "150ms")
    warmup = "500ms"  # run, and not in the statistics

    @step()
    async def basket(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("basket")
    async def pay(self, url: URL = "http://localhost:8080/delay/20") -> HTTPResponse:
        return await self.client.http.post(url)
