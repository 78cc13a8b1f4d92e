"""A chat over WebSockets: every user keeps a socket open and measures round trips.

hyperscale target &
hyperscale run examples/websocket.py
"""

from hyperscale import Workflow, check, metric, step
from hyperscale.testing import TIMER, URL, Metric, WebsocketResponse


class Chat(Workflow):
    vus = 20
    duration = "3s"
    thresholds = {"say.p99": "<2s"}

    # The first call of a user opens the socket; later iterations use it again.
    @step()
    async def say(self, url: URL = "ws://localhost:8080/ws") -> WebsocketResponse:
        message = {"user": self.vu, "text": "hello"}
        return await self.client.websocket.exchange(url, json=message)

    # Messages that the server sends of its own accord, collected for a while.
    @step("say")
    async def news(self, url: URL = "ws://localhost:8080/ws/10/1000000") -> WebsocketResponse:
        return await self.client.websocket.listen(url, duration="100ms")

    @check()
    def is_echoed(self, say: WebsocketResponse) -> bool:
        return bool(say.json()["user"] == self.vu)

    @metric()
    def between_news(self, news: WebsocketResponse) -> Metric[TIMER]:
        return max(news.gaps_s, default=0.0)
