"""A workflow in the style of published Hyperscale examples.

hyperscale run examples/published_style.py
"""

from hyperscale.graph import Workflow, step
from hyperscale.testing import URL, Data, Headers, HTTPResponse


class Test(Workflow):
    vus = 100
    duration = "5s"

    @step()
    async def login(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("login")
    async def create_order(
        self,
        url: URL = "http://localhost:8080/echo",
        headers: Headers = {"X-Request-Source": "load-test"},
        data: Data = {"item": "book", "count": 1},
        login: HTTPResponse | None = None,
    ) -> HTTPResponse:
        return await self.client.http.post(url, headers=headers, data=data)

    @step("login")
    async def get_items(self, url: URL = "http://localhost:8080/bytes/512") -> HTTPResponse:
        return await self.client.http.get(url)
