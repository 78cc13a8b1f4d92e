"""How a run, a workflow, a threshold or a check stands: one word, one symbol and one colour each.

`SIGNS` is the only table of them. The live view, the lines of CI logs, the summary, the HTML report
and its badges take all three from it, so the same standing looks the same everywhere.
"""

from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    """A colour by its meaning: a role of the terminal's theme, a class of the report's style."""

    OK = "ok"
    FAILED = "failed"
    WARN = "warn"
    RUNNING = "running"
    DIM = "dim"


class Standing(StrEnum):
    """The value is the word that people read."""

    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    PAUSED = "paused"
    FAILING = "failing"  # still running, and would fail if it ended now
    STOPPING = "stopping"
    CANCELLING = "cancelling"
    PASSED = "passed"
    FAILED = "failed"
    PARTIAL = "partial"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ALLOWED = "allowed"  # a check that failed no more often than its threshold allows
    NEVER_RAN = "never ran"
    SUSPECT = "suspect"  # measured, but not to be trusted


@dataclass(frozen=True, slots=True)
class Sign:
    symbol: str
    ascii: str  # for a terminal that has no symbols
    tone: Tone


SIGNS: dict[Standing, Sign] = {
    Standing.WAITING: Sign("○", "o", Tone.DIM),
    Standing.PREPARING: Sign("○", "o", Tone.DIM),
    Standing.RUNNING: Sign("●", "*", Tone.RUNNING),
    Standing.PAUSED: Sign("‖", "=", Tone.WARN),
    Standing.FAILING: Sign("✗", "x", Tone.FAILED),
    Standing.STOPPING: Sign("⊘", "-", Tone.WARN),
    Standing.CANCELLING: Sign("⊘", "-", Tone.WARN),
    Standing.PASSED: Sign("✓", "+", Tone.OK),
    Standing.FAILED: Sign("✗", "x", Tone.FAILED),
    Standing.PARTIAL: Sign("◐", "%", Tone.WARN),
    Standing.CANCELLED: Sign("⊘", "-", Tone.WARN),
    Standing.TIMEOUT: Sign("✗", "x", Tone.FAILED),
    Standing.ALLOWED: Sign("≈", "~", Tone.WARN),
    Standing.NEVER_RAN: Sign("◌", "?", Tone.WARN),
    Standing.SUSPECT: Sign("▲", "!", Tone.WARN),
}

_JUDGED = {  # status that alone says nothing about success -> standing with, without faults
    "running": (Standing.FAILING, Standing.RUNNING),
    "paused": (Standing.FAILING, Standing.PAUSED),
    "completed": (Standing.FAILED, Standing.PASSED),
}


def standing_of(status: str, *, has_faults: bool) -> Standing:
    """Return the standing of a run or workflow. `has_faults`: a threshold, a check or another
    condition of success does not hold."""
    if status in _JUDGED:
        return _JUDGED[status][0 if has_faults else 1]
    return Standing(status)


def standing_of_check(passed: int, failed: int, *, is_allowed: bool) -> Standing:
    """Return the standing of a check. `is_allowed`: a threshold on `checks` holds."""
    if failed:
        return Standing.ALLOWED if is_allowed else Standing.FAILED
    return Standing.PASSED if passed else Standing.NEVER_RAN
