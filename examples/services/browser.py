"""A shop as people see it: pages in a real browser, with their web vitals.

hyperscale run browser.py --set url=https://shop.example.test/
"""

from typing import Any

from hyperscale import Workflow, check, step
from hyperscale.testing import Param, PlaywrightResult

url = Param("http://localhost:8080/")


class Visitors(Workflow):
    vus = 2
    duration = "30s"
    thresholds = {"home_lcp.p50": "<10s", "home_cls.max": "<0.25"}

    @step()
    async def home(self) -> PlaywrightResult:
        return await self.client.browser.visit(url, screenshots="screenshots")

    @step("home")
    async def buy(self) -> PlaywrightResult:
        async def click(page: Any) -> None:
            await page.get_by_role("button", name="Buy").click()
            await page.get_by_text("Bought").wait_for()

        return await self.client.browser.visit(url, click, screenshots="screenshots")

    @check()
    def has_a_title(self, home: PlaywrightResult) -> bool:
        return bool(home.title)
