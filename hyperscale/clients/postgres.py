"""`self.client.postgres`: PostgreSQL through asyncpg."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import asyncpg

from hyperscale.clients.connections import SHARED_MAX, LibraryConnection
from hyperscale.clients.library import Failure, LibraryClient, Reply
from hyperscale.clients.transactions import Transaction
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import PostgresResponse

_PREPARED_MAX = 100
_COPIED_BYTES_MAX = 64 * 1024 * 1024

Isolation = Literal["serializable", "repeatable_read", "read_committed", "read_uncommitted"]


class PostgresConnection(LibraryConnection):
    """An asyncpg connection, with the statements that `prepared` keeps."""

    __slots__ = ("link", "prepared")

    def __init__(self, link: Any) -> None:
        self.link = link
        self.prepared: dict[str, Any] = {}

    @property
    def is_usable(self) -> bool:
        return not self.link.is_closed()

    async def close(self) -> None:
        await self.link.close()

    def abort(self) -> bool:
        self.link.terminate()
        return True


# --- operations on a connection ------------------------------------------------------------


def _query(connection: PostgresConnection, sql: str, *args: Any) -> Any:
    return connection.link.fetch(sql, *args)


def _execute(connection: PostgresConnection, sql: str, *args: Any) -> Any:
    return connection.link.execute(sql, *args)


async def _prepared(connection: PostgresConnection, sql: str, *args: Any) -> Any:
    statement = connection.prepared.get(sql)
    if statement is None:
        while len(connection.prepared) >= _PREPARED_MAX:
            del connection.prepared[next(iter(connection.prepared))]
        statement = connection.prepared[sql] = await connection.link.prepare(sql)
    return await statement.fetch(*args)


async def _copy_in(
    connection: PostgresConnection, table: str, records: Any, columns: Any, schema: str | None
) -> Any:
    return await connection.link.copy_records_to_table(
        table, records=records, columns=columns, schema_name=schema
    )


async def _copy_out(connection: PostgresConnection, sql: str, args: Any, form: str) -> Any:
    chunks: list[bytes] = []
    size = 0

    async def keep(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)
        if size > _COPIED_BYTES_MAX:
            raise ValueError(
                f"copy_out: more than {_COPIED_BYTES_MAX:,} bytes; add a LIMIT to the query"
            )
        chunks.append(bytes(chunk))

    await connection.link.copy_from_query(sql, *args, output=keep, format=form)
    return b"".join(chunks)


# --- responses -----------------------------------------------------------------------------


def _copied(value: Any, *times: Any) -> PostgresResponse:
    response = PostgresResponse(value, *times)
    response.bytes_received = len(value)
    return response


class PostgresClient(LibraryClient):
    """The PostgreSQL client of one virtual user.

    The URL is that of libpq: `postgresql://user:password@host:5432/database?sslmode=require`.
    """

    __slots__ = ()
    protocol = "postgres"

    def query(
        self,
        url: str,
        sql: str,
        *args: Any,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[PostgresResponse]:
        """Run a query and return its rows: `query(url, "SELECT * FROM t WHERE id = $1", 7)`.

        The statement is prepared on each connection once. `pool` limits the connections that
        `connections = "shared"` opens to this server.
        """
        return self._call(
            self._place(url, pool=pool), _query, (sql, *args), PostgresResponse, timeout
        )

    def execute(
        self,
        url: str,
        sql: str,
        *args: Any,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[PostgresResponse]:
        """Run a command and return its status; without arguments `sql` may have several."""
        place = self._place(url, pool=pool)
        return self._call(place, _execute, (sql, *args), PostgresResponse, timeout)

    def prepared(
        self,
        url: str,
        sql: str,
        *args: Any,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[PostgresResponse]:
        """Run a statement that the connection has prepared by name, and keeps prepared."""
        place = self._place(url, pool=pool)
        return self._call(place, _prepared, (sql, *args), PostgresResponse, timeout)

    def copy_in(
        self,
        url: str,
        table: str,
        records: Iterable[Sequence[Any]],
        *,
        columns: Sequence[str] | None = None,
        schema: str | None = None,
        timeout: str | float | None = None,
    ) -> Reply[PostgresResponse]:
        """Write rows with COPY, the fastest way into a table."""
        args = (table, records, columns, schema)
        return self._call(self._place(url), _copy_in, args, PostgresResponse, timeout)

    def copy_out(
        self,
        url: str,
        sql: str,
        *args: Any,
        format: Literal["text", "csv", "binary"] = "csv",  # noqa: A002 - as in SQL
        timeout: str | float | None = None,
    ) -> Reply[PostgresResponse]:
        """Read the rows of a query with COPY; the value is their bytes, at most 64 MiB."""
        return self._call(self._place(url), _copy_out, (sql, args, format), _copied, timeout)

    def transaction(
        self,
        url: str,
        *,
        isolation: Isolation | None = None,
        readonly: bool = False,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> "PostgresTransaction":
        """Open a transaction: `async with self.client.postgres.transaction(url) as tx:`.

        It commits at the end of the block, or rolls back if the block raises. Afterwards
        `tx.response` has the time from BEGIN to the reply to COMMIT.
        """
        level = f" ISOLATION LEVEL {isolation.replace('_', ' ').upper()}" if isolation else ""
        begin = f"BEGIN{level}{' READ ONLY' if readonly else ''}"
        place = self._place(url, pool=pool)
        return PostgresTransaction(self, place, begin, _execute, PostgresResponse, timeout)

    async def ping(
        self,
        url: str,
        *,
        timeout: str | float | None = None,
    ) -> PostgresResponse:
        """Run `SELECT version()`; the value describes the server."""
        response = await self.query(url, "SELECT version()", timeout=timeout)
        response.value = response.scalar
        return response

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        # The application name lets a person find the load in pg_stat_activity; a URL may name
        # another.
        name = None if "application_name" in url.query else {"application_name": "hyperscale"}
        return PostgresConnection(await asyncpg.connect(url.url, server_settings=name))

    def _classify(self, error: BaseException) -> Failure | None:
        match error:
            case asyncpg.InvalidAuthorizationSpecificationError():
                return Failure("auth", str(error), str(error.sqlstate))
            case asyncpg.TooManyConnectionsError() | asyncpg.CannotConnectNowError():
                return Failure("connect", str(error), str(error.sqlstate))
            case asyncpg.PostgresConnectionError() | asyncpg.OperatorInterventionError():
                return Failure("reset", str(error), str(error.sqlstate or ""))
            case asyncpg.PostgresError():
                return Failure("server", f"{error.sqlstate} {error}", str(error.sqlstate))
            case asyncpg.InternalClientError() if str(error).startswith("cannot"):
                # "cannot process message 'E'": the last word of a server that shuts down comes
                # outside a reply; "cannot switch to state": so does the end of the connection.
                return Failure("reset", f"the server ended the connection: {error}")
            case asyncpg.InternalClientError():
                return Failure("protocol", str(error))
            case asyncpg.InterfaceError() if "connection" in str(error):
                return Failure("reset", str(error))
        return None


class PostgresTransaction(Transaction[PostgresResponse]):
    """A transaction of a virtual user; all its statements go through one connection."""

    async def query(self, sql: str, *args: Any) -> PostgresResponse:
        """Run a query and return its rows."""
        return await self._run(_query, (sql, *args), PostgresResponse)

    async def execute(self, sql: str, *args: Any) -> PostgresResponse:
        """Run a command and return its status."""
        return await self._run(_execute, (sql, *args), PostgresResponse)


CLIENT = PostgresClient
