"""`self.client.mysql`: MySQL and MariaDB through asyncmy."""

from collections.abc import Sequence
from typing import Any

import asyncmy
from asyncmy import errors

from hyperscale.clients.connections import SHARED_MAX, LibraryConnection
from hyperscale.clients.library import (
    CONNECT_TIMEOUT_S,
    Failure,
    LibraryClient,
    Reply,
    classify_os_error,
    root_cause,
)
from hyperscale.clients.service_tls import wanted_tls
from hyperscale.clients.transactions import Transaction
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import MySQLResponse

_PREPARED_MAX = 100

# Codes of MySQL, from its list of errors.
_DENIED = {1044, 1045, 1142, 1143, 1227, 1698}
_NO_ROOM = {1040, 1053, 1203, 1226}
_NO_CONNECTION = {2002, 2003, 2005}
_LOST = {2006, 2013, 2055}
_OUT_OF_SYNC = {2014, 2027}


class MySQLConnection(LibraryConnection):
    """A connection of asyncmy."""

    __slots__ = ("link",)

    def __init__(self, link: Any) -> None:
        self.link = link

    @property
    def is_usable(self) -> bool:
        return bool(self.link.connected) and not self.link._stream_broken

    async def close(self) -> None:
        await self.link.ensure_closed()

    def abort(self) -> bool:
        self.link.close()
        return True


# --- operations on a connection ------------------------------------------------------------


async def _query(connection: MySQLConnection, sql: str, args: Sequence[Any]) -> Any:
    """Return rows, column names, rows changed and the last id."""
    async with connection.link.cursor() as cursor:
        await cursor.execute(sql, args or None)
        columns = [column[0] for column in cursor.description or ()]
        rows = await cursor.fetchall() if columns else ()
        return rows, columns, cursor.rowcount, cursor.lastrowid


async def _command(connection: MySQLConnection, sql: str) -> Any:
    """Run a command of a transaction."""
    await connection.link.query(sql)
    return (), (), 0, 0


async def _execute_many(
    connection: MySQLConnection, sql: str, rows: Sequence[Sequence[Any]]
) -> Any:
    async with connection.link.cursor() as cursor:
        changed = await cursor.executemany(sql, rows)
        return (), (), changed, cursor.lastrowid


def _reply(value: Any, *times: Any) -> MySQLResponse:
    rows, columns, changed, last_id = value
    response = MySQLResponse(rows, *times)
    response.columns, response.changed, response.last_id = columns, changed or 0, last_id or 0
    return response


class MySQLClient(LibraryClient):
    """The MySQL client of one virtual user.

    The URL is `mysql://user:password@host:3306/database`; `?tls=required` encrypts,
    `?tls=verify` also checks the certificate. Statements commit by themselves.
    """

    __slots__ = ()
    protocol = "mysql"

    def query(
        self,
        url: str,
        sql: str,
        *args: Any,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[MySQLResponse]:
        """Run a query and return its rows: `query(url, "SELECT * FROM t WHERE id = %s", 7)`.

        `pool` limits the connections that `connections = "shared"` opens to this server.
        """
        return self._call(self._place(url, pool=pool), _query, (sql, args), _reply, timeout)

    def execute(
        self,
        url: str,
        sql: str,
        *args: Any,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[MySQLResponse]:
        """Run a command; `changed` is the number of rows it changed, `last_id` the new id."""
        return self._call(self._place(url, pool=pool), _query, (sql, args), _reply, timeout)

    def prepared(
        self,
        url: str,
        sql: str,
        *args: Any,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[MySQLResponse]:
        """Run a statement that the server has prepared; each connection keeps up to 100."""
        place = self._place(url, "prepared", pool=pool)
        return self._call(place, _query, (sql, args), _reply, timeout)

    def execute_many(
        self,
        url: str,
        sql: str,
        rows: Sequence[Sequence[Any]],
        *,
        timeout: str | float | None = None,
    ) -> Reply[MySQLResponse]:
        """Run a command with each of the rows; INSERTs are sent together."""
        return self._call(self._place(url), _execute_many, (sql, rows), _reply, timeout)

    def transaction(
        self, url: str, *, timeout: str | float | None = None, pool: int = SHARED_MAX
    ) -> "MySQLTransaction":
        """Open a transaction: `async with self.client.mysql.transaction(url) as tx:`.

        It commits at the end of the block, or rolls back if the block raises. Afterwards
        `tx.response` has the time from BEGIN to the reply to COMMIT.
        """
        place = self._place(url, pool=pool)
        return MySQLTransaction(self, place, "BEGIN", _command, _reply, timeout)

    async def ping(self, url: str, *, timeout: str | float | None = None) -> MySQLResponse:
        """Run `SELECT VERSION()`; the value describes the server."""
        response = await self.query(url, "SELECT VERSION()", timeout=timeout)
        response.value = f"MySQL protocol, server {response.scalar}"
        return response

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        link = await asyncmy.connect(
            host=url.host,
            port=url.port,
            user=url.user or "root",
            password=url.password or "",
            database=url.path or None,
            connect_timeout=CONNECT_TIMEOUT_S,
            autocommit=True,
            stmt_cache_size=_PREPARED_MAX if options == "prepared" else 0,
            ssl=wanted_tls(url),
        )
        return MySQLConnection(link)

    def _classify(self, error: BaseException) -> Failure | None:
        if not isinstance(error, errors.Error):
            return None
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        detail = str(error.args[-1]) if error.args else type(error).__name__
        if code in _DENIED:
            return Failure("auth", detail, str(code))
        if code in _NO_ROOM:
            return Failure("connect", detail, str(code))
        if code in _NO_CONNECTION:
            cause = root_cause(error)
            known = classify_os_error(cause, is_connecting=True) if cause is not error else None
            return known or Failure("connect", detail, str(code))
        if code in _LOST:
            return Failure("reset", detail, str(code))
        if code in _OUT_OF_SYNC or not code:
            return Failure("protocol", detail, str(code or ""))
        return Failure("server", f"{code} {detail}", str(code))


class MySQLTransaction(Transaction[MySQLResponse]):
    """A transaction of a virtual user; all its statements go through one connection."""

    async def query(self, sql: str, *args: Any) -> MySQLResponse:
        """Run a query and return its rows."""
        return await self._run(_query, (sql, args), _reply)

    async def execute(self, sql: str, *args: Any) -> MySQLResponse:
        """Run a command."""
        return await self._run(_query, (sql, args), _reply)


CLIENT = MySQLClient
