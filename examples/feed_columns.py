"""Each iteration requests the next of the pages, without the interpreter.

hyperscale run examples/feed_columns.py
"""

from hyperscale import Feed, Workflow, step
from hyperscale.testing import URL, Data, Headers, HTTPResponse

ORDERS = [
    {
        "url": f"http://localhost:8080/echo?order={n}",
        "headers": {"X-Shop": f"shop-{n % 3}"},
        "body": {"order": n, "items": [n, n + 1]},
    }
    for n in range(20)
]


class Orders(Workflow):
    vus = 10
    duration = "3s"
    # Or Feed("orders.csv"): a CSV, JSON or JSONL file beside the test, sent along with it.
    orders = Feed(ORDERS)

    # The parts of each row are prepared once. In a step that is a single call on such parts, the
    # native engine takes the rows by itself.
    @step()
    async def order(
        self,
        url: URL = orders.column("url"),
        headers: Headers = orders.column("headers"),
        body: Data = orders.column("body"),
    ) -> HTTPResponse:
        return await self.client.http.post(url, headers=headers, data=body)
