"""`self.client.mysql` beyond the contract."""

import pytest

from hyperscale.clients import ClientError
from hyperscale.errors import InputError
from hyperscale.plan import Connections
from tests.clients.test_contract import opened, play
from tests.services.fixtures import GetService

pytestmark = pytest.mark.service("mysql")


def test_rows_changes_and_ids_are_returned(service: GetService) -> None:
    url = service("mysql").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            db = hub.client(0).mysql
            await db.execute(url, "CREATE TABLE made (id int PRIMARY KEY AUTO_INCREMENT, n int)")
            first = await db.execute(url, "INSERT INTO made (n) VALUES (%s)", 7)
            assert (first.changed, first.last_id, first.rows) == (1, 1, ())
            many = await db.execute_many(url, "INSERT INTO made (n) VALUES (%s)", [[1], [2], [3]])
            assert many.changed == 3
            rows = await db.query(url, "SELECT id, n FROM made WHERE id > %s ORDER BY id", 1)
            assert (rows.columns, list(rows.rows)) == (["id", "n"], [(2, 1), (3, 2), (4, 3)])
            for _ in range(3):
                again = await db.prepared(url, "SELECT n FROM made WHERE id = %s", 1)
                assert (again.scalar, again.count) == (7, 1)
            await db.execute(url, "DROP TABLE made")

    play(main)


def test_a_transaction_commits_or_rolls_back(service: GetService) -> None:
    server = service("mysql")

    async def main() -> None:
        async with opened(Connections.SHARED) as (hub, _):
            db = hub.client(0).mysql
            url = server.client_url
            await db.execute(url, "CREATE TABLE paid (id int)")
            async with db.transaction(url) as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                assert (await tx.query("SELECT count(*) FROM paid")).scalar == 1
            assert tx.response.latency_ns > 0

            async def pay_and_fail() -> None:
                async with db.transaction(url) as tx:
                    await tx.execute("INSERT INTO paid VALUES (2)")
                    await tx.execute("INSERT INTO nowhere VALUES (2)")

            with pytest.raises(ClientError) as failed:
                await pay_and_fail()
            assert (failed.value.error, failed.value.code) == ("server", "1146")
            assert (await db.query(url, "SELECT id FROM paid")).rows == ((1,),)
            assert server.connections() == 1
            await db.execute(url, "DROP TABLE paid")

    play(main)


def test_wrong_options_of_the_url_are_refused(service: GetService) -> None:
    url = service("mysql").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            with pytest.raises(InputError, match="tls='maybe' is unknown"):
                await hub.client(0).mysql.query(f"{url}?tls=maybe", "SELECT 1")

    play(main)
