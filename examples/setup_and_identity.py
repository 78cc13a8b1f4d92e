"""Who a virtual user is, and what is prepared before the load starts: once, per process, per user.

hyperscale run examples/setup_and_identity.py
"""

from hyperscale import Workflow, check, setup, step, teardown
from hyperscale.testing import URL, HTTPResponse

ACCOUNTS = [f"user-{number}" for number in range(20)]


class Shop(Workflow):
    vus = 20
    duration = "3s"
    interval = "100ms"

    # Once for the workflow, on whichever machine: every virtual user starts with this context.
    # Only plain data and what can be pickled goes there; `self` cannot be set here.
    @setup()
    async def open_shop(self, url: URL = "http://localhost:8080/json") -> None:
        response = await self.client.http.get(url)
        self.context["season"] = f"status {response.status}"

    # Once in each process, for anything its users share there. It may be set on `self`.
    @setup(per="executor")
    def load_prices(self) -> None:
        self.prices = {"apple": 3, "pear": 4}

    # Once for each virtual user, before the clock starts: only this user sees `self.account`.
    @setup(per="vu")
    async def login(self, url: URL = "http://localhost:8080/echo") -> None:
        # No two users of a run have the same number, on any machine.
        self.account = ACCOUNTS[self.vu]
        await self.client.http.post(url, data={"login": self.account})

    @step()
    async def buy(self, season: str, url: URL = "http://localhost:8080/echo") -> HTTPResponse:
        fruit = "apple" if self.iteration % 2 else "pear"
        order = {"for": self.account, "price": self.prices[fruit], "season": season}
        return await self.client.http.post(url, data=order)

    @check()
    def is_mine(self, buy: HTTPResponse) -> bool:
        return self.account in buy.text

    @teardown(per="vu")
    async def logout(self, url: URL = "http://localhost:8080/echo") -> None:
        await self.client.http.post(url, data={"logout": self.account})

    # Once, after the last virtual user of the last machine; the context is that of setup.
    @teardown()
    async def close_shop(self, url: URL = "http://localhost:8080/json") -> None:
        await self.client.http.get(url)
        print(f"closed after {self.context['season']}")
