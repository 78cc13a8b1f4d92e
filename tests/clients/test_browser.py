"""`self.client.browser` beyond the contract: timings, scripts, failures and their pictures."""

from pathlib import Path
from typing import Any

import pytest

from hyperscale.clients import ClientError
from tests.clients.test_contract import opened, play
from tests.lab.command import results, run
from tests.services.fixtures import GetService

pytestmark = pytest.mark.service("browser")


def test_a_page_has_the_times_that_the_browser_measured(service: GetService) -> None:
    url = service("browser").client_url

    async def main() -> None:
        async with opened(timeout_s=60.0) as (hub, _):
            seen = await hub.client(0).browser.visit(url)
            assert (seen.status, seen.title, seen.url) == (200, "home", url)
            assert seen.requests >= 2
            assert seen.bytes_received > 0
            assert seen.ttfb_s is not None
            assert seen.load_s is not None
            assert 0 < seen.ttfb_s <= seen.load_s <= seen.elapsed_s
            assert seen.inp_s is None

    play(main)


def test_a_script_acts_on_the_page_and_its_time_counts(service: GetService) -> None:
    url = service("browser").client_url
    texts = []

    async def buy(page: Any) -> None:
        await page.get_by_role("button").click()
        texts.append(await page.get_by_role("button").text_content())
        await page.goto(f"{url}7")

    async def main() -> None:
        async with opened(timeout_s=60.0) as (hub, _):
            seen = await hub.client(0).browser.visit(url, buy)
            assert (seen.title, seen.url) == ("7", f"{url}7")

    play(main)
    assert texts == ["Bought"]


def test_failed_pages_leave_pictures_and_a_page_that_works(
    service: GetService, tmp_path: Path
) -> None:
    url = service("browser").client_url

    async def stumble(page: Any) -> None:
        raise LookupError("no such button")

    async def main() -> None:
        async with opened(timeout_s=60.0) as (hub, _):
            browser = hub.client(0).browser
            with pytest.raises(ClientError) as failed:
                await browser.visit(f"{url}missing", screenshots=str(tmp_path / "shots"))
            assert (failed.value.error, failed.value.code) == ("status", "404")
            with pytest.raises(LookupError):
                await browser.visit(url, stumble, screenshots=str(tmp_path / "shots"))
            assert (await browser.visit(url)).title == "home"

    play(main)
    shots = list((tmp_path / "shots").iterdir())
    assert len(shots) == 2
    assert all(shot.read_bytes().startswith(b"\x89PNG") for shot in shots)


def test_web_vitals_are_metrics_that_thresholds_can_use(
    service: GetService, tmp_path: Path
) -> None:
    (tmp_path / "pages.py").write_text(
        "from hyperscale import Workflow, step\n"
        "from hyperscale.testing import PlaywrightResult\n\n\n"
        "class Pages(Workflow):\n"
        "    vus = 1\n"
        "    iterations = 3\n"
        "    duration = '60s'\n"
        "    thresholds = {'home_lcp.p95': '<0.001ms', 'home_cls.max': '<1'}\n\n"
        "    @step()\n"
        "    async def home(self) -> PlaywrightResult:\n"
        f"        return await self.client.browser.visit({service('browser').client_url!r})\n"
    )
    done = run("run", "pages.py", "--json", "r.json", cwd=tmp_path)
    assert done.code == 1, done.stdout + done.stderr
    result = results(tmp_path / "r.json")
    workflow = result["workflows"][0]
    metrics = {metric["name"]: metric for metric in workflow["metrics"]}
    assert {name for name, metric in metrics.items() if metric["count"] == 3} >= {
        "home_ttfb",
        "home_fcp",
        "home_lcp",
        "home_cls",
    }
    assert metrics["home_lcp"]["kind"] == "timer"
    verdicts = {each["name"]: each["passed"] for each in result["thresholds"]}
    assert verdicts == {"home_lcp.p95": False, "home_cls.max": True}
