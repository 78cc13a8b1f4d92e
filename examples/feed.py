"""Each iteration logs in with the next of the accounts.

hyperscale run examples/feed.py
"""

from hyperscale import Feed, Workflow, check, step
from hyperscale.testing import HTTPResponse

PEOPLE = [{"email": f"user{n}@shop.test", "plan": "free" if n % 3 else "paid"} for n in range(30)]


class Login(Workflow):
    vus = 10
    duration = "3s"
    # Or Feed("accounts.csv"): a CSV, JSON or JSONL file beside the test, sent along with it.
    accounts = Feed(PEOPLE)
    # One row for good for each user; with take="once", no two users have the same.
    shops = Feed([{"shop": f"shop-{n}"} for n in range(10)], per="vu", take="random")

    @step()
    async def login(self) -> HTTPResponse:
        body = {"email": self.accounts["email"], "shop": self.shops["shop"]}
        return await self.client.http.post("http://localhost:8080/echo", json=body)

    @check()
    def knows_the_account(self, login: HTTPResponse) -> bool:
        return self.accounts["email"] in login.text
