"""The same run from Python: for scripts, notebooks and tests of your own.

python examples/local_runner.py
"""

import asyncio

from hyperscale import LocalRunner, Workflow, step
from hyperscale.testing import URL, HTTPResponse


class Smoke(Workflow):
    vus = 5
    duration = "2s"
    interval = "10ms"

    @step()
    async def home(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)


async def main() -> None:
    runner = LocalRunner(workers=1)
    result = await runner.run(
        test_name="smoke",
        workflows=[(["nightly"], Smoke())],
        terminal_mode="ci",
        timeout="1m",
    )
    smoke = result.workflows[0]
    print(f"{smoke.ok} ok, {smoke.failed} failed, p99 {smoke.latency_ms.p99} ms")


# Executors import this file too: what only the script is to do stays below this line.
if __name__ == "__main__":
    asyncio.run(main())
