"""`self.client.mongodb`: MongoDB through PyMongo's asyncio client.

PyMongo pools connections by itself. Here each of its clients has a pool of one, without retries, so
that `connections` decides how many there are and every call is sent once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pymongo import AsyncMongoClient, errors

from hyperscale.clients.connections import SHARED_MAX, LibraryConnection
from hyperscale.clients.library import CONNECT_TIMEOUT_S, Failure, LibraryClient, Operation, Reply
from hyperscale.testing.protocols import ServiceUrl
from hyperscale.testing.responses import MongoDBResponse

FOUND_MAX = 1000
"""Documents that `find` and `aggregate` return, unless the call says otherwise."""

Document = Mapping[str, Any]
Sort = Sequence[tuple[str, int]]

# Codes of MongoDB: Unauthorized, AuthenticationFailed, and its older and cloud variants.
_DENIED = {13, 18, 8000}


class MongoDBConnection(LibraryConnection):
    """A client of PyMongo with one connection to its database."""

    __slots__ = ("_is_closed", "client", "database")

    def __init__(self, client: Any, database: Any) -> None:
        self.client = client
        self.database = database
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        return not self._is_closed

    async def close(self) -> None:
        self._is_closed = True
        await self.client.close()


# --- operations on a connection ------------------------------------------------------------


async def _find(
    connection: MongoDBConnection, collection: str, where: Document, sort: Any, limit: int
) -> Any:
    cursor = connection.database[collection].find(where, limit=limit, batch_size=limit)
    if sort:
        cursor = cursor.sort(list(sort))
    return await cursor.to_list(limit)


async def _aggregate(
    connection: MongoDBConnection, collection: str, pipeline: Any, limit: int
) -> Any:
    cursor = await connection.database[collection].aggregate(pipeline, batchSize=limit)
    async with cursor:
        return await cursor.to_list(limit)


async def _insert(connection: MongoDBConnection, collection: str, documents: Any) -> Any:
    done = await connection.database[collection].insert_many(documents)
    return {"inserted": len(done.inserted_ids), "ids": done.inserted_ids}


async def _update(
    connection: MongoDBConnection,
    collection: str,
    where: Document,
    change: Any,
    many: bool,
    upsert: bool,
) -> Any:
    target = connection.database[collection]
    update = target.update_many if many else target.update_one
    done = await update(where, change, upsert=upsert)
    return {"matched": done.matched_count, "changed": done.modified_count, "id": done.upserted_id}


async def _delete(
    connection: MongoDBConnection, collection: str, where: Document, many: bool
) -> Any:
    target = connection.database[collection]
    done = await (target.delete_many(where) if many else target.delete_one(where))
    return {"deleted": done.deleted_count}


def _command(connection: MongoDBConnection, command: Any) -> Any:
    return connection.database.command(command)


class MongoDBClient(LibraryClient):
    """The MongoDB client of one virtual user.

    The URL is that of MongoDB, with the database in its path:
    `mongodb://user:password@host:27017/shop?authSource=admin`.
    """

    __slots__ = ()
    protocol = "mongodb"

    def find(
        self,
        url: str,
        collection: str,
        where: Document | None = None,
        *,
        sort: Sort | None = None,
        limit: int = FOUND_MAX,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[MongoDBResponse]:
        """Find documents, at most `limit`: `find(url, "items", {"price": {"$lt": 10}})`.

        `pool` limits the connections that `connections = "shared"` opens to this server.
        """
        args = (collection, where or {}, sort, limit)
        return self._call(self._place(url, pool=pool), _find, args, MongoDBResponse, timeout)

    def find_one(
        self,
        url: str,
        collection: str,
        where: Document | None = None,
        *,
        timeout: str | float | None = None,
        pool: int = SHARED_MAX,
    ) -> Reply[MongoDBResponse]:
        """Find one document; `document` is None if there is none."""
        args = (collection, where or {}, None, 1)
        return self._call(self._place(url, pool=pool), _find, args, MongoDBResponse, timeout)

    def aggregate(
        self,
        url: str,
        collection: str,
        pipeline: Sequence[Document],
        *,
        limit: int = FOUND_MAX,
        timeout: str | float | None = None,
    ) -> Reply[MongoDBResponse]:
        """Run an aggregation pipeline and return its documents, at most `limit`."""
        args = (collection, list(pipeline), limit)
        return self._call(self._place(url), _aggregate, args, MongoDBResponse, timeout)

    def insert(
        self,
        url: str,
        collection: str,
        *documents: Document,
        timeout: str | float | None = None,
    ) -> Reply[MongoDBResponse]:
        """Insert documents with one request; `changed` is how many."""
        args = (collection, [dict(document) for document in documents])
        return self._call(self._place(url), _insert, args, MongoDBResponse, timeout)

    def update(
        self,
        url: str,
        collection: str,
        where: Document,
        change: Document,
        *,
        many: bool = False,
        upsert: bool = False,
        timeout: str | float | None = None,
    ) -> Reply[MongoDBResponse]:
        """Update one document, or with `many` all that match: `{"$inc": {"stock": -1}}`."""
        args = (collection, where, change, many, upsert)
        return self._call(self._place(url), _update, args, MongoDBResponse, timeout)

    def delete(
        self,
        url: str,
        collection: str,
        where: Document,
        *,
        many: bool = False,
        timeout: str | float | None = None,
    ) -> Reply[MongoDBResponse]:
        """Delete one document, or with `many` all that match."""
        return self._call(
            self._place(url), _delete, (collection, where, many), MongoDBResponse, timeout
        )

    def command(
        self, url: str, command: Document, *, timeout: str | float | None = None
    ) -> Reply[MongoDBResponse]:
        """Run any command of the database: `command(url, {"collStats": "items"})`."""
        return self._call(self._place(url), _command, (command,), MongoDBResponse, timeout)

    async def ping(self, url: str, *, timeout: str | float | None = None) -> MongoDBResponse:
        """Run the command `ping`; the value describes the server."""
        response = await self.command(url, {"ping": 1}, timeout=timeout)
        about = await self.command(url, {"buildInfo": 1}, timeout=timeout)
        response.value = f"MongoDB protocol, server {about.value.get('version', 'unknown')}"
        return response

    async def _connect(self, url: ServiceUrl, options: Any) -> LibraryConnection:
        given = url.query.lower()
        settings = {
            "serverSelectionTimeoutMS": 1000,
            "connectTimeoutMS": round(CONNECT_TIMEOUT_S * 1000),
            "serverMonitoringMode": "poll",  # one connection less for each client
            "appname": "hyperscale",
        }
        settings = {name: to for name, to in settings.items() if name.lower() not in given}
        client: Any = AsyncMongoClient(
            url.url, maxPoolSize=1, retryReads=False, retryWrites=False, **cast(Any, settings)
        )
        try:
            await client.admin.command("ping")  # connects and logs in
        except BaseException:
            await client.close()
            raise
        return MongoDBConnection(client, client.get_default_database("test"))

    def _classify(self, error: BaseException) -> Failure | None:
        detail = str(error).partition(", full error")[0].partition(", Timeout:")[0]
        match error:
            case errors.ServerSelectionTimeoutError():
                is_name = "Name or service" in detail or "getaddrinfo" in detail
                return Failure("dns" if is_name else "connect", detail)
            case errors.NetworkTimeout() | errors.ExecutionTimeout():
                return Failure("timeout", detail)
            case errors.OperationFailure() if error.code in _DENIED:
                return Failure("auth", detail, str(error.code))
            case errors.OperationFailure():
                return Failure("server", f"{error.code} {detail}", str(error.code))
            case errors.ConnectionFailure():
                return Failure("reset", detail)
            case errors.PyMongoError() if not isinstance(error, errors.InvalidOperation):
                return Failure("protocol", detail)
        return None

    def _describe(self, operation: Operation, args: tuple[Any, ...]) -> str:
        """Return the operation and its collection, never the documents."""
        name = operation.__name__.strip("_")
        if isinstance(args[0], str):
            return f"{name} {args[0]}"
        return f"{name} {next(iter(args[0]), '')}"


CLIENT = MongoDBClient
