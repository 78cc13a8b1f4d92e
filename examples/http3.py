"""HTTP/3: the requests of an iteration share the QUIC connection of their user.

The three steps have no dependencies, so they are sent together, each on a stream of its own.
Start a target for it: `hyperscale target --tls-self-signed ca.pem --http3-port 8080`.
"""

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTP3Response


class Page(Workflow):
    vus = 20
    duration = "10s"
    streams = 10  # requests at once on a connection

    @step()
    async def page(self, url: URL = "https://localhost:8080/") -> HTTP3Response:
        return await self.client.http3.get(url, ca="ca.pem")

    @step()
    async def data(self, url: URL = "https://localhost:8080/json") -> HTTP3Response:
        return await self.client.http3.get(url, ca="ca.pem")

    @step()
    async def image(self, url: URL = "https://localhost:8080/bytes/20000") -> HTTP3Response:
        return await self.client.http3.get(url, ca="ca.pem")
