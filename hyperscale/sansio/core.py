"""What a sans-IO core looks like to its driver, its tests and the simulator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Event_contra = TypeVar("Event_contra", contravariant=True)
Effect_co = TypeVar("Effect_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Tick:
    """The time has come that the core named in `wake_at_s`."""


class Core(Protocol[Event_contra, Effect_co]):
    """Logic without sockets, clocks, tasks or locks."""

    def handle(self, event: Event_contra, *, now_s: float) -> Sequence[Effect_co]:
        """Take one event; return what has to be done about it, in order."""

    def wake_at_s(self) -> float | None:
        """When the core needs a `Tick`, on the clock of `now_s`; None if nothing is scheduled."""
