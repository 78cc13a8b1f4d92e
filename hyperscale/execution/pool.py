"""A pool of executors: starts them, gives them slots, and ends them.

The caller gets every event through `on_event` and decides what it means for the run. The pool never
imports user code and never decodes the context that it passes on.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from hyperscale.config import GRACE_S
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.execution.box import BoxSettings, ExecutorBox
from hyperscale.execution.cores import pinned_cores
from hyperscale.execution.limits import CLOSE_GRACE_S
from hyperscale.execution.pooled_executor import ExecutorCounts, PooledExecutor
from hyperscale.execution.protocol import (
    ExecutorEvent,
    PrepareSlot,
    RefusalKind,
    SlotRefused,
)
from hyperscale.plan.changes import AppliedChange


class ExecutorPool:
    """`size` executors, started when the context is entered.

    `on_event(executor, event)` is called with every `SlotSetUp`, `SlotReport`, `SlotTearingDown`,
    `SlotFinished`, `ExecutorOutput` and `ExecutorDied` (only of an executor that held a slot). With
    `log_dir`, the output of executor N is also appended to `executor-N.log` there. Executors have
    the environment of this process unless another one is given, and no box unless one is.
    """

    def __init__(
        self,
        size: int,
        *,
        on_event: Callable[[int, ExecutorEvent], None],
        log_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        box: BoxSettings | None = None,
    ) -> None:
        if size < 1:
            raise InvariantError(f"a pool of {size} executors")
        self._size = size
        self._on_event = on_event
        self._log_dir = log_dir
        self._environment = environment
        self._box = box
        self._boxes: list[ExecutorBox] = []
        self._executors: list[PooledExecutor] = []
        self.counts = ExecutorCounts()

    async def __aenter__(self) -> Self:
        try:
            for core in pinned_cores(self._size):
                self._add(core)
        except BaseException:
            await self.close(grace_s=0.0)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _add(self, core: int | None) -> int:
        index = len(self._executors)
        box = None if self._box is None else ExecutorBox(self._box, index)
        if box is not None:
            self._boxes.append(box)
        log_file = None if self._log_dir is None else self._log_dir / f"executor-{index}.log"
        self._executors.append(
            PooledExecutor(
                core=core,
                on_event=lambda event: self._on_event(index, event),
                log_file=log_file,
                counts=self.counts,
                environment=self._environment,
                box=box,
            )
        )
        return index

    @property
    def size(self) -> int:
        """The number of executors, with those that were added."""
        return len(self._executors) or self._size

    def grow(self) -> int:
        """Add an executor that is not pinned to a core; returns its number.

        Raises `ExecutorLostError`.
        """
        return self._add(None)

    async def start_ended(self) -> None:
        """Start the executors whose process has ended, except those that were added, and wait until
        they have. Raises `ExecutorLostError` if one does not start."""
        for executor in self._executors[: self._size]:
            await executor.start_if_ended()

    def retire(self, index: int) -> None:
        """End an idle executor; it is started again when it is next given a slot."""
        self._executors[index].leave()

    async def wait_vacant(self, index: int) -> None:
        """Return when no user code runs on this executor: its core is free."""
        await self._executors[index].wait_vacant()

    @property
    def boxed(self) -> str:
        """What is in force of the executors' box; empty without one, and until one has started."""
        return next((box.in_force for box in self._boxes if box.in_force), "")

    @property
    def pids(self) -> list[int]:
        return [executor.process.pid for executor in self._executors]

    async def prepare(
        self, ids: Sequence[int], assignments: Sequence[PrepareSlot], *, nice: int | None = None
    ) -> None:
        """Give each executor a slot and wait until all are ready to start. `nice` as in `weigh`.

        Raises InputError if the user's file is wrong and nothing ran, RunError if user code failed
        or an executor died; no executor holds a slot then.
        """
        executors = [self._executors[index] for index in ids]
        prepared = [e.prepare(a, nice=nice) for e, a in zip(executors, assignments, strict=True)]
        tasks = [task for _, task in prepared]
        try:
            # After the first failure nothing starts, whatever the others answer.
            while not all(task.done() for task in tasks):
                waiting: list[asyncio.Future[Any]] = [t for t in tasks if not t.done()]
                waiting += [slot.early_end for slot, _ in prepared]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for future in waiting:
                    if future.done() and isinstance(refused := future.result(), SlotRefused):
                        is_input = refused.kind is RefusalKind.INPUT
                        raise (InputError if is_input else RunError)(
                            refused.error, hint=refused.hint
                        )
        except BaseException:
            for executor, task in zip(executors, tasks, strict=True):
                task.cancel()
                executor.stop("another slot of the workflow could not be prepared", 0.0)
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(executor.wait_idle() for executor in executors))
            raise
        for slot, _ in prepared:
            slot.is_announced = True

    def weigh(self, ids: Iterable[int], nice: int) -> None:
        """Set how much of a busy core executors get beside others: a higher value gets less."""
        for index in ids:
            self._executors[index].weigh(nice)

    def share_context(self, ids: Iterable[int], context: bytes) -> None:
        """Give slots that are being prepared the context that setup left, once all have sent
        `SlotSetUp`."""
        for index in ids:
            self._executors[index].share_context(context)

    def start(
        self, ids: Iterable[int], start_in_ms: float = 0.0, *, since_s: float | None = None
    ) -> None:
        """Start prepared slots; `since_s` as in StartSlot."""
        for index in ids:
            self._executors[index].start(start_in_ms, since_s)

    def change(self, ids: Iterable[int], changes: Sequence[AppliedChange]) -> None:
        """Change the load of slots; `changes` are all so far."""
        for index in ids:
            self._executors[index].change(changes)

    def grant_rows(self, ids: Iterable[int], limit: int) -> None:
        """Let slots use more rows of feeds that are dealt once."""
        for index in ids:
            self._executors[index].grant_rows(limit)

    def renew_lease(self, ids: Iterable[int], deadline_boottime_ns: int) -> None:
        for index in ids:
            self._executors[index].renew_lease(deadline_boottime_ns)

    def stop(self, ids: Iterable[int], reason: str, grace_s: float = GRACE_S) -> None:
        """Stop slots gracefully: each ends with `SlotFinished`, or with `ExecutorDied` if its
        code does not return in time."""
        for index in ids:
            self._executors[index].stop(reason, grace_s)

    def kill(self, ids: Iterable[int], reason: str) -> None:
        for index in ids:
            self._executors[index].kill(reason)

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """End every executor and every process it started, and wait until all are gone."""
        executors = self._executors
        try:
            for executor in executors:
                executor.leave()
            if grace_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await asyncio.gather(*(e.process.wait_gone() for e in executors))
        finally:
            for executor in executors:
                executor.kill("it did not exit when it was asked to")
            # Only the kernel can delay this now.
            await asyncio.gather(*(e.process.wait_gone() for e in executors))
