"""Events one after the other, for a driver whose effects may bring about the next event.

A core must not be entered again while it is being asked, so an event that comes in the middle
of another one waits until that is done with.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_Event = TypeVar("_Event")


class Turns(Generic[_Event]):
    """Hands each event to `handle`, in the order they came."""

    def __init__(self, handle: Callable[[_Event], None]) -> None:
        self._handle = handle
        self._waiting: deque[_Event] = deque()
        self._is_handling = False

    def take(self, event: _Event) -> bool:
        """True when nothing waits any more; False if whoever is at it goes on with this one."""
        self._waiting.append(event)
        if self._is_handling:
            return False
        self._is_handling = True
        try:
            while self._waiting:
                self._handle(self._waiting.popleft())
        finally:
            self._is_handling = False
        return True
