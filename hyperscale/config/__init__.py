"""Values that people write, with units and bounds: durations and whole numbers.

Every value is parsed once, where the user enters it, into a plain number whose name carries the
unit. `schema` lists the settings of a node, `loading` reads them from files, environment and
flags; only nodes and their commands import those two.
"""

import re

from hyperscale.errors import InputError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
DURATION_S_MAX = 30 * 86400.0

GRACE_S = 1.0
"""How long steps in flight may take before they are cut, if a run is stopped early."""


def parse_duration_s(value: object, *, where: str, least_s: float | None = None) -> float:
    """Parse `"30s"`, `"1m30s"`, `"250ms"` or a plain number of seconds, above 0 or at least
    `least_s`."""
    hint = 'write it as "30s", "1m30s" or "250ms"'
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{where}: {value!r} is not a duration", hint=hint)
    if isinstance(value, str):
        text = value.strip().lower()
        if not _DURATION.fullmatch(text):
            raise InputError(f"{where}: {value!r} is not a duration", hint=hint)
        seconds = sum(float(n) * _UNITS_S[unit] for n, unit in _DURATION_PART.findall(text))
    else:
        # An int may be too large for a float.
        seconds = float(value) if abs(value) <= DURATION_S_MAX else -1.0
    is_enough = seconds > 0 if least_s is None else seconds >= least_s
    if not (is_enough and seconds <= DURATION_S_MAX):
        least = "above 0" if least_s is None else f"at least {least_s:g}"
        raise InputError(f"{where}: {value!r} must be {least} and at most 30 days", hint=hint)
    return seconds


def parse_whole(text: str, *, low: int, most: int) -> int | None:
    """Parse a whole number from `low` to `most`; None if `text` is not one."""
    digits = text.lstrip("0") or text[:1]
    # Thousands of digits are more than `int` reads.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(most))):
        return None
    return int(digits) if low <= int(digits) <= most else None


def format_duration(seconds: float) -> str:
    """Format seconds for people: `90` as `"1m30s"`, `0.25` as `"250ms"`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{n}{unit}" for n, unit in parts if n)
