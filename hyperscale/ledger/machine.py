"""The replicated state machine of a group, as the ledger sees it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from hyperscale.wire.versions import Version


class ApplyResult(Protocol):
    """What one committed command did to a state machine."""

    @property
    def event(self) -> object:
        """The decoded command; None if it could not be decoded."""

    @property
    def reply(self) -> object:
        """The state machine's answer to the proposer; `Machine.encode_reply` encodes it."""

    @property
    def did_change(self) -> bool:
        """True if the state is another one now."""

    @property
    def history(self) -> Sequence[tuple[str, str, bytes]]:
        """Rows for the history table: job, kind, data."""


class Machine(Protocol):
    """A deterministic state machine: the same entries in the same order give the same state.

    `apply` answers a bad command with a refusal in its reply; it never raises for one.
    """

    def apply(
        self, index: int, time_ms: int, body: bytes, *, unix_ms: int, version: Version
    ) -> ApplyResult:
        """Apply a command. `time_ms`: the time of the group, by which ages and durations are
        measured (`group_clock`). `unix_ms`: the date, for people. `version`: what is above it is
        not applied (`wire.versions.admitted`), because not every replica knows it."""

    def encode_reply(self, reply: object) -> bytes:
        """Encode a reply of `apply` for another node."""

    @property
    def state(self) -> object:
        """The whole live state, which msgspec can encode: for hashes."""

    def snapshot(self) -> bytes:
        """Return the whole live state encoded; equal states give equal bytes."""

    def restore(self, data: bytes) -> None: ...
    def export_keys(self, is_moved: Callable[[str], bool]) -> bytes:
        """Remove the records of the keys that move from the state and return them encoded."""

    def import_keys(self, data: bytes) -> None: ...
