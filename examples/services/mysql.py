"""Reads and a transaction on MySQL or MariaDB.

hyperscale run mysql.py --set url=mysql://user:password@localhost/shop
"""

from hyperscale import Workflow, check, setup, step, teardown
from hyperscale.testing import MySQLResponse, Param

url = Param("mysql://root:password@localhost/test", secret=True)


class Orders(Workflow):
    vus = 8
    duration = "10s"

    @setup()
    async def make_tables(self) -> None:
        db = self.client.mysql
        await db.execute(url, "CREATE TABLE hs_stock (id int PRIMARY KEY, left_over int)")
        rows = [(item, 1_000_000) for item in range(100)]
        await db.execute_many(url, "INSERT INTO hs_stock VALUES (%s, %s)", rows)

    @step()
    async def look(self) -> MySQLResponse:
        item = self.iteration % 100
        return await self.client.mysql.prepared(
            url, "SELECT left_over FROM hs_stock WHERE id = %s", item
        )

    @step("look")
    async def order(self) -> MySQLResponse:
        item = (self.vu * 7 + self.iteration) % 100
        async with self.client.mysql.transaction(url) as tx:
            await tx.execute("UPDATE hs_stock SET left_over = left_over - 1 WHERE id = %s", item)
        return tx.response

    @check()
    def item_exists(self, look: MySQLResponse) -> bool:
        return look.count == 1

    @teardown()
    async def drop_tables(self) -> None:
        await self.client.mysql.execute(url, "DROP TABLE hs_stock")
