"""Finds the feeds of a workflow class and checks their rows, where the user is."""

import os
import zlib
from pathlib import Path

from hyperscale.errors import InputError
from hyperscale.graph.reading import Reading
from hyperscale.graph.values import parse_choice
from hyperscale.graph.workflow import Workflow
from hyperscale.plan import FeedPer, FeedPlan, Take
from hyperscale.testing.feed import Feed, Row


def feeds_of(cls: type[Workflow]) -> dict[str, Feed]:
    """Return the feeds of a class and its bases, by attribute."""
    found: dict[str, Feed] = {}
    for base in reversed(cls.__mro__):
        found.update({name: each for name, each in vars(base).items() if isinstance(each, Feed)})
    return found


def plan_feeds(reading: Reading) -> tuple[tuple[FeedPlan, ...], dict[str, str]]:
    """Return the plans of the feeds of a class, and the paths of their files as `_files` does."""
    plans, files = [], {}
    for name, feed in feeds_of(reading.cls).items():
        where = reading.at(name)
        path = None
        if feed.file is not None:
            near = Path(reading.file).resolve().parent / feed.file
            path = os.path.abspath(near if near.exists() else feed.file)
            files[feed.file] = path
        rows = rows_of(feed, None if path is None else Path(path), where=where)
        plans.append(
            FeedPlan(
                name=name,
                take=parse_choice(Take, feed.take, where=f"{where}: take"),
                per=parse_choice(FeedPer, feed.per, where=f"{where}: per"),
                rows=len(rows),
                digest=digest(rows),
            )
        )
    return tuple(plans), files


def rows_of(feed: Feed, content: Path | bytes | None, *, where: str) -> list[Row]:
    """Return the rows of a feed from its file. Raises InputError naming the feed."""

    def read() -> bytes:
        return content if isinstance(content, bytes) else (content or Path()).read_bytes()

    try:
        return list(feed.rows(read))
    except InputError as error:
        raise InputError(f"{where}: {error.message}", hint=error.hint) from error
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{where}: {feed.file}: cannot be read: {reason}") from error


def digest(rows: list[Row]) -> int:
    """Return a number that differs if the rows do: code must give the same rows everywhere."""
    return zlib.crc32("\n".join(map(repr, rows)).encode("utf-8", "surrogatepass"))
