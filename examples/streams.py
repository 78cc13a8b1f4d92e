"""Server-sent events and streamed bodies: time to the first token and tokens per second.

hyperscale target &
hyperscale run examples/streams.py
"""

from hyperscale import Workflow, metric, step
from hyperscale.testing import (
    DISTRIBUTION,
    TIMER,
    URL,
    Metric,
    SSEResponse,
    StreamedResponse,
)


class Assistant(Workflow):
    vus = 10
    duration = "3s"

    @step()
    async def events(self, url: URL = "http://localhost:8080/sse/5/20") -> SSEResponse:
        return await self.client.sse.read(url, events=20)

    # The pieces of a body, each with its time: here 50 bytes over 100 milliseconds.
    @step("events")
    async def answer(self, url: URL = "http://localhost:8080/slow/100/50") -> StreamedResponse:
        return await self.client.http.stream(url)

    @metric()
    def first_token(self, answer: StreamedResponse) -> Metric[TIMER]:
        return answer.first_s or 0.0

    @metric()
    def tokens_per_second(self, answer: StreamedResponse) -> Metric[DISTRIBUTION]:
        return answer.rate or 0.0
