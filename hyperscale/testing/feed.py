"""`Feed`: rows of data that virtual users take, from a file or from code.

A feed is an attribute of a workflow. On the class it is the feed, on a virtual user the row that
the user has at that time. This module reads and checks rows; `execution.feeds` deals them.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hyperscale.errors import InputError
from hyperscale.testing.arguments import freeze

Row: TypeAlias = Mapping[str, Any]
TakeName: TypeAlias = Literal["circular", "random", "once"]
FeedPerName: TypeAlias = Literal["iteration", "vu"]

ROWS_MAX = 10_000_000
_SUFFIXES = ".csv, .json or .jsonl"


class Feed:
    """Rows for virtual users: `accounts = Feed("accounts.csv")`, read as `self.accounts["email"]`.

    `source` is a CSV, JSON or JSONL file, or an iterable of mappings that gives the same rows
    wherever the test file is imported. `take` is "circular" (again from the first row), "random" or
    "once"; a user that finds no row left ends. With `per="vu"` a user keeps one row.
    """

    def __init__(
        self,
        source: str | Path | Iterable[Mapping[str, Any]],
        *,
        take: TakeName = "circular",
        per: FeedPerName = "iteration",
    ) -> None:
        self.source = source
        self.take = take
        self.per = per
        self._rows: list[Row] | None = None

    def column(self, name: str) -> Any:
        """Return a column as a request part of a step: `url: URL = accounts.column("url")`.

        The part is prepared once for each row, and a step that uses it stays native.
        """
        return FeedColumn(self, name)

    def __getitem__(self, column: str) -> Any:
        # A virtual user has the row in place of the feed.
        raise LookupError(
            f"a feed has a row, and so {column!r}, only on a virtual user while a run is on"
        )

    @property
    def file(self) -> str | None:
        """The file of the rows, as written; None if they come from code."""
        return str(self.source) if isinstance(self.source, str | Path) else None

    def rows(self, read: Callable[[], bytes]) -> Sequence[Row]:
        """Return the rows, read-only; `read` returns the content of the file. Raises InputError
        without the place of the feed, which the caller knows."""
        if self._rows is None:
            name = self.file
            found = self._from_code() if name is None else _parsed(name, read())
            self._rows = list(found)
            if not self._rows:
                raise InputError(f"{name or 'the feed'} has no rows", hint="give it at least one")
        return self._rows

    def _from_code(self) -> Iterator[Row]:
        if not isinstance(self.source, Iterable) or isinstance(self.source, Mapping | bytes):
            raise InputError(
                f"{self.source!r} is neither a file nor rows",
                hint='write Feed("accounts.csv") or Feed([{"email": "ann@shop.test"}, …])',
            )
        for number, row in enumerate(self.source, 1):
            if number > ROWS_MAX:
                raise InputError(
                    f"the feed has more than {ROWS_MAX:,} rows", hint="is its iterable endless?"
                )
            yield _checked(row, f"row {number}")


@dataclass(frozen=True, slots=True)
class FeedColumn:
    """A column of a feed, as the default of a parameter."""

    feed: Feed
    name: str


def _parsed(name: str, content: bytes) -> Iterator[Row]:
    parse = {".csv": _csv_rows, ".json": _json_rows, ".jsonl": _jsonl_rows}
    suffix = Path(name).suffix.lower()
    if suffix not in parse:
        raise InputError(f"{name}: unknown kind of file", hint=f"name it {_SUFFIXES}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: not UTF-8", hint="save the file as UTF-8") from None
    return parse[suffix](name, text)


def _csv_rows(name: str, text: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if not header or not all(column.strip() for column in header):
            raise InputError(f"{name}:1: the header has a column without a name")
        if len(set(header)) < len(header):
            twice = next(column for column in header if header.count(column) > 1)
            raise InputError(f"{name}:1: the header has two columns {twice!r}")
        for number, values in enumerate(reader, 1):
            if not values:  # an empty line
                continue
            if len(values) != len(header):
                raise InputError(
                    f"{name}:{reader.line_num}: row {number} has {len(values)} values, "
                    f"the header has {len(header)} columns"
                )
            yield freeze(dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: not CSV: {error}") from None


def _json_rows(name: str, text: str) -> Iterator[Row]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: not JSON: {error}") from None
    if not isinstance(value, list):
        raise InputError(f"{name}: not a list of objects", hint='as [{"email": "…"}, …]')
    for number, row in enumerate(value, 1):
        yield _checked(row, f"{name}: row {number}")


def _jsonl_rows(name: str, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{name}:{number}: not JSON: {error}") from None
            yield _checked(row, f"{name}:{number}: the row")


def _checked(row: object, what: str) -> Row:
    if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
        shown = repr(row)[:80]
        raise InputError(f"{what} is {shown}, not an object with names", hint='as {"email": "…"}')
    frozen: Row = freeze(row)
    return frozen
