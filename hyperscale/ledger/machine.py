"""What a group replicates: a state machine it feeds and never looks into."""

from collections.abc import Sequence
from typing import Protocol


class Applied(Protocol):
    """What became of one entry."""

    @property
    def reply(self) -> bytes:
        """For whoever proposed it."""

    @property
    def history(self) -> Sequence[tuple[str, str, bytes]]:
        """(job, kind, data) rows for the audit table."""


class Machine(Protocol):
    """Deterministic: the same entries in the same order give the same state everywhere.

    `apply` refuses a bad entry in its reply; it never raises for one.
    """

    def apply(self, index: int, stamp_ms: int, body: bytes) -> Applied: ...

    def snapshot(self) -> bytes:
        """The whole live state; equal states give equal bytes."""

    def restore(self, data: bytes) -> None: ...

    def digest(self) -> bytes:
        """A hash of the whole live state, computed afresh: it also finds what went wrong in
        memory."""

    def export_keys(self, slots: frozenset[int]) -> bytes:
        """The key records of these slots, which this machine forgets."""

    def import_keys(self, data: bytes) -> None: ...
