"""A tier in which every second node runs a newer version, before the cluster version has risen.

The newer version knows one more kind of event and one more field, and keeps what they say in its
state and snapshots. Clients send both through any node.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from hyperscale.jobs.committed.machine import Applied, JobMachine
from hyperscale.wire import versions
from hyperscale.wire.versions import AboveVersionError, Version, admitted
from tests.simulation.ledger.mutants import Mutant
from tests.simulation.ledger.newer_events import JobNoted, decode_newer

NEWER = Version(0, 2)
FEATURES = {"JobNoted": NEWER, "NewerCancel.zone": NEWER}


_encode = msgspec.msgpack.Encoder().encode


class NewerMachine(JobMachine):
    """The state machine of jobs in the newer version."""

    def __init__(self, scope: str, group: int) -> None:
        super().__init__(scope, group)
        self._notes: dict[str, str] = {}

    def admit(self, event: Any, version: Version) -> Any:
        return admitted(event, version)

    def apply(self, index: int, time_ms: int, body: bytes, **entry: Any) -> Applied:
        applied = super().apply(index, time_ms, body, **entry)
        try:
            event = self.admit(decode_newer(body), entry["version"])
        except (msgspec.ValidationError, AboveVersionError):
            return applied  # an event that both versions know, or one that is not applied yet
        said = event.note if isinstance(event, JobNoted) else event.zone
        if said:
            self._notes[event.job] = said
        return applied

    @property
    def state(self) -> object:
        state = msgspec.msgpack.decode(super().snapshot())
        return state | {"notes": self._notes} if self._notes else state

    def snapshot(self) -> bytes:
        return _encode(self.state)

    def restore(self, data: bytes) -> None:
        super().restore(data)
        self._notes = msgspec.msgpack.decode(data).get("notes", {})


class UngatedMachine(NewerMachine):
    """The newer version without the gate: it applies what older replicas do not know."""

    def admit(self, event: Any, version: Version) -> Any:
        del version
        return event


MIXED = Mutant(name="mixed versions", newer=NewerMachine)
UNGATED = Mutant(
    name="mixed versions, no gate", newer=UngatedMachine, caught_by=("differs from others'",)
)


@contextmanager
def newer_features() -> Iterator[None]:
    """Have the gate know the version of what the newer version brought."""
    with patch.object(versions, "FEATURES", FEATURES):
        yield
