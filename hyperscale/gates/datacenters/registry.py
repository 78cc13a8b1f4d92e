"""Datacenters as the gates have committed them: known, drained or removed.

An entry is committed in the management group of the gates when a datacenter registers for the first
time, and when an operator drains, resumes or removes it. Every gate follows that group, so every
gate knows every datacenter, also right after its start. What probes say is not committed
(`monitor`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

MANAGERS_MAX = 64  # addresses that are kept of one datacenter
_NAME_MAX = 64


class DatacenterState(StrEnum):
    ACTIVE = "active"
    DRAINED = "drained"  # it gets no new jobs; what runs there goes on to its end
    REMOVED = "removed"  # its managers are refused, and nobody waits for its results


_S = DatacenterState

DATACENTER_MOVES: dict[DatacenterState, frozenset[DatacenterState]] = {
    _S.ACTIVE: frozenset({_S.DRAINED, _S.REMOVED}),
    _S.DRAINED: frozenset({_S.ACTIVE, _S.REMOVED}),
    _S.REMOVED: frozenset({_S.ACTIVE}),
}


class DatacenterEntry(Struct, frozen=True, kw_only=True):
    """One datacenter: its state, and the managers that a gate begins with."""

    state: DatacenterState = DatacenterState.ACTIVE
    managers: tuple[str, ...] = ()  # addresses


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(DatacenterEntry).decode


class EntryChange(Struct, frozen=True):
    """The value of an entry before and after: the change is refused if another came first."""

    before: bytes | None
    after: bytes


def entries_of(registry: Mapping[str, bytes]) -> dict[str, DatacenterEntry]:
    """Return the datacenters in the registry of a ledger, by name."""
    return {name: _decode(value) for name, value in sorted(registry.items())}


def registered(
    registry: Mapping[str, bytes], name: str, managers: tuple[str, ...]
) -> EntryChange | None:
    """Return the change that a registration makes; None if the entry is as it should be."""
    before = registry.get(name)
    entry = DatacenterEntry() if before is None else _decode(before)
    kept = tuple(sorted(managers)[:MANAGERS_MAX])
    if entry.state is DatacenterState.REMOVED or (before is not None and entry.managers == kept):
        return None
    return EntryChange(before, _encode(msgspec.structs.replace(entry, managers=kept)))


def moved(registry: Mapping[str, bytes], name: str, state: DatacenterState) -> EntryChange | None:
    """Return the change to a state; None if it has that state. Only legal moves are asked for."""
    before = registry[name]
    entry = _decode(before)
    if entry.state is state:
        return None
    return EntryChange(before, _encode(msgspec.structs.replace(entry, state=state)))


def region_warning(regions: Sequence[str]) -> str:
    """Return a warning if one region has a majority of at least three gates; empty if none has.

    `regions` has one entry for each gate."""
    if len(regions) < 3:
        return ""
    region, gates = Counter(regions).most_common(1)[0]
    if gates <= len(regions) // 2:
        return ""
    return (
        f"{gates} of {len(regions)} gates are in region {region}: if it fails, no gate takes jobs "
        "or commits results (start gates in other regions with --region)"
    )


def name_problem(name: str) -> str | None:
    """Return why a text cannot be the name of a datacenter; None if it can."""
    if not name or len(name) > _NAME_MAX:
        return f"the name of a datacenter has 1 to {_NAME_MAX} characters"
    if "/" in name or not name.isprintable():
        return f"{name!r} is no name of a datacenter: it has a slash or control characters"
    return None
