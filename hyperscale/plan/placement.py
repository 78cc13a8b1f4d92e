"""Where the parts of a workflow may run: constraints on labels of workers, and their spread."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from hyperscale.config.labels import TEXT_MAX, checked_label, split_label
from hyperscale.errors import InputError

CONSTRAINTS_MAX = 16
VALUES_MAX = 16

_HINT = 'as {"zone": "a", "arch": ["amd64", "arm64"]}'


class Placement(Struct, frozen=True, omit_defaults=True):
    """A worker may get a part if it has one of the values of every constraint, and the label over
    whose values the parts are spread."""

    constraints: tuple[tuple[str, tuple[str, ...]], ...] = ()  # label -> values, sorted
    spread: str = ""

    def is_met_by(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) in values for name, values in self.constraints) and (
            not self.spread or self.spread in labels
        )

    def overridden_by(self, other: "Placement") -> "Placement":
        """Return this placement with the constraints of another one, which replace those on the
        same label, and with its spread if it has one."""
        constraints = dict(self.constraints) | dict(other.constraints)
        return Placement(tuple(sorted(constraints.items())), other.spread or self.spread)

    def describe(self) -> str:
        """Return the constraints for people: `zone=a, arch=amd64|arm64, any zone`."""
        texts = [f"{name}={'|'.join(values)}" for name, values in self.constraints]
        if self.spread and self.spread not in dict(self.constraints):
            texts.append(f"any {self.spread}")
        return ", ".join(texts)


ANYWHERE = Placement()


def why_unmet(placement: Placement, workers: Sequence[Mapping[str, str]]) -> str:
    """Say that no worker meets a placement, and what the labels of the workers are instead."""
    names = dict.fromkeys([name for name, _ in placement.constraints] + [placement.spread])
    found = []
    for name in filter(None, names):
        values = Counter(labels[name] for labels in workers if name in labels)
        listed = ", ".join(f"{value} on {count}" for value, count in sorted(values.items())[:8])
        found.append(f"{name} is {listed}" if listed else f"none has a label {name}")
    count = len(workers)
    return (
        f"no worker has {placement.describe()} (of {count} worker{'' if count == 1 else 's'}, "
        f"{'; '.join(found)})"
    )


def parse_placement(
    constraints: object, spread: object, *, at: Callable[[str], str] = str
) -> Placement:
    """Return the placement of `constraints` and `spread` as tests and clients write them; `at`
    names the place of each for messages."""
    return Placement(
        _constraints(constraints, where=at("constraints")), _spread(spread, where=at("spread"))
    )


def placement_problem(placement: Placement) -> str | None:
    """Return what is wrong with the size of a placement, or None."""
    if len(placement.constraints) > CONSTRAINTS_MAX:
        return f"{len(placement.constraints)} constraints, more than {CONSTRAINTS_MAX}"
    for name, values in placement.constraints:
        if len(values) > VALUES_MAX:
            return f"{len(values)} values of {name[:TEXT_MAX]}, more than {VALUES_MAX}"
        if max(map(len, (name, *values))) > TEXT_MAX:
            return f"a label of more than {TEXT_MAX} characters"
    return None


def parse_constraint_flags(texts: Sequence[str], *, where: str) -> dict[str, list[str]]:
    """Return the constraints of flags `zone=a`; several values of a label are alternatives."""
    constraints: dict[str, list[str]] = {}
    for text in texts:
        name, value = split_label(text, where=where)
        constraints.setdefault(name, []).append(value)
    return constraints


def _constraints(given: object, *, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: {given!r} is not a table of labels", hint=_HINT)
    found: dict[str, tuple[str, ...]] = {}
    for name, value_or_values in given.items():
        is_many = isinstance(value_or_values, list | tuple | set | frozenset)
        values = value_or_values if is_many else [value_or_values]
        labels = [checked_label(name, value, where=where) for value in values]
        if not labels:
            raise InputError(f"{where}: {name!r} has no value", hint=_HINT)
        found[str(name)] = tuple(sorted({value for _, value in labels}))
    placement = Placement(tuple(sorted(found.items())))
    if (problem := placement_problem(placement)) is not None:
        raise InputError(f"{where}: {problem}", hint=_HINT)
    return placement.constraints


def _spread(given: object, *, where: str) -> str:
    if given is None:
        return ""
    name, _ = checked_label(given, "any", where=where)
    return name
