"""Whether workflow classes make sense, alone and together; the user hears it here or never.

Runs on finished classes, where the user is. The first thing that is wrong raises an
InputError naming file, class and method; what is merely suspicious comes back as warnings.
"""

from collections.abc import Sequence

from hyperscale.errors import InputError
from hyperscale.graph.reading import Reading
from hyperscale.plan.dag import find_cycle


def validate(readings: Sequence[Reading]) -> list[str]:
    """Warnings for people, or an InputError."""
    warnings: list[str] = []
    for reading in readings:
        _check_order(reading)
    return warnings


def _check_order(reading: Reading) -> None:
    order = reading.step_order()
    cycle = find_cycle(order)
    if cycle:
        raise InputError(f"{reading.where}: steps wait for each other: {' -> '.join(cycle)}")
