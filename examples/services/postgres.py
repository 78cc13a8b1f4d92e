"""A shop's database: reads through prepared statements, orders in a transaction.

Run it on a database that it may write to:

    hyperscale run postgres.py --set url=postgresql://user:password@localhost/shop
"""

from hyperscale import Workflow, check, setup, step, teardown
from hyperscale.testing import Param, PostgresResponse

url = Param("postgresql://postgres:postgres@localhost/postgres", secret=True)


class Orders(Workflow):
    vus = 8
    duration = "10s"

    @setup()
    async def make_tables(self) -> None:
        await self.client.postgres.execute(
            url,
            """
            CREATE TABLE IF NOT EXISTS hs_stock (id int PRIMARY KEY, left_over int NOT NULL);
            CREATE TABLE IF NOT EXISTS hs_orders (item int NOT NULL, amount int NOT NULL);
            """,
        )
        records = [(item, 1_000_000) for item in range(100)]
        await self.client.postgres.copy_in(url, "hs_stock", records)

    @step()
    async def look(self) -> PostgresResponse:
        item = self.iteration % 100
        return await self.client.postgres.query(
            url, "SELECT left_over FROM hs_stock WHERE id = $1", item
        )

    @step("look")
    async def order(self) -> PostgresResponse:
        item = (self.vu * 7 + self.iteration) % 100
        async with self.client.postgres.transaction(url) as tx:
            await tx.execute("UPDATE hs_stock SET left_over = left_over - 1 WHERE id = $1", item)
            await tx.execute("INSERT INTO hs_orders VALUES ($1, 1)", item)
        return tx.response

    @check()
    def item_exists(self, look: PostgresResponse) -> bool:
        return look.count == 1

    @teardown()
    async def drop_tables(self) -> None:
        await self.client.postgres.execute(url, "DROP TABLE hs_stock, hs_orders")
