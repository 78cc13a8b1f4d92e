"""Versions of Hyperscale, and what a tier whose nodes have different versions may commit.

Nodes of one tier agree on a *cluster version*: the version that all of them have. It is committed
and never falls (`ledger.cluster_version`). What an older version does not know is in `FEATURES`,
with the version that brought it, and nobody commits it before the cluster version is that high:
`admitted` is the one gate, for proposers and for state machines alike.
"""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib.metadata import version as installed_version
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from hyperscale.errors import RunError

VERSION: Final = installed_version("hyperscale")

_T = TypeVar("_T")


class Version(NamedTuple):
    """Major and minor number of a version; all releases with the same two can be mixed freely."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    def is_next_to(self, other: "Version") -> bool:
        """Return True for the same version and for one minor version older or newer."""
        return self.major == other.major and abs(self.minor - other.minor) <= 1


def parse_version(text: str) -> Version | None:
    """Return major and minor number of "1.4.2" or "1.4"; None for what is no version."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal() and len(text) <= _CHARS_MAX):
        return None
    return Version(int(major), int(minor))


_CHARS_MAX = 64
OLDEST: Final = Version(0, 0)
CURRENT: Final = parse_version(VERSION) or OLDEST
"""The version of this node."""

FEATURES: Final[Mapping[str, Version]] = {}
"""What is committed and older versions do not know, with the version that brought it.

A kind of event, decision or record is named by its class ("JobPaused"), a field or a member of an
enumeration by its class and its name ("WorkflowPlan.zone", "JobStatus.PAUSED"). Such a field has a
default, and is the last of its class."""


class AboveVersionError(RunError):
    """Something may not be committed yet, because older nodes would not understand it."""

    def __init__(self, name: str, needed: Version, version: Version) -> None:
        super().__init__(
            f"{name} needs version {needed}, and the cluster version is {version}",
            hint="'hyperscale ledger version' shows which nodes are older",
        )


def admitted(value: _T, version: Version, *, is_strict: bool = False) -> _T:
    """Return an event as every node of a tier with this cluster version understands it.

    Fields above the version get their defaults, or with `is_strict` raise `AboveVersionError`, as
    kinds above the version always do."""
    above = {name: needed for name, needed in FEATURES.items() if needed > version}
    return _Gate(above, version, is_strict=is_strict).admit(value) if above else value


class _Gate:
    def __init__(self, above: Mapping[str, Version], version: Version, *, is_strict: bool) -> None:
        self._above = above
        self._version = version
        self._is_strict = is_strict

    def admit(self, value: Any) -> Any:
        match value:
            case Struct():
                self._check(type(value).__name__)
                return self._admit_fields(value)
            case Enum():
                self._check(f"{type(value).__name__}.{value.name}")
            case dict():
                return {key: self.admit(each) for key, each in value.items()}
            case list():
                return [self.admit(each) for each in value]
            case tuple() if type(value) is tuple:
                return tuple(self.admit(each) for each in value)
        return value

    def _admit_fields(self, value: Struct) -> Struct:
        changes: dict[str, Any] = {}
        for name, default in _defaults(type(value)).items():
            present = getattr(value, name)
            path = f"{type(value).__name__}.{name}"
            if path not in self._above:
                changes[name] = self.admit(present)
                continue
            changes[name] = default() if callable(default) else default
            if self._is_strict and present != changes[name]:
                self._check(path)
        return msgspec.structs.replace(value, **changes)

    def _check(self, name: str) -> None:
        if (needed := self._above.get(name)) is not None:
            raise AboveVersionError(name, needed, self._version)


@cache
def _defaults(kind: type[Struct]) -> dict[str, Any]:
    """Return the fields of a class with their defaults, or with what makes them."""
    found: dict[str, Any] = {}
    for each in msgspec.structs.fields(kind):
        is_made = each.default_factory is not msgspec.NODEFAULT
        found[each.name] = each.default_factory if is_made else each.default
    return found
