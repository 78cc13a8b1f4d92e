"""What must hold for a run to pass. A failed threshold makes the exit code 1.

hyperscale run examples/thresholds.py
"""

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse


class Checkout(Workflow):
    vus = 20
    duration = "5s"
    thresholds = {
        # Of the whole workflow, or of one step: p50 p90 p95 p99 p999 mean max rate errors total
        "p95": "<1s",
        "pay.p99": "<2s",
        "rate": ">50/s",
        # In every two seconds of the run, not only over all of it.
        "p90": "<1s over 2s",
        # This one does not wait for the end: the run stops as soon as it is missed.
        "errors": {"limit": "<5%", "abort_on_fail": True},
    }

    @step()
    async def basket(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("basket")
    async def pay(self, url: URL = "http://localhost:8080/delay/20") -> HTTPResponse:
        return await self.client.http.post(url)

    # A status of 400 or more is a failure, unless the step says it is not.
    @step("pay", accept=[404])
    async def receipt(self, url: URL = "http://localhost:8080/status/404") -> HTTPResponse:
        return await self.client.http.get(url)
