"""Connections of clients with a library: who keeps them, how many there are, how they end.

A connection is used by one call at a time. It goes back to its pool only after a call that ended
with a reply; after anything else (a timeout, a cut, a broken line) it is closed, so no later call
can read what was meant for another.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine
from typing import Any

SHARED_MAX = 128
"""Connections to one place that the users of an executor share at most."""
CONNECTING_MAX = 256
"""Connections that an executor opens at the same time at most."""
CLOSE_S = 2.0
"""Longest time for the farewell of a connection."""


class LibraryConnection(ABC):
    """One open connection of a library."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """False once the connection is known to be broken or closed."""

    @abstractmethod
    async def close(self) -> None:
        """Close in the way that the protocol asks for."""

    def abort(self) -> bool:
        """Close at once, without a farewell. False: it cannot be done, `close` has to."""
        return False


class Reaper:
    """Closes connections in the background and waits for them at the end of a run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def abort(self, connection: LibraryConnection) -> None:
        """Close a connection that no call may use any more."""
        if not connection.abort():
            self.close(connection)

    def close(self, connection: LibraryConnection) -> None:
        """Close a connection that has no call in flight."""
        self.spawn(_farewell(connection))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="close a connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Wait until everything is closed, or CLOSE_S have passed."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S + 0.5)
            for task in late:
                task.cancel()


async def _farewell(connection: LibraryConnection) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await connection.close()
    except Exception:  # noqa: BLE001 - a library may raise anything when its server is gone
        connection.abort()


class ConnectionPool:
    """The connections to one place: of one virtual user, or of all users of an executor."""

    __slots__ = ("_idle", "_keeps", "_limit", "_open", "_reaper", "_waiters")

    def __init__(self, reaper: Reaper, *, limit: int | None, keeps: bool) -> None:
        """`limit`: how many may be open; `keeps`: False closes each after one call."""
        self._reaper = reaper
        self._limit = limit
        self._keeps = keeps
        self._idle: list[LibraryConnection] = []
        self._open = 0  # connections, and places reserved for one
        self._waiters: deque[asyncio.Future[LibraryConnection | None]] = deque()

    def take(self) -> LibraryConnection | None:
        """Return an idle connection, or None if there is none that can be used."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            self.discard(connection)
        return None

    async def reserve(self) -> LibraryConnection | None:
        """Wait for a connection, or for the permission to open one (None)."""
        if self._limit is None or self._open < self._limit:
            self._open += 1
            return None
        waiter: asyncio.Future[LibraryConnection | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            elif (handed := waiter.result()) is not None:  # handed over in the same moment
                self.put(handed)
            else:
                self.leave()
            raise

    def put(self, connection: LibraryConnection) -> None:
        """Take back a connection whose call ended with a reply; `take` sees if it still works."""
        if not self._keeps:
            self._reaper.close(connection)
            self.leave()
            return
        if not self._waiters or not self._hand(connection):
            self._idle.append(connection)

    def discard(self, connection: LibraryConnection) -> None:
        """Close a connection that may be in the middle of a reply."""
        self._reaper.abort(connection)
        self.leave()

    def leave(self) -> None:
        """Give up a reserved place: a waiting call may open a connection instead."""
        if not self._waiters or not self._hand(None):
            self._open -= 1

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they come back."""
        self._keeps = False
        while self._idle:
            self._reaper.close(self._idle.pop())
            self._open -= 1

    def _hand(self, connection: LibraryConnection | None) -> bool:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False


class HeldPool:
    """The pool of a transaction: it takes one connection of another pool and keeps it."""

    __slots__ = ("_connection", "_is_lost", "_pool")

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: LibraryConnection | None = None
        self._is_lost = False

    @property
    def is_held(self) -> bool:
        """True while the transaction has a connection that works."""
        return self._connection is not None

    def take(self) -> LibraryConnection | None:
        if self._is_lost:
            raise ConnectionResetError("the transaction has lost its connection")
        return self._connection or self._pool.take()

    async def reserve(self) -> LibraryConnection | None:
        return await self._pool.reserve()

    def put(self, connection: LibraryConnection) -> None:
        """Keep the connection for the next statement."""
        self._connection = connection

    def discard(self, connection: LibraryConnection) -> None:
        self._connection, self._is_lost = None, True
        self._pool.discard(connection)

    def leave(self) -> None:
        self._pool.leave()

    def release(self, *, is_clean: bool) -> None:
        """Give the connection back; close it if its transaction may still be open."""
        connection, self._connection = self._connection, None
        if connection is not None and is_clean:
            self._pool.put(connection)
        elif connection is not None:
            self._pool.discard(connection)
