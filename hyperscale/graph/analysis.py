"""What a step's source says about it, so that the engine need not do what nobody can see."""

from collections.abc import Mapping
from dataclasses import dataclass

from hyperscale.graph.reading import Reading


@dataclass(frozen=True, slots=True)
class FromParameter:
    """An argument that is the step's own request part of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class StaticCall:
    """The one client call a step consists of. Arguments are literals or `FromParameter`."""

    protocol: str
    method: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Insight:
    sees_body: bool = True
    static: StaticCall | None = None


def analyse(reading: Reading) -> dict[str, Insight]:
    """What can be said of each hook; the careful answer where nothing can."""
    return {hook.name: Insight() for hook in reading.hooks}
