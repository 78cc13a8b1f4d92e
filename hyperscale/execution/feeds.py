"""Deals the rows of feeds to the virtual users of one slot.

The k-th iteration that slot s of S begins has the number s + k·S, so slots take different rows and
together all of them. Random rows follow from that number too (or from that of the user), so they
are the same in every run. `native/core/src/engine/draws.rs` does the same for native programs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hyperscale.errors import InputError
from hyperscale.execution.bundle import mounted_files
from hyperscale.execution.protocol import PrepareSlot
from hyperscale.graph import Workflow
from hyperscale.graph.feeds import digest, feeds_of, rows_of
from hyperscale.graph.workflow import set_attribute
from hyperscale.plan import FeedPer, FeedPlan, Take, WorkflowPlan
from hyperscale.plan.shapes import SplitMix
from hyperscale.testing.feed import Row


class _Dealer:
    """One feed on one slot."""

    def __init__(
        self, plan: FeedPlan, rows: Sequence[Row], *, slots: int, slot: int, seed: int
    ) -> None:
        self.name = plan.name
        self.place = row_place(plan.name)
        self.per_vu = plan.per is FeedPer.VU
        self.rows = rows
        self._take = plan.take
        self._slots = slots
        self._next = slot
        self._seed = seed

    def row(self, vu: int) -> int | None:
        """Return the place of a user's row, or of its next one; None: there is none left."""
        number, size = vu, len(self.rows)
        if not self.per_vu:
            number, self._next = self._next, self._next + self._slots
        if self._take is Take.RANDOM:
            return int(SplitMix(self._seed, number).fraction() * size)
        if self._take is Take.ONCE:
            return number if number < size else None
        return number % size


def row_place(feed: str) -> str:
    """Return the attribute of a user that has the place of its row, for columns of the feed."""
    return f"_row_of_{feed}"


class SlotFeeds:
    """The feeds of a workflow on one slot."""

    def __init__(
        self, plan: WorkflowPlan, rows: Mapping[str, list[Row]], *, slots: int, slot: int
    ) -> None:
        dealers = [
            _Dealer(feed, rows[feed.name], slots=slots, slot=slot, seed=plan.seed_of(feed))
            for feed in plan.feeds
        ]
        self._per_vu = [dealer for dealer in dealers if dealer.per_vu]
        self._per_iteration = [dealer for dealer in dealers if not dealer.per_vu]

    def begin(self, instance: Workflow) -> bool:
        """Give a user its rows before its first iteration; False: there is none left."""
        return self._deal(self._per_vu, instance)

    def turn(self, instance: Workflow) -> bool:
        """Give a user the rows of its next iteration; False: there is none left."""
        return self._deal(self._per_iteration, instance)

    def _deal(self, dealers: list[_Dealer], instance: Workflow) -> bool:
        for dealer in dealers:
            place = dealer.row(instance.vu)
            if place is None:
                return False
            set_attribute(instance, dealer.name, dealer.rows[place])
            set_attribute(instance, dealer.place, place)
        return True


def slot_feeds(assignment: PrepareSlot, workflow: type[Workflow]) -> SlotFeeds | None:
    """Read the feeds of a workflow, once for all users of the slot; None if it has none."""
    if not assignment.plan.feeds:
        return None
    rows = check_rows(assignment, workflow)
    return SlotFeeds(assignment.plan, rows, slots=assignment.slots, slot=assignment.slot)


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
