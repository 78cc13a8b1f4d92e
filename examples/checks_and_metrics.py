"""Checks judge what came back; metrics are numbers of your own.

Both take results by the names of the steps they look at, and are counted per iteration.

    hyperscale run examples/checks_and_metrics.py
"""

from hyperscale import Workflow, check, metric, step
from hyperscale.testing import URL, HTTPResponse


class Catalogue(Workflow):
    vus = 20
    duration = "5s"
    interval = "20ms"
    # With a threshold on `checks`, that decides; without one, any failed check fails the run.
    thresholds = {"checks": ">99%", "payload": "<4096", "pages": ">0"}

    @step()
    async def page(self, url: URL = "http://localhost:8080/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("page")
    async def image(self, url: URL = "http://localhost:8080/bytes/2048") -> HTTPResponse:
        return await self.client.http.get(url)

    @check()
    def page_is_json(self, page: HTTPResponse) -> bool:
        return page.headers.get("content-type", "").startswith("application/json")

    # A check may also raise; what it says is shown with the results.
    @check()
    def image_is_whole(self, image: HTTPResponse) -> None:
        assert len(image.content) == 2048, f"{len(image.content)} bytes"

    @metric("count")
    def pages(self, page: HTTPResponse) -> int:
        return 1

    @metric("distribution")
    def payload(self, page: HTTPResponse, image: HTTPResponse) -> int:
        return len(page.content) + len(image.content)

    @metric("timer")
    def round_trip(self, image: HTTPResponse) -> float:
        return image.elapsed_s
