"""Columns of feeds as request parts: `url: URL = accounts.column("url")`.

Each row gives one part, checked where the user is and prepared by each executor, once per row. Rows
with the same value share one part.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hyperscale.errors import InputError
from hyperscale.graph.feeds import feeds_of, rows_of
from hyperscale.graph.reading import ReadHook, Reading, ReadParameter
from hyperscale.testing import URL, Auth, Cookies, Data, Headers, OptimizedArg, Params
from hyperscale.testing.arguments import UrlValue
from hyperscale.testing.feed import Feed, FeedColumn, Row

_MAPPINGS: tuple[object, ...] = (Headers, Params, Cookies)
_PARTS: tuple[object, ...] = (URL, Data, Auth, *_MAPPINGS)


@dataclass(frozen=True, slots=True)
class ColumnParts:
    """The request part of each row of a feed."""

    feed: str  # the attribute of the workflow
    parts: tuple[OptimizedArg, ...]


def validate_columns(reading: Reading) -> None:
    """Refuse columns of parameters that no row can be passed to."""
    for hook in reading.hooks:
        for parameter in hook.parameters:
            if not isinstance(parameter.default, FeedColumn):
                continue
            where = f"{hook.where}: {parameter.name}"
            if not (hook.kind and hook.is_step):
                raise InputError(
                    f"{where}: only a step has a row, so only a step can take a column",
                    hint="read it as self.<feed>[<column>] in a check, or pass it on from a step",
                )
            if parameter.optimized not in _PARTS:
                raise InputError(
                    f"{where}: a column cannot be this kind of parameter",
                    hint="annotate it as URL, Headers, Params, Cookies, Auth or Data",
                )


def column_parts(
    reading: Reading,
    hook: ReadHook,
    parameter: ReadParameter,
    files: Mapping[str, str | bytes],
) -> ColumnParts:
    """Return the request part of each row. Raises InputError naming the parameter and the row.

    `files` has the path or the content of each file, by the path as written.
    """
    column, kind = parameter.default, parameter.optimized
    assert isinstance(column, FeedColumn)
    assert kind is not None
    where = f"{hook.where}: {parameter.name}"
    name = _attribute(reading, column.feed, where=where)
    written = column.feed.file
    content = None if written is None else files[written]
    rows = rows_of(
        column.feed,
        Path(content) if isinstance(content, str) else content,
        where=reading.at(name),
    )
    known: dict[str, OptimizedArg] = {}
    parts = []
    for number, row in enumerate(rows, 1):
        value = _cell(row, column.name, f"{where}: row {number} of {name}")
        key = value if isinstance(value, str) else repr(value)
        part = known.get(key)
        if part is None:
            try:
                part = known[key] = kind.wrap(_unpacked(kind, value))
            except InputError as error:
                raise InputError(
                    f"{where}: row {number} of {name}: {error.message}", hint=error.hint
                ) from error
        parts.append(part)
    return ColumnParts(name, tuple(parts))


def hosts_of(parts: Iterable[OptimizedArg]) -> list[str]:
    """Return the addresses of the URLs among the parts, each once."""
    urls = {part for part in parts if isinstance(part, UrlValue)}
    # Most rows have the same host: parse one URL of each.
    by_prefix = {url.split("/", 3)[2]: url for url in sorted(urls)}
    return sorted({url.authority for url in by_prefix.values()})


def _attribute(reading: Reading, feed: Feed, *, where: str) -> str:
    for name, own in feeds_of(reading.cls).items():
        if own is feed:
            return name
    raise InputError(
        f"{where}: its column is of a feed that {reading.name} does not have",
        hint=f"make the feed an attribute of {reading.name}, above the step",
    )


def _cell(row: Row, column: object, where: str) -> object:
    if isinstance(column, str) and column in row:
        return row[column]
    near = difflib.get_close_matches(str(column), list(row), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, row))}"
    raise InputError(f"{where} has no column {column!r}", hint=hint)


def _unpacked(kind: object, value: object) -> object:
    """Return a cell for a part that is a mapping: in a CSV file it is written as JSON."""
    if kind not in _MAPPINGS or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
