"""The page on nodes says what is there: every setting and every metric."""

import asyncio
import re

from hyperscale.nodes.manager import MANAGER_ROLE
from hyperscale.nodes.member import open_member
from hyperscale.nodes.server import complete_config
from tests.config.reference import DOCUMENT, in_document, table

PAGES = (DOCUMENT, DOCUMENT.with_name("ledger.md"))


def test_the_table_of_settings_is_that_of_the_schema() -> None:
    assert in_document() == table(), "run: python -m tests.config.reference"


def test_every_metric_is_listed_and_no_other() -> None:
    async def scrape() -> bytes:
        config = complete_config("manager", {"listen": {"port": 0, "http_port": 0}})
        async with open_member(config, MANAGER_ROLE) as member:
            await member.wait_ready(30)  # with its ledger
            return member.metrics()

    served = set(re.findall(r"^# TYPE (\S+)", asyncio.run(scrape()).decode(), re.MULTILINE))
    pages = "\n".join(page.read_text() for page in PAGES)
    listed = set(re.findall(r"^\| `((?:hyperscale|ledger|process)_\w+)`", pages, re.MULTILINE))
    assert served == listed
