"""Alternatives: steps with a weight, of which each iteration runs one.

Steps with a weight that wait for the same steps are alternatives of each other. Of the others, an
iteration leaves out those that wait for an alternative that was not chosen, and those that wait for
a step left out. A step that waits for several alternatives runs if one of them was chosen.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from hyperscale.plan.dag import layers
from hyperscale.plan.model import WorkflowPlan
from hyperscale.plan.shapes import SplitMix


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives of which one is drawn for each iteration."""

    names: tuple[str, ...]
    bounds: tuple[float, ...]  # where the share of each ends, from 0 to 1, without the last
    left_out: tuple[frozenset[str], ...]  # by alternative: the steps that do not run if it is drawn
    seed: int

    def draw(self, number: int) -> int:
        """Return which alternative the iteration of this number runs. It follows from the number
        alone, so it is the same in every run, on any number of cores."""
        return bisect_right(self.bounds, SplitMix(self.seed, number).fraction())


def choices_of(workflow: WorkflowPlan) -> tuple[Choice, ...]:
    """Return the choices that an iteration of a workflow makes."""
    after = {step.name: step.after for step in workflow.steps if step.is_in_iteration}
    weights = {step.name: step.weight for step in workflow.steps if step.weight is not None}
    return tuple(
        Choice(
            names=names,
            bounds=_bounds([weights[name] for name in names]),
            left_out=tuple(left_out(after, names, chosen) for chosen in names),
            seed=zlib.crc32(f"{workflow.name}: one of {', '.join(names)}".encode()),
        )
        for names in groups_of(after, weights)
    )


def groups_of(
    after: Mapping[str, tuple[str, ...]], weighted: Iterable[str]
) -> list[tuple[str, ...]]:
    """Return the steps with a weight in groups of alternatives. `after` has what steps wait for."""
    groups: dict[frozenset[str], list[str]] = {}
    known = set(weighted)
    for name in after:
        if name in known:
            groups.setdefault(frozenset(after[name]), []).append(name)
    return [tuple(names) for names in groups.values()]


def left_out(
    after: Mapping[str, tuple[str, ...]], alternatives: tuple[str, ...], chosen: str
) -> frozenset[str]:
    """Return the steps that do not run in an iteration that runs the alternative `chosen`."""
    left = set(alternatives) - {chosen}
    for layer in layers(after):
        for name in layer:
            waits = set(after[name])
            one_of = waits.intersection(alternatives)
            if (one_of and chosen not in one_of) or (waits & left) - one_of:
                left.add(name)
    return frozenset(left)


def _bounds(weights: list[float]) -> tuple[float, ...]:
    total = sum(weights)
    return tuple(bound / total for bound in accumulate(weights))[:-1]
