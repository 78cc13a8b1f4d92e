"""Transactions of SQL clients: statements on one connection, from BEGIN to COMMIT or ROLLBACK."""

from time import perf_counter_ns
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from hyperscale.clients.connections import HeldPool
from hyperscale.clients.library import ClientError, LibraryClient, Operation, Place, Respond
from hyperscale.testing.responses import LibraryResponse

_R = TypeVar("_R", bound=LibraryResponse)


class Transaction(Generic[_R]):
    """An `async with` block of statements. Each statement is a request of its own; afterwards
    `response` has the time from BEGIN to the reply to COMMIT."""

    def __init__(
        self,
        client: LibraryClient,
        place: Place,
        begin: str,
        operation: Operation,
        respond: Respond[_R],
        timeout: str | float | None,
    ) -> None:
        """`operation` executes a command on a connection."""
        self._client = client
        self._pool = HeldPool(place.pool)
        self._place = Place(place.url, place.options, self._pool)
        self._begin = begin
        self._operation = operation
        self._respond = respond
        self._timeout = timeout
        self._began_ns = 0
        self._opened: _R | None = None
        self._response: _R | None = None

    @property
    def response(self) -> _R:
        """The transaction as a whole. Raises RuntimeError before it has committed."""
        if self._response is None:
            raise RuntimeError("the transaction has not committed: return its response after it")
        return self._response

    async def __aenter__(self) -> Self:
        self._opened = await self._run(self._operation, (self._begin,), self._respond)
        self._began_ns = perf_counter_ns() - self._opened.latency_ns
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_clean = False
        try:
            if error is None:
                done = await self._run(self._operation, ("COMMIT",), self._respond)
                is_clean = True
                done.latency_ns = perf_counter_ns() - self._began_ns
                if self._opened is not None:
                    done.blocked_ns = self._opened.blocked_ns
                    done.connect_ns = self._opened.connect_ns
                self._response = done
            elif isinstance(error, Exception) and self._pool.is_held:
                try:
                    await self._run(self._operation, ("ROLLBACK",), self._respond)
                    is_clean = True
                except ClientError as failed:
                    error.add_note(f"the transaction could not be rolled back: {failed}")
        finally:
            self._pool.release(is_clean=is_clean)

    async def _run(self, operation: Operation, args: tuple[Any, ...], respond: Respond[_R]) -> _R:
        return await self._client._call(self._place, operation, args, respond, self._timeout)
