"""Requests that the tracing system of the target can find: one in ten carries a `traceparent`.

hyperscale target &
hyperscale run tracing.py
"""

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse


class Traced(Workflow):
    vus = 4
    duration = "5s"
    tracing = "10%"

    @step()
    async def read(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)
