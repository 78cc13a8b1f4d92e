"""Several workflows that share one total of load by their weights.

hyperscale run examples/mix.py
hyperscale run examples/mix.py --vus 50
"""

from hyperscale import Mix, Workflow, step
from hyperscale.testing import URL, HTTPResponse

mix = Mix(vus=20, duration="3s")


class Browse(Workflow):
    weight = 3  # 15 of 20 users
    think = ("10ms", "50ms")

    @step()
    async def page(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)


class Buy(Workflow):
    weight = 1

    @step()
    async def order(self, url: URL = "http://localhost:8080/delay/20") -> HTTPResponse:
        return await self.client.http.post(url)
