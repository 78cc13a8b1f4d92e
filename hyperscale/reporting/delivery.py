"""Delivery of a result in batches: retries with backoff, one deadline, an account of what is lost.

A *backend* knows its system: how a result becomes batches, how to connect, how to send a batch. It
knows nothing of retries. `DeliverySink` drives it: it connects when there is no connection, sends
batch by batch, and after a transient error closes the connection, waits and tries the batch again.
Every batch can be sent twice without harm, because every metric is keyed by the id of its run.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from hyperscale.errors import HyperscaleError, RunError
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.settings import DeliverySettings
from hyperscale.testing.parameters import Mask

CLOSE_TIMEOUT_S = 2.0

PayloadT = TypeVar("PayloadT")
ItemT = TypeVar("ItemT")


class TransientError(Exception):
    """The system could not take a batch now and may take it later."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RejectedError(Exception):
    """The system refuses this batch and may accept the next one."""


class DeliveryError(RunError):
    """A result was not delivered, or not all of it."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[PayloadT]):
    items: int
    payload: PayloadT


class Backend(ABC, Generic[PayloadT]):
    """One system that results are sent to."""

    noun: str = "metrics"  # what `Batch.items` counts

    @abstractmethod
    def batches(self, result: RunResult) -> Iterator[Batch[PayloadT]]:
        """Return the result in the form that `send` takes. Needs no connection."""

    async def connect(self) -> None:
        """Open what `send` uses. Called again after a transient error, `close` in between."""

    @abstractmethod
    async def send(self, batch: Batch[PayloadT]) -> None:
        """Send one batch. Sending it twice must leave the same as sending it once."""

    async def close(self) -> None:
        """Close what `connect` opened, also after it failed halfway."""

    def is_transient(self, error: Exception) -> bool:
        """Return True if the same batch may succeed later."""
        return isinstance(error, OSError | EOFError | TimeoutError | TransientError)

    def preview(self, batch: Batch[PayloadT]) -> str:
        """Return what `send` would send, for people."""
        return preview_text(batch.payload)


def preview_text(payload: Any) -> str:
    """Return a payload as text: rows as JSON lines, bytes as they are."""
    if isinstance(payload, bytes):
        return payload.decode("utf-8", "replace").rstrip("\n")
    if isinstance(payload, str):
        return payload
    if isinstance(payload, list | tuple):
        return "\n".join(map(preview_text, payload))
    return msgspec.json.encode(payload).decode()


def chunks(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def packed(lines: Iterable[bytes], *, bytes_max: int, items_max: int) -> Iterator[list[bytes]]:
    """Group lines so that each group has at most `items_max` of them and `bytes_max` bytes. A line
    that is longer than that has a group of its own."""
    group: list[bytes] = []
    size = 0
    for line in lines:
        if group and (size + len(line) > bytes_max or len(group) == items_max):
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line)
    if group:
        yield group


class DriverLog(logging.Handler):
    """Keeps the last error that a driver logged, instead of printing it into the live view."""

    def __init__(self, logger: str) -> None:
        super().__init__(logging.ERROR)
        self.last = ""
        owner = logging.getLogger(logger)
        owner.handlers = [self]
        owner.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


class DeliverySink:
    """Delivers results to a backend; what a `Reporter` holds."""

    def __init__(
        self,
        backend: Backend[Any],
        settings: DeliverySettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self._clock = clock
        self._pause = pause
        self._rng = rng or Random()  # noqa: S311  spreads retries, protects nothing
        self._mask = Mask(settings.secrets())
        self._is_open = False
        self._began_s = 0.0
        self._deadline_s = 0.0

    async def connect(self) -> None:
        self.settings.preflight()
        self._began_s = self._clock()
        self._deadline_s = self._began_s + self.settings.deadline_s
        try:
            await self._persist(self._ensure_open)
        except _DeliveryStopped as failed:
            raise DeliveryError(f"{failed.text}; nothing was sent") from failed.__cause__

    async def submit(self, result: RunResult) -> None:
        """Send all batches. Raises DeliveryError with the number of metrics that were lost."""
        everything = list(self.backend.batches(result))
        total = sum(batch.items for batch in everything)
        batches = list(self._bounded(everything))
        lost = total - sum(batch.items for batch in batches)
        reasons = [f"items_max={self.settings.items_max} reached"] if lost else []
        for index, batch in enumerate(batches):
            try:
                await self._persist(partial(self._send, batch))
            except _DeliveryStopped as failed:
                reasons.append(failed.text)
                if failed.is_final:
                    lost += sum(each.items for each in batches[index:])
                    break
                lost += batch.items
        if lost:
            noun = self.backend.noun
            reason = "; ".join(dict.fromkeys(reasons))
            raise DeliveryError(f"lost {lost:,} of {total:,} {noun}: {reason}")

    async def close(self) -> None:
        self._is_open = False
        await self.backend.close()

    def preview(self, result: RunResult) -> Iterator[str]:
        """Yield what would be sent, batch by batch, credentials masked."""
        for batch in self._bounded(self.backend.batches(result)):
            yield self._mask.text(self.backend.preview(batch))

    def _bounded(self, batches: Iterable[Batch[Any]]) -> Iterator[Batch[Any]]:
        left = self.settings.items_max
        for batch in batches:
            left -= batch.items
            if left < 0:
                return
            yield batch

    async def _ensure_open(self) -> None:
        if not self._is_open:
            await self.backend.connect()
            self._is_open = True

    async def _send(self, batch: Batch[Any]) -> None:
        await self._ensure_open()
        await self.backend.send(batch)

    async def _persist(self, act: Callable[[], Awaitable[None]]) -> None:
        """Try until it works, until it cannot work, or until the deadline."""
        wait_s, tries = self.settings.retry_first_s, 0
        while True:
            left_s = self._deadline_s - self._clock()
            if left_s <= 0:
                raise _DeliveryStopped("the deadline has passed", is_final=True)
            limit_s = min(self.settings.request_timeout_s, left_s)
            tries += 1
            try:
                async with asyncio.timeout(limit_s):
                    await act()
                return
            except Exception as error:
                text = self._describe(error, limit_s)
                if isinstance(error, RejectedError):
                    raise _DeliveryStopped(text, is_final=False) from error
                is_late = isinstance(error, TimeoutError)
                if not is_late and not self.backend.is_transient(error):
                    raise _DeliveryStopped(text, is_final=True) from error
                cause, retry_after_s = error, getattr(error, "retry_after_s", 0.0)
            await self._reset()
            pause_s = max(wait_s * self._rng.uniform(0.75, 1.25), retry_after_s)
            if self._clock() + pause_s >= self._deadline_s:
                spent_s = self._clock() - self._began_s
                often = "1 try" if tries == 1 else f"{tries} tries"
                raise _DeliveryStopped(
                    f"gave up after {often} in {spent_s:.1f} s: {text}", is_final=True
                ) from cause
            await self._pause(pause_s)
            wait_s = min(wait_s * 2, self.settings.retry_max_s)

    async def _reset(self) -> None:
        """Close a connection that failed, so that the next try opens a new one."""
        self._is_open = False
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.backend.close()
        except Exception:  # noqa: BLE001, S110  the error that led here is the one to report
            pass

    def _describe(self, error: Exception, limit_s: float) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"no answer within {limit_s:.3g} s"
        if isinstance(error, HyperscaleError | TransientError | RejectedError):
            return self._mask.text(str(error))
        return self._mask.text(f"{type(error).__name__}: {error}" if str(error) else repr(error))


class _DeliveryStopped(Exception):  # noqa: N818  decides what follows
    """A batch was not delivered; if `is_final`, no later batch has a chance."""

    def __init__(self, text: str, *, is_final: bool) -> None:
        super().__init__(text)
        self.text = text
        self.is_final = is_final
