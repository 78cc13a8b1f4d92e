"""Requests of this process that wait for the ledger core."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from hyperscale.ledger.core_events import ProposalResult
from hyperscale.ledger.replica import Replica


class PendingRequests:
    """Futures of proposals and reads, by token, and of readers that wait for an index."""

    def __init__(self) -> None:
        self.futures: dict[int, asyncio.Future[Any]] = {}
        """Proposals and linearizable reads. A request that is given up removes its own."""
        self._indexes: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}

    async def until_applied(self, replica: Replica, index: int) -> None:
        """Return when a replica has applied an index."""
        if replica.applied < index:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._indexes.setdefault(replica.group, []).append((index, future))
            await future

    def answer(self, answers: Iterable[tuple[int, ProposalResult | None]]) -> None:
        for token, result in answers:
            future = self.futures.pop(token, None)
            if future is not None and not future.done():
                future.set_result(result)

    def wake_applied(self, replicas: Mapping[int, Replica]) -> None:
        """Wake the readers whose index has been applied."""
        for group, waiting in list(self._indexes.items()):
            replica = replicas.get(group)
            for index, future in waiting:
                if replica is not None and index <= replica.applied and not future.done():
                    future.set_result(None)
            self._indexes[group] = [each for each in waiting if not each[1].done()]
            if not self._indexes[group]:
                del self._indexes[group]

    def cancel(self) -> None:
        """Cancel every request that waits."""
        readers = [future for each in self._indexes.values() for _, future in each]
        for future in (*self.futures.values(), *readers):
            future.cancel()
