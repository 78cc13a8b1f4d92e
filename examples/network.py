"""A host name that no DNS knows, and connections from several addresses of this machine.

hyperscale target
hyperscale run examples/network.py
"""

from urllib.parse import urlsplit

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse

BASE = "http://localhost:8080"
SHOP = f"http://shop.test:{urlsplit(BASE).port}"


class NewServer(Workflow):
    """Test a server before its name points to it."""

    vus = 5
    duration = "3s"
    interval = "10ms"
    resolve = {"shop.test": "127.0.0.1"}

    @step()
    async def items(self, url: URL = f"{SHOP}/json") -> HTTPResponse:
        return await self.client.http.get(url)


class ManyConnections(Workflow):
    """One address of a machine has ports for some 28,000 connections to a server; here are two."""

    vus = 4
    duration = "3s"
    interval = "10ms"
    connections = "per-request"
    bind = ["127.0.0.2", "127.0.0.3"]

    @step()
    async def home(self, url: URL = f"{BASE}/") -> HTTPResponse:
        return await self.client.http.get(url)

    # A call may say otherwise: this one comes from any address.
    @step("home")
    async def items(self, url: URL = f"{BASE}/json") -> HTTPResponse:
        return await self.client.http.get(url, bind=None)
