"""Delivery without a network: batches, retries, the deadline, and what is said to be lost."""

import asyncio
from collections.abc import Callable, Iterator
from random import Random

import pytest

from hyperscale.errors import InputError
from hyperscale.reporting.delivery import (
    Backend,
    Batch,
    DeliveryError,
    DeliverySink,
    RejectedError,
    TransientError,
)
from hyperscale.reporting.reporters.postgres import PostgresConfig
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.settings import DeliverySettings
from tests.reporting.runs import shop_result

RESULT = shop_result()


class Clock:
    """Time that passes only while the delivery pauses."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def pause(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


class Shelf(Backend[str]):
    """Keeps what it is sent; `script` raises at the chosen calls."""

    def __init__(self, script: Callable[[int], Exception | None] = lambda _: None) -> None:
        self.kept: list[str] = []
        self.calls = 0
        self.connects = 0
        self.closes = 0
        self._script = script

    def batches(self, result: RunResult) -> Iterator[Batch[str]]:
        return (Batch(10, f"batch {n}") for n in range(5))

    async def connect(self) -> None:
        self.connects += 1

    async def send(self, batch: Batch[str]) -> None:
        self.calls += 1
        if error := self._script(self.calls):
            raise error
        self.kept.append(batch.payload)

    async def close(self) -> None:
        self.closes += 1


def deliver(shelf: Shelf, clock: Clock | None = None, **settings: float) -> str:
    """Deliver, and return what went wrong; empty if nothing did."""
    clock = clock or Clock()
    sink = DeliverySink(
        shelf,
        DeliverySettings(**settings),  # type: ignore[arg-type]  # whole numbers are floats here
        clock=clock,
        pause=clock.pause,
        rng=Random(1),
    )

    async def run() -> None:
        await sink.connect()
        try:
            await sink.submit(RESULT)
        finally:
            await sink.close()

    try:
        asyncio.run(run())
    except DeliveryError as error:
        return error.message
    return ""


def test_all_batches_arrive_in_order_over_one_connection() -> None:
    shelf = Shelf()
    assert deliver(shelf) == ""
    assert shelf.kept == [f"batch {n}" for n in range(5)]
    assert (shelf.connects, shelf.closes) == (1, 1)


def test_a_transient_error_is_retried_over_a_new_connection_with_growing_pauses() -> None:
    shelf, clock = (
        Shelf(lambda call: ConnectionResetError() if call in (2, 3, 4) else None),
        Clock(),
    )
    assert deliver(shelf, clock) == ""
    assert shelf.kept == [f"batch {n}" for n in range(5)]
    assert shelf.connects == 4
    growth = [pause / base for pause, base in zip(clock.pauses_s, (0.25, 0.5, 1.0), strict=True)]
    assert growth == pytest.approx([1.0] * 3, abs=0.25)


def test_the_pause_that_a_server_asks_for_is_kept() -> None:
    clock = Clock()
    busy = TransientError("HTTP 429", retry_after_s=7.0)
    assert deliver(Shelf(lambda call: busy if call == 1 else None), clock) == ""
    assert clock.pauses_s == [7.0]


def test_at_the_deadline_the_rest_is_lost_and_counted() -> None:
    clock = Clock()
    shelf = Shelf(lambda call: ConnectionRefusedError("refused") if call > 2 else None)
    lost = deliver(shelf, clock, deadline_s=20.0)
    assert lost.startswith("lost 30 of 50 metrics: gave up after ")
    assert lost.endswith("ConnectionRefusedError: refused")
    assert clock.now_s <= 120.0
    assert shelf.kept == ["batch 0", "batch 1"]


def test_a_batch_that_is_rejected_costs_only_itself() -> None:
    shelf = Shelf(
        lambda call: RejectedError("HTTP 400: field type conflict") if call == 2 else None
    )
    assert deliver(shelf) == "lost 10 of 50 metrics: HTTP 400: field type conflict"
    assert len(shelf.kept) == 4


def test_an_error_that_cannot_pass_ends_the_delivery_at_once() -> None:
    shelf, clock = Shelf(lambda _: PermissionError("wrong password")), Clock()
    shelf.is_transient = lambda error: False  # type: ignore[method-assign]  # as drivers do
    assert deliver(shelf, clock) == "lost 50 of 50 metrics: PermissionError: wrong password"
    assert (shelf.calls, clock.pauses_s) == (1, [])


def test_more_than_the_buffer_holds_is_lost_and_counted() -> None:
    shelf = Shelf()
    assert deliver(shelf, items_max=35) == "lost 20 of 50 metrics: items_max=35 reached"
    assert len(shelf.kept) == 3


def test_a_server_that_never_answers_is_bounded_by_the_timeout_of_a_try() -> None:
    class Silent(Shelf):
        async def send(self, batch: Batch[str]) -> None:
            await asyncio.Event().wait()

    lost = deliver(Silent(), request_timeout_s=0.01, deadline_s=1.0)
    assert lost.startswith("lost 50 of 50 metrics: gave up after ")
    assert lost.endswith("no answer within 0.01 s")


def test_a_failed_connection_says_that_nothing_was_sent() -> None:
    class Closed(Shelf):
        async def connect(self) -> None:
            raise OSError("no route to host")

    lost = deliver(Closed(), deadline_s=1.0)
    assert lost.endswith("OSError: no route to host; nothing was sent")


def test_credentials_are_masked_in_errors_and_previews() -> None:
    config = PostgresConfig(password="hunter2secret")
    assert "hunter2secret" not in repr(config)
    assert "password='***'" in repr(config)

    class Leaky(Shelf):
        def preview(self, batch: Batch[str]) -> str:
            return "password is hunter2secret"

    sink = DeliverySink(Leaky(lambda _: ValueError("bad hunter2secret")), config)

    async def run() -> None:
        await sink.connect()
        await sink.submit(RESULT)

    assert "hunter2" not in "".join(sink.preview(RESULT))
    with pytest.raises(DeliveryError) as failed:
        asyncio.run(run())
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_items_max", 0), ("items_max", True), ("deadline_s", 0), ("retry_max_s", 4000)],
)
def test_settings_have_bounds(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"DeliverySettings: {name}={value!r} must be"):
        DeliverySettings(**{name: value})  # type: ignore[arg-type]  # wrong on purpose
