"""The first test: two steps, ten seconds, one threshold.

hyperscale target                        in another terminal: something to test
hyperscale run examples/quickstart.py
"""

import os

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse

# A test file is a Python file: it may read its settings from wherever it likes.
TARGET = os.environ.get("TARGET", "http://localhost:8080")


class Quickstart(Workflow):
    vus = 50
    duration = "10s"
    thresholds = {"errors": "<1%"}

    @step()
    async def home(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home")
    async def slow(self, url: URL = f"{TARGET}/delay/5") -> HTTPResponse:
        return await self.client.http.get(url)
