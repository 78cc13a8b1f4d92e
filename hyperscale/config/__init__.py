"""Values people write, with units and bounds: durations, rates and whole numbers.

Everything is parsed once, where the user is, into plain numbers whose names carry the unit.
What a node can be told is in `schema`, where it may be told from in `loading`; only nodes and
their commands import those two.
"""

import math
import re

from hyperscale.errors import InputError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
DURATION_S_MAX = 30 * 86400.0

GRACE_S = 1.0
"""What a step in flight at the deadline gets before it is cut."""


def parse_duration_s(value: object, *, where: str) -> float:
    """Seconds from `"30s"`, `"1m30s"`, `"250ms"` or a plain number of seconds."""
    hint = 'write it as "30s", "1m30s" or "250ms"'
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{where}: {value!r} is not a duration", hint=hint)
    if isinstance(value, str):
        text = value.strip().lower()
        if not _DURATION.fullmatch(text):
            raise InputError(f"{where}: {value!r} is not a duration", hint=hint)
        seconds = sum(float(n) * _UNITS_S[unit] for n, unit in _DURATION_PART.findall(text))
    else:
        seconds = float(value) if abs(value) <= DURATION_S_MAX else math.inf
    if not math.isfinite(seconds) or not 0 < seconds <= DURATION_S_MAX:
        raise InputError(f"{where}: {value!r} must be above 0 and at most 30 days", hint=hint)
    return seconds


def parse_whole(text: str, *, low: int, most: int) -> int | None:
    """The whole number that is written there; None if it is none, or out of bounds."""
    digits = text.lstrip("0") or text[:1]
    # Thousands of digits are more than `int` reads.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(most))):
        return None
    return int(digits) if low <= int(digits) <= most else None


def format_duration(seconds: float) -> str:
    """`90` as `"1m30s"`, `0.25` as `"250ms"`: short, for people."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{n}{unit}" for n, unit in parts if n)
