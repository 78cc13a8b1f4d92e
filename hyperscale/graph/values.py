"""Values of settings that people write in a class or on the command line."""

import re
from enum import Enum
from typing import TypeVar

from hyperscale.errors import InputError

E_ = TypeVar("E_", bound=Enum)

WEIGHT_MAX = 1_000_000

# Bounded, because Python refuses to parse numbers of many thousands of digits.
_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")


def parse_count(value: object, *, where: str, most: int, least: int = 1) -> int:
    """Return a whole number, which may be text from a command line."""
    number = value
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise InputError(f"{where}: {value!r} is not a whole number", hint="such as 10")
    if not least <= number <= most:
        raise InputError(f"{where}: {value!r} must be at least {least} and at most {most}")
    return number


def parse_weight(value: object, *, where: str) -> float:
    """Return a share among others, of workflows of a mix or of alternative steps."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= WEIGHT_MAX:  # type: ignore[operator]  # it is a number
        raise InputError(
            f"{where}: {value!r} is not a weight", hint=f"a number above 0, up to {WEIGHT_MAX:,}"
        )
    return float(value)  # type: ignore[arg-type]  # as above


def parse_choice(options: type[E_], value: object, *, where: str) -> E_:
    """Return the option of an enum, given as itself or by its value."""
    if isinstance(value, options):
        return value
    if isinstance(value, str):
        for option in options:
            if option.value == value.strip().lower():
                return option
    choices = ", ".join(f'"{option.value}"' for option in options)
    raise InputError(f"{where}: {value!r} is unknown", hint=f"choose from {choices}")
