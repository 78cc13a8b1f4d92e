"""Requests of this process that wait for the ledger core."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from hyperscale.ledger.core_events import ProposalResult
from hyperscale.ledger.replica import Replica


class PendingRequests:
    """Futures of proposals and reads, by token, and of readers that wait for an index."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._proposals: dict[int, asyncio.Future[ProposalResult]] = {}
        self._reads: dict[int, asyncio.Future[None]] = {}
        self._indexes: dict[int, list[tuple[int, asyncio.Future[None]]]] = {}

    def add_proposal(self, token: int) -> asyncio.Future[ProposalResult]:
        future: asyncio.Future[ProposalResult] = self._loop.create_future()
        self._proposals[token] = future
        return future

    def remove_proposal(self, token: int) -> None:
        self._proposals.pop(token, None)

    def add_read(self, token: int, future: asyncio.Future[None]) -> None:
        self._reads[token] = future

    def remove_read(self, token: int) -> None:
        self._reads.pop(token, None)

    async def until_applied(self, replica: Replica, index: int) -> None:
        """Return when a replica has applied an index."""
        if replica.applied < index:
            future: asyncio.Future[None] = self._loop.create_future()
            self._indexes.setdefault(replica.group, []).append((index, future))
            await future

    def answer_proposals(self, answers: Iterable[tuple[int, ProposalResult]]) -> None:
        for token, result in answers:
            future = self._proposals.pop(token, None)
            if future is not None and not future.done():
                future.set_result(result)

    def answer_reads(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            future = self._reads.pop(token, None)
            if future is not None and not future.done():
                future.set_result(None)

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
        futures: list[asyncio.Future[Any]] = [*self._proposals.values(), *self._reads.values()]
        futures += [future for each in self._indexes.values() for _, future in each]
        for future in futures:
            future.cancel()
