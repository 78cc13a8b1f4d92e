"""The driver of sans-IO cores: order, timer, failure."""

import asyncio
from dataclasses import dataclass, field

from hyperscale.sansio.core import Tick
from hyperscale.sansio.driver import CoreDriver


@dataclass
class Echo:
    """A core that returns each event as an effect and can be told to wake or to raise."""

    seen: list[object] = field(default_factory=list)
    wake_s: float | None = None

    def handle(self, event: object, *, now_s: float) -> list[object]:
        self.seen.append(event)
        if isinstance(event, Tick):
            self.wake_s = None
        if event == "raise":
            raise ZeroDivisionError("a bug in the core")
        return [event]

    def wake_at_s(self) -> float | None:
        return self.wake_s


def test_an_event_fed_by_an_effect_waits_until_the_first_event_is_done() -> None:
    async def scenario() -> None:
        core, performed = Echo(), []
        driver: CoreDriver[object, object]

        def perform(effect: object) -> None:
            if effect == "first":
                driver.feed("second")
                assert core.seen == ["first"]
            performed.append(effect)

        driver = CoreDriver(core, perform, clock=lambda: 0.0, on_failure=_raise)
        driver.feed("first")
        assert performed == ["first", "second"]

    asyncio.run(scenario())


def test_the_timer_feeds_a_tick_when_the_core_wants_one() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        core, ticked = Echo(), asyncio.Event()
        driver: CoreDriver[object, object] = CoreDriver(
            core, lambda _: ticked.set(), clock=loop.time, on_failure=_raise
        )
        core.wake_s = loop.time() + 0.001
        driver.arm()
        async with asyncio.timeout(10):
            await ticked.wait()
        assert core.seen == [Tick()]

    asyncio.run(scenario())


def test_a_timer_that_is_set_earlier_replaces_one_that_is_set_later() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        core, ticked = Echo(), asyncio.Event()
        driver: CoreDriver[object, object] = CoreDriver(
            core, lambda _: ticked.set(), clock=loop.time, on_failure=_raise
        )
        core.wake_s = loop.time() + 3600
        driver.arm()
        core.wake_s = loop.time()
        driver.arm()
        async with asyncio.timeout(10):
            await ticked.wait()

    asyncio.run(scenario())


def test_a_stopped_driver_hands_no_event_to_its_core_and_sets_no_timer() -> None:
    """So a leader that was deposed decides nothing more."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        core, performed = Echo(), []
        driver: CoreDriver[object, object] = CoreDriver(
            core, performed.append, clock=loop.time, on_failure=_raise
        )
        core.wake_s = loop.time()
        driver.arm()
        driver.stop()
        driver.feed("late")
        await asyncio.sleep(0.01)
        assert (core.seen, performed) == ([], [])

    asyncio.run(scenario())


def test_a_core_that_raises_is_stopped_and_its_owner_gets_the_error() -> None:
    async def scenario() -> None:
        core, errors = Echo(), []
        driver: CoreDriver[object, object] = CoreDriver(
            core, lambda _: None, clock=lambda: 0.0, on_failure=errors.append
        )
        driver.feed("raise")
        driver.feed("later")
        assert [type(error) for error in errors] == [ZeroDivisionError]
        assert core.seen == ["raise"]

    asyncio.run(scenario())


def _raise(error: BaseException) -> None:
    raise error
