"""HTTP/2: the requests of an iteration share the connection of their user.

The three steps have no dependencies, so they are sent together, each on a stream of its own.
"""

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTP2Response


class Page(Workflow):
    vus = 20
    duration = "10s"
    streams = 10  # requests at once on a connection

    @step()
    async def page(self, url: URL = "http://localhost:8080/") -> HTTP2Response:
        return await self.client.http2.get(url)

    @step()
    async def data(self, url: URL = "http://localhost:8080/json") -> HTTP2Response:
        return await self.client.http2.get(url)

    @step()
    async def image(self, url: URL = "http://localhost:8080/bytes/20000") -> HTTP2Response:
        return await self.client.http2.get(url)
