"""`Mix`: one total of load that several workflows of a file share."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The load of all workflows with a `weight` together, at the top of a test file:
    `mix = Mix(vus=200, duration="5m")`. Values are written as in a workflow."""

    vus: int | None = None
    duration: str | float | None = None
    rate: str | None = None
    max_vus: int | None = None
    stages: Sequence[tuple[str | float, int | str]] | None = None
