"""Order among named things that wait for each other: steps of a workflow, workflows of a test.

Everything is in the order the names were given, so the same input always runs the same way.
"""

from collections.abc import Collection, Iterable, Mapping


def find_cycle(after: Mapping[str, Iterable[str]]) -> list[str] | None:
    """A cycle as the path that closes it (`[a, b, a]`), or None. Unknown names end a path."""
    settled: set[str] = set()
    for start in after:
        path: list[str] = []
        on_path: set[str] = set()
        # Iterators instead of recursion: a chain may be longer than the stack is deep.
        stack = [iter((start,))]
        while stack:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                if path:
                    done = path.pop()
                    on_path.discard(done)
                    settled.add(done)
            elif name in on_path:
                return [*path[path.index(name) :], name]
            elif name in after and name not in settled:
                path.append(name)
                on_path.add(name)
                stack.append(iter(after[name]))
    return None


def layers(after: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Each name one layer below the lowest it waits for. Needs known names and no cycle."""
    level: dict[str, int] = {}
    waiting = list(after)
    while waiting:
        blocked = []
        for name in waiting:
            if all(other in level for other in after[name]):
                level[name] = max((level[other] + 1 for other in after[name]), default=0)
            else:
                blocked.append(name)
        if len(blocked) == len(waiting):
            raise ValueError(f"no order: {', '.join(blocked)} wait for a cycle or unknown names")
        waiting = blocked
    result: list[list[str]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for name in after:
        result[level[name]].append(name)
    return result


def ancestors(after: Mapping[str, Iterable[str]], name: str) -> set[str]:
    """Everything that `name` waits for, directly or not."""
    found: set[str] = set()
    waiting = list(after.get(name, ()))
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting.extend(after.get(other, ()))
    return found
