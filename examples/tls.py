"""HTTPS: verified by default; with an authority of your own; and, knowingly, not at all.

hyperscale target --port 8443 --tls-self-signed ca.pem
hyperscale run examples/tls.py
"""

import os

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse

CA = os.environ.get("CA", "ca.pem")


class Secure(Workflow):
    vus = 5
    duration = "3s"
    interval = "10ms"

    @step()
    async def own_authority(self, url: URL = "https://localhost:8443/json") -> HTTPResponse:
        return await self.client.http.get(url, ca=CA)

    @step()
    async def unverified(self, url: URL = "https://localhost:8443/json") -> HTTPResponse:
        return await self.client.http.get(url, verify=False)


class Handshakes(Workflow):
    vus = 2
    duration = "3s"
    # A new connection, and so a new handshake, for every request.
    connections = "per-request"

    @step()
    async def fresh(self, url: URL = "https://localhost:8443/") -> HTTPResponse:
        return await self.client.http.get(url, ca=CA)
