"""Values that are set when the test is run: an address, a token, the size of the load.

    hyperscale run examples/parameters.py
    hyperscale run examples/parameters.py --set base=https://staging.shop.test --set vus=50
    HYPERSCALE_SET_TOKEN=… hyperscale submit examples/parameters.py

`Param` returns the value itself, so it can be used wherever a value can. Its type is that of the
default; a `Param()` without a default has to be set.
"""

from hyperscale import Param, Workflow, step
from hyperscale.testing import URL, Headers, HTTPResponse

base = Param("http://localhost:8080")
# Shown as *** in output, results and reports, and deleted with its job.
token = Param("token-for-development", secret=True)


class Shop(Workflow):
    vus = Param(10)
    duration = "5s"

    # Both steps are single requests with fixed parts: they run natively.
    @step()
    async def home(self, url: URL = f"{base}/") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home")
    async def account(
        self,
        url: URL = f"{base}/json",
        headers: Headers = {"Authorization": f"Bearer {token}"},
    ) -> HTTPResponse:
        return await self.client.http.get(url, headers=headers)
