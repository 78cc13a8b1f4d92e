"""Deals the rows of feeds to the virtual users of one slot.

Rows are numbered over all slots: the k-th row that slot s of S takes is s + k·S, so slots take
different rows and together all of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from hyperscale.errors import InputError
from hyperscale.execution.bundle import mounted_files
from hyperscale.execution.protocol import PrepareSlot
from hyperscale.graph import Workflow
from hyperscale.graph.feeds import digest, feeds_of, rows_of
from hyperscale.graph.workflow import set_attribute
from hyperscale.plan import FeedPer, FeedPlan, Take, WorkflowPlan
from hyperscale.testing.feed import Row


class _Dealer:
    """One feed on one slot."""

    def __init__(
        self, plan: FeedPlan, rows: Sequence[Row], *, slots: int, slot: int, seed: int
    ) -> None:
        self.name = plan.name
        self.per_vu = plan.per is FeedPer.VU
        self._take = plan.take
        self._rows = rows
        self._slots = slots
        self._next = slot
        self._random = Random(f"{seed} {plan.name} {slot}")  # noqa: S311 - not for secrets

    def row(self, vu: int) -> Row | None:
        """Return the row of a user, or its next one; None: there is none left."""
        if self._take is Take.RANDOM:
            return self._rows[self._random.randrange(len(self._rows))]
        number = vu
        if not self.per_vu:
            number, self._next = self._next, self._next + self._slots
        if self._take is Take.ONCE:
            return self._rows[number] if number < len(self._rows) else None
        return self._rows[number % len(self._rows)]


class SlotFeeds:
    """The feeds of a workflow on one slot."""

    def __init__(
        self, plan: WorkflowPlan, rows: Mapping[str, list[Row]], *, slots: int, slot: int
    ) -> None:
        dealers = [
            _Dealer(feed, rows[feed.name], slots=slots, slot=slot, seed=plan.seed)
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
            row = dealer.row(instance.vu)
            if row is None:
                return False
            set_attribute(instance, dealer.name, row)
        return True


def slot_feeds(assignment: PrepareSlot, workflow: type[Workflow]) -> SlotFeeds | None:
    """Read the feeds of a workflow, once for all users of the slot; None if it has none.

    Raises InputError if this process has other rows than the machine that planned the test.
    """
    plan, feeds, rows = assignment.plan, feeds_of(workflow), {}
    if not plan.feeds:
        return None
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
    return SlotFeeds(plan, rows, slots=assignment.slots, slot=assignment.slot)
