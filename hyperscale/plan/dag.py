"""Order among named things that wait for each other: steps of a workflow, workflows of a test.

Everything is in the order the names were given, so the same input always runs the same way.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter


def find_cycle(after: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Return a cycle as the path that closes it (`[a, b, a]`), or None."""
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        path: list[str] = error.args[1][:0:-1]
        first = path.index(min(path, key=list(after).index))
        return [*path[first:], *path[:first], path[first]]
    return None


def layers(after: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the names in layers: each one layer below the lowest it waits for.

    Raises ValueError if there is a cycle.
    """
    position = {name: index for index, name in enumerate(after)}
    sorter = TopologicalSorter(after)
    sorter.prepare()
    result = []
    while sorter.is_active():
        free = sorter.get_ready()
        sorter.done(*free)
        result.append(sorted(free, key=position.__getitem__))
    return result


def ancestors(after: Mapping[str, Iterable[str]], name: str) -> set[str]:
    """Return everything that `name` waits for, directly or not."""
    found: set[str] = set()
    waiting = list(after.get(name, ()))
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting.extend(after.get(other, ()))
    return found
