"""Rows that feeds with `take="once"` deal: which slot has which, and how far a slot may go.

Row i of the rows that a feed deals belongs to slot i mod slots. On a cluster a slot uses rows only
below a committed *limit*, which is raised ahead of use. A lost attempt may have used any row below
its limit, so the next attempt begins there, and the rows in between are named as gaps.
"""

from collections.abc import Iterator

from msgspec import Struct

from hyperscale.plan.model import FeedPer, FeedPlan, Take, WorkflowPlan


class RowBounds(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which rows an attempt may use: counted for each of its slots."""

    first: int = 0  # its first iteration has this row of the slot
    limit: int | None = None  # it uses rows below, until it is granted more; None: there is none
    users_before: int = 0  # users of earlier attempts, which have had a row each


class LostRows(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows `first`, `first + step`, … of a feed that a lost attempt may have used. No other user
    gets them."""

    # In results, the comment beside a field is its description.
    feed: str  # The feed.
    first: int  # The first of the rows, counted from 0.
    step: int  # How far the rows are apart.
    count: int  # How many rows these are.

    def describe(self) -> str:
        """Return the rows as people count them, from 1."""
        numbers = [self.first + 1 + self.step * place for place in range(min(self.count, 3))]
        shown = ", ".join(f"{number:,}" for number in numbers)
        if self.count > len(numbers):
            last = self.first + 1 + self.step * (self.count - 1)
            shown += f" … {last:,}"
        return f"{self.count:,} of {self.feed} ({shown})"


def feeds_once(plan: WorkflowPlan, per: FeedPer) -> list[FeedPlan]:
    """Return the feeds whose rows are dealt once, to iterations or to users."""
    return [feed for feed in plan.feeds if feed.take is Take.ONCE and feed.per is per]


def rows_of_slot(plan: WorkflowPlan, slots: int) -> int | None:
    """Return how many iterations of one slot find a row, at most; None: the rows do not end."""
    feeds = feeds_once(plan, FeedPer.ITERATION)
    return min((-(-feed.dealt // slots) for feed in feeds), default=None)


def lost_rows(
    feeds: list[FeedPlan], *, slots: int, slot: int, used: int, limit: int
) -> Iterator[LostRows]:
    """Return the unused rows of a slot up to the limit, as far as the feeds have them."""
    for feed in feeds:
        numbers = range(slot + used * slots, min(slot + limit * slots, feed.dealt), slots)
        if numbers:
            yield LostRows(
                feed=feed.name, first=feed.first + numbers[0], step=slots, count=len(numbers)
            )
