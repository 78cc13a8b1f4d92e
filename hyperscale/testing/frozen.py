"""Read-only values: what a request part is at run time, once it has been encoded.

A part is encoded before the clock starts, so a later change would silently not be sent.
These types refuse it and say what to do; copies of them are plain and free to change.
Knows nothing of encoding.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    name = type(self).__name__.removesuffix("Value")
    plain = "dict" if isinstance(self, dict) else "list"
    raise TypeError(
        f"{name} is encoded once before the run and cannot change; "
        f"copy it first, {plain}(value), and send the copy"
    )


class FrozenDict(dict[str, Any]):
    """A dict that refuses to change. `dict(value)`, `copy()` and `|` give plain dicts."""

    __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
    __ior__ = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, _memo: object) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (thaw(self),)


class FrozenList(list[Any]):
    """A list that refuses to change. `list(value)`, slices and `+` give plain lists."""

    __setitem__ = __delitem__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, _memo: object) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (thaw(self),)


def freeze(value: Any) -> Any:
    """`value` with every dict and list in it made read-only."""
    if isinstance(value, Mapping):
        return FrozenDict(frozen_items(value))
    if isinstance(value, list | tuple):
        return FrozenList([freeze(item) for item in value])
    return value


def frozen_items(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    return ((key, freeze(item)) for key, item in value.items())


def thaw(value: Any) -> Any:
    """The plain, changeable copy of what `freeze` made."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list):
        return [thaw(item) for item in value]
    return value
