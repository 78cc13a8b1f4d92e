"""The one driver of sans-IO cores on an asyncio loop: events in, effects out, one timer.

Its owner performs the effects, and decides what ends if the core raises, which is a bug.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hyperscale.sansio.core import Core, Tick

Event = TypeVar("Event")
Effect = TypeVar("Effect")


class CoreDriver(Generic[Event, Effect]):
    """Runs one core until `stop`."""

    def __init__(
        self,
        core: Core[Event | Tick, Effect],
        perform: Callable[[Effect], Any],
        *,
        clock: Callable[[], float],
        on_failure: Callable[[BaseException], None],
        before_tick: Callable[[], None] | None = None,
        after_events: Callable[[], None] | None = None,
    ) -> None:
        """`before_tick` is called before each `Tick`, to read what has arrived by then;
        `after_events` when no event waits any more."""
        self.core = core
        self._perform = perform
        self._clock = clock
        self._on_failure = on_failure
        self._before_tick = before_tick
        self._after_events = after_events
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event | Tick] = deque()
        self._is_handling = False
        self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0

    def feed(self, event: Event | Tick) -> None:
        """Hand one event to the core and perform what follows.

        An event that arrives while an effect is performed waits: a core is never entered twice.
        """
        if self._is_stopped:
            return
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                event = self._events.popleft()
                for effect in self.core.handle(event, now_s=self._clock()):
                    self._perform(effect)
            if self._after_events is not None:
                self._after_events()
        except Exception as error:  # noqa: BLE001  a bug in the core: its owner decides what ends
            self.stop()
            self._on_failure(error)
            return
        finally:
            self._is_handling = False
        self.arm()

    def arm(self) -> None:
        """Set the timer to the core's `wake_at_s`. `feed` does so; call it after a change of the
        core that was no event."""
        wake_at_s = None if self._is_stopped else self.core.wake_at_s()
        if wake_at_s is None:
            self._disarm()
        elif self._timer is None or wake_at_s < self._timer_at_s:
            # A timer that fires too early costs less than one that is set again for each event.
            self._disarm()
            self._timer_at_s = wake_at_s
            self._timer = self._loop.call_later(max(0.0, wake_at_s - self._clock()), self._on_timer)

    def stop(self) -> None:
        """Take no more events and perform no more effects."""
        self._is_stopped = True
        self._events.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._before_tick is not None:
            self._before_tick()
        wake_at_s = None if self._is_stopped else self.core.wake_at_s()
        if wake_at_s is not None and wake_at_s <= self._clock():
            self.feed(Tick())
        else:
            self.arm()
