"""`self.client.postgres` beyond the contract: transactions, COPY, errors of SQL."""

import asyncio

import pytest

from hyperscale.clients import ClientError
from hyperscale.plan import Connections
from tests.clients.test_contract import opened, play
from tests.services.fixtures import GetService

pytestmark = pytest.mark.service("postgres")


def test_rows_values_and_statuses_are_returned(service: GetService) -> None:
    url = service("postgres").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            db = hub.client(0).postgres
            rows = await db.query(url, "SELECT id, name FROM items WHERE id < $1 ORDER BY id", 4)
            assert [row["name"] for row in rows.rows] == ["item 1", "item 2", "item 3"]
            assert (rows.count, rows.scalar, rows.status) == (3, 1, None)
            assert rows.elapsed_s > 0
            assert rows.phases.connect_s is not None
            again = await db.prepared(url, "SELECT name FROM items WHERE id = $1", 9)
            assert (again.scalar, again.phases.connect_s) == ("item 9", None)
            changed = await db.execute(url, "UPDATE items SET stock = 5 WHERE id < $1", 3)
            assert (changed.status, changed.count, changed.rows) == ("UPDATE 2", 2, ())
            none = await db.query(url, "SELECT 1 WHERE false")
            assert (none.row, none.scalar, none.count) == (None, None, 0)

    play(main)


def test_copy_moves_rows_in_and_out_and_counts_their_bytes(service: GetService) -> None:
    url = service("postgres").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            db = hub.client(0).postgres
            await db.execute(url, "CREATE TABLE IF NOT EXISTS copied (id int, name text)")
            done = await db.copy_in(url, "copied", [(n, f"n{n}") for n in range(1000)])
            assert done.count == 1000
            out = await db.copy_out(url, "SELECT * FROM copied WHERE id < $1", 3)
            assert out.value == b"0,n0\n1,n1\n2,n2\n"
            assert out.bytes_received == len(out.value)
            await db.execute(url, "DROP TABLE copied")

    play(main)


def test_a_transaction_commits_or_rolls_back_and_gives_its_connection_back(
    service: GetService,
) -> None:
    url = service("postgres").client_url

    async def main() -> None:
        async with opened(Connections.SHARED) as (hub, _):
            db = hub.client(0).postgres
            await db.execute(url, "CREATE TABLE IF NOT EXISTS paid (id int)")
            async with db.transaction(url, isolation="serializable") as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                level = await tx.query("SHOW transaction_isolation")
                assert level.scalar == "serializable"
            assert tx.response.latency_ns > level.latency_ns

            async def pay_and_fail() -> None:
                async with db.transaction(url) as tx:
                    await tx.execute("INSERT INTO paid VALUES (2)")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await pay_and_fail()
            with pytest.raises(ClientError) as failed:
                async with db.transaction(url, readonly=True) as tx:
                    await tx.execute("INSERT INTO paid VALUES (3)")
            assert (failed.value.error, failed.value.code) == ("server", "25006")
            with pytest.raises(RuntimeError, match="not committed"):
                _ = tx.response
            assert (await db.query(url, "SELECT array_agg(id) FROM paid")).scalar == [1]
            assert service("postgres").connections() == 1
            await db.execute(url, "DROP TABLE paid")

    play(main)


def test_an_error_of_sql_is_a_reply_and_keeps_the_connection(service: GetService) -> None:
    server = service("postgres")

    async def main() -> None:
        async with opened() as (hub, _):
            db = hub.client(0).postgres
            with pytest.raises(ClientError) as failed:
                await db.query(server.client_url, "SELECT * FROM nowhere")
            error = failed.value
            assert (error.error, error.code) == ("server", "42P01")
            assert "nowhere" in error.detail
            assert "to postgresql://load:***@127.0.0.1" in error.request
            assert error.latency_ns is not None
            with pytest.raises(ClientError) as duplicate:
                await db.execute(server.client_url, "INSERT INTO items VALUES (1, 'x', 1)")
            assert duplicate.value.code == "23505"
            assert server.connections() == 1

    play(main)


def test_a_shared_pool_is_bounded_and_calls_wait_for_it(service: GetService) -> None:
    server = service("postgres")

    async def main() -> None:
        async with opened(Connections.SHARED) as (hub, _):
            async with asyncio.TaskGroup() as tasks:
                calls = [
                    tasks.create_task(
                        hub.client(vu).postgres.query(
                            server.client_url, "SELECT pg_sleep(0.02)", pool=3
                        )
                    )
                    for vu in range(12)
                ]
            assert server.connections() == 3
            waited = [call.result().phases.blocked_s or 0.0 for call in calls]
            assert sum(wait > 0.01 for wait in waited) >= 8

    play(main)


def test_too_many_connections_are_a_failure_to_connect(service: GetService) -> None:
    url = service("postgres").client_url  # the server takes 40

    async def main() -> None:
        async with opened() as (hub, _):
            calls = [hub.client(vu).postgres.query(url, "SELECT pg_sleep(0.3)") for vu in range(60)]
            done = await asyncio.gather(*calls, return_exceptions=True)
            failed = [each for each in done if isinstance(each, ClientError)]
            assert len(failed) >= 20
            assert {(each.error, each.code) for each in failed} == {("connect", "53300")}

    play(main)
