"""Deals the rows of feeds to the virtual users of one slot.

The k-th iteration that slot s of S begins has the number s + k·S, so slots take different rows and
together all of them. Random rows follow from that number too (or from that of the user), so they
are the same in every run. On a cluster, a slot uses rows that are dealt once only below a limit,
which is raised while it runs: users that reach it wait. `native/core/src/engine/draws.rs` does the
same for native programs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from hyperscale.errors import InputError
from hyperscale.execution.bundle import mounted_files
from hyperscale.execution.protocol import PrepareSlot
from hyperscale.graph import Workflow
from hyperscale.graph.feeds import digest, feeds_of, rows_of
from hyperscale.graph.workflow import set_attribute
from hyperscale.plan import FeedPer, FeedPlan, Take, WorkflowPlan
from hyperscale.plan.rows import RowBounds
from hyperscale.plan.shapes import SplitMix
from hyperscale.testing.feed import Row


class _Dealer:
    """One feed on one slot."""

    def __init__(self, plan: FeedPlan, rows: Sequence[Row], *, seed: int) -> None:
        self.name = plan.name
        self.place = row_place(plan.name)
        self.per_vu = plan.per is FeedPer.VU
        self.is_once = plan.take is Take.ONCE
        self.rows = rows
        self._first, self._size = plan.span
        self._is_random = plan.take is Take.RANDOM
        self._seed = seed

    def row(self, number: int) -> int | None:
        """Return the place of the row that belongs to a number; None: there is none left."""
        if self._is_random:
            return int(SplitMix(self._seed, number).fraction() * self._size)
        if self.is_once and number >= self._size:
            return None
        return self._first + number % self._size


def row_place(feed: str) -> str:
    """Return the attribute of a user that has the place of its row, for columns of the feed."""
    return f"_row_of_{feed}"


class SlotFeeds:
    """The feeds of a workflow on one slot."""

    def __init__(
        self,
        plan: WorkflowPlan,
        rows: Mapping[str, list[Row]],
        *,
        slots: int,
        slot: int,
        bounds: RowBounds | None = None,
    ) -> None:
        dealers = [_Dealer(each, rows[each.name], seed=plan.seed_of(each)) for each in plan.feeds]
        self._per_vu = [dealer for dealer in dealers if dealer.per_vu]
        self._per_iteration = [dealer for dealer in dealers if not dealer.per_vu]
        self._slots = slots
        self._slot = slot
        self._first_vu = plan.first_vu
        self._users_before = 0 if bounds is None else bounds.users_before
        self.drawn = 0 if bounds is None else bounds.first
        """Iterations that have had their rows, those of earlier attempts included."""
        self._limit = None if bounds is None else bounds.limit
        self._news = asyncio.Event()  # more rows were granted, or the slot stops
        self.short = 0
        """Users that wait until the slot may use more rows."""

    def begin(self, instance: Workflow) -> bool:
        """Give a user its rows before its first iteration; False: there is none left."""
        for dealer in self._per_vu:
            number = instance.vu
            if dealer.is_once:  # users of earlier attempts had rows of their own
                number += self._users_before * self._slots - self._first_vu
            if not _deal(dealer, dealer.row(number), instance):
                return False
        return True

    @property
    def is_short(self) -> bool:
        """True if there are rows for the next iteration that the slot may not use yet."""
        if self._limit is None or self.drawn < self._limit:
            return False
        return all(dealer.row(self._number) is not None for dealer in self._per_iteration)

    async def wait(self) -> None:
        """Wait until more rows are granted, or the slot stops."""
        self.short += 1
        try:
            await self._news.wait()
        finally:
            self.short -= 1

    def grant(self, limit: int) -> None:
        """Let the slot use rows below a higher limit."""
        if self._limit is not None and limit > self._limit:
            self._limit = limit
            self.wake()

    def wake(self) -> None:
        """Let users that wait for rows look again."""
        self._news.set()
        self._news = asyncio.Event()

    def turn(self, instance: Workflow) -> bool:
        """Give a user the rows of its next iteration; False: there is none left."""
        number = self._number
        self.drawn += 1
        return all(_deal(each, each.row(number), instance) for each in self._per_iteration)

    @property
    def _number(self) -> int:
        return self._slot + self.drawn * self._slots


def _deal(dealer: _Dealer, place: int | None, instance: Workflow) -> bool:
    if place is None:
        return False
    set_attribute(instance, dealer.name, dealer.rows[place])
    set_attribute(instance, dealer.place, place)
    return True


def slot_feeds(assignment: PrepareSlot, workflow: type[Workflow]) -> SlotFeeds | None:
    """Read the feeds of a workflow, once for all users of the slot; None if it has none."""
    if not assignment.plan.feeds:
        return None
    return SlotFeeds(
        assignment.plan,
        check_rows(assignment, workflow),
        slots=assignment.slots,
        slot=assignment.slot,
        bounds=assignment.rows,
    )


def check_rows(assignment: PrepareSlot, workflow: type[Workflow]) -> dict[str, list[Row]]:
    """Return the rows of each feed. Raises InputError if this process has other rows than the
    machine that planned the test."""
    plan, feeds, rows = assignment.plan, feeds_of(workflow), {}
    for feed_plan in plan.feeds:
        feed, where = feeds[feed_plan.name], f"{plan.name}.{feed_plan.name}"
        content: bytes | Path | None = None
        if feed.file is not None:
            content = mounted_files().get(feed.file, Path(plan.files[feed.file]))
        found = rows[feed_plan.name] = rows_of(feed, content, where=where)
        if len(found) != feed_plan.rows or digest(found) != feed_plan.digest:
            raise InputError(
                f"{where}: has other rows in an executor than where the test was started",
                hint="rows from code must be the same at every import: no clock, no random numbers",
            )
    return rows
