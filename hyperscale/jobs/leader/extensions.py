"""More time for attempts whose actions take long: how much, how often, and why no more."""

from enum import StrEnum
from typing import NamedTuple

EXTENSIONS_S = (15.0, 7.5, 3.75, 1.875, 1.0)
"""What an attempt is granted, one after the other, if it makes progress in between."""


def extended_s(extensions: int) -> float:
    """Return the sum of this many extensions."""
    return sum(EXTENSIONS_S[:extensions])


class ExtensionDenial(StrEnum):
    """Why an attempt gets no more time."""

    NO_PROGRESS = "no_progress"  # since the last extension
    MAX_EXTENSIONS_EXCEEDED = "max_extensions_exceeded"


class Extension(NamedTuple):
    """The reply to an attempt whose actions take long."""

    granted_s: float = 0.0
    left: int = 0  # how many more it may get
    denial: ExtensionDenial | None = None
