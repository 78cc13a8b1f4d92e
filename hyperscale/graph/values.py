"""Values of settings that people write in a class or on the command line."""

import re
from enum import Enum
from typing import TypeVar

from hyperscale.errors import InputError

E_ = TypeVar("E_", bound=Enum)

# Bounded, because Python refuses to parse numbers of many thousands of digits.
_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")


def parse_count(value: object, *, where: str, most: int) -> int:
    """Return a whole number of at least 1, which may be text from a command line."""
    number = value
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise InputError(f"{where}: {value!r} is not a whole number", hint="such as 10")
    if not 1 <= number <= most:
        raise InputError(f"{where}: {value!r} must be at least 1 and at most {most}")
    return number


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
