"""Flags of commands that page through what the cluster has kept: since when, and after what."""

import time
from datetime import UTC, datetime

from hyperscale.config import parse_duration_s, parse_whole
from hyperscale.errors import InputError
from hyperscale.ledger.store import BEFORE_FIRST

Place = tuple[int, int, int]
"""Stamp, group and index of a row."""


def since_ms(text: str) -> int:
    """Return the value of --since as a date; 0 if it is empty."""
    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            ago_s = parse_duration_s(text, where="--since")
        except InputError as error:
            raise InputError(
                f"--since {text!r} is neither a duration nor a time",
                hint="2h, 30m, or 2026-01-31T12:00:00Z",
            ) from error
        return int((time.time() - ago_s) * 1000)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def after_of(text: str) -> Place:
    """Return the position that an earlier page ended with."""
    if not text:
        return BEFORE_FIRST
    numbers = [parse_whole(part, low=0, most=2**62) for part in text.split(".")]
    match numbers:
        case [int(stamp), int(group), int(index)]:
            return stamp, group, index
    raise InputError(f"--after {text!r} is no place", hint="give what the last page ended with")


def place_text(place: Place) -> str:
    """Return a place as --after takes it."""
    return ".".join(map(str, place))
