"""The target of the load and the simulated executors that generate it.

An executor continues while its agent is paused, dies with its worker's process, and stops by
itself when its lease is over. The target counts requests by slot; results are compared with
these counts. Two executors of one slot at the same time are a violation.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hyperscale._native import Report
from hyperscale.jobs.agent.events import (
    AttemptPrepared,
    AttemptPrepareFailed,
    AttemptSetUp,
    PlaceEnded,
    PlaceReported,
    PlaceVacated,
)
from hyperscale.jobs.messages import AnnounceCores, AttemptId, Isolation, PreparePart
from hyperscale.jobs.provisioner import SHARED_PER_WORKER_MAX
from hyperscale.plan import FeedPer, FeedPlan, share
from hyperscale.plan.changes import AppliedChange, LoadSchedule
from hyperscale.plan.context import Provided, encode_provided
from hyperscale.plan.rows import RowBounds, feeds_once, rows_of_slot
from hyperscale.plan.status import PartStatus
from tests.lab.reports import PartReport, StepCounts, StepReport, native

if TYPE_CHECKING:
    from tests.simulation.kernel import Host, World

RATE = 50.0
_REPORT_S = 0.1
PLACE_ERROR_S = 3.0
"""A new leader knows the time of its group by a second or two; see `monitor.AGE_ERROR_S`."""
CHANGES_WITHIN_S = 15.0
"""A worker that hears of no leader for so long has stopped its load."""
Slot = tuple[str, str, int]


@dataclass
class Target:
    """Executors by slot and by core, and the requests that arrived."""

    world: "World"
    active: dict[Slot, "Executor"] = field(default_factory=dict)
    begun: set[tuple[AttemptId, int]] = field(default_factory=set)
    places: dict[tuple[str, int], "Executor"] = field(default_factory=dict)
    shared: set[AttemptId] = field(default_factory=set)
    """Attempts that shared the cores of their job."""
    counts: dict[str, int] = field(default_factory=dict)
    restored_s: list[float] = field(default_factory=list)
    gone_s: dict[Slot, float] = field(default_factory=dict)
    obeys_leases: bool = True
    is_exclusive_checked: bool = False
    """For profiles without lost workers: what a lost worker still runs is unknown."""
    flaky: float = 0.01
    """Probability that preparing fails."""
    sick: str | None = None
    """A worker on which preparing always fails."""
    committed: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """By job and workflow, what setup left; written by the monitor."""
    revoked: set[AttemptId] = field(default_factory=set)
    """Attempts whose revocation is committed; written by the monitor."""
    torn_down: set[tuple[str, str]] = field(default_factory=set)
    received: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """By job and workflow, the context that its first attempt started with."""
    started_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """By job and workflow, when the workflow began, as it is committed; written by the monitor."""
    changed_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By job and workflow, when each change of the load was committed; written by the monitor."""

    rows: dict[tuple[str, str, str], dict[int, AttemptId]] = field(default_factory=dict)
    """By job, workflow and feed, which attempt has used each row."""

    def use_row(self, executor: "Executor", feed: FeedPlan, number: int) -> None:
        """Take a row of a feed that deals each row once."""
        used = self.rows.setdefault((*executor.slot[:2], feed.name), {})
        other = used.setdefault(number, executor.attempt_id)
        if other != executor.attempt_id:
            self.world.fail(f"row {number} is used twice: {executor.attempt_id}, {other}")

    def set_up(self, executor: "Executor") -> bytes:
        """Run the setup of a workflow; return what it leaves."""
        attempt_id = executor.attempt_id
        # A worker that stood still may get its command after its attempt was revoked: it cannot
        # know, and what it leaves does not count.
        if executor.slot[:2] in self.committed and attempt_id not in self.revoked:
            self.world.fail(f"setup runs again after its commit: {attempt_id}")
        return f"{attempt_id} at {self.world.now_s}".encode()

    def tear_down(self, executor: "Executor") -> None:
        """Run the teardown of a workflow."""
        workflow = executor.slot[:2]
        if workflow in self.torn_down:
            self.world.fail(f"teardown runs twice: {executor.attempt_id}")
        self.torn_down.add(workflow)
        if executor.context != self.committed.get(workflow):
            self.world.fail(f"teardown without the committed context: {executor.attempt_id}")
        for slot, other in self.active.items():
            if slot[:2] == workflow and other.frozen_s is None:
                self.world.fail(f"teardown beside load: {executor.attempt_id}, {slot}")

    def occupy(self, executor: "Executor") -> None:
        key = executor.host.address, executor.place
        other = self.places.get(key)
        if other is not None:
            self.world.fail(
                f"core double-booked: {key} by {executor.attempt_id} and {other.attempt_id}"
            )
        self.places[key] = executor

    def leave(self, executor: "Executor") -> None:
        self.places.pop((executor.host.address, executor.place), None)

    def check_shared(self, cores: AnnounceCores) -> None:
        """Check what a worker says it runs beside its cores."""
        with_core = {held.attempt_id.job for held in cores.held if not held.shared}
        beside = [held for held in cores.held if held.within_job]
        if len(beside) > SHARED_PER_WORKER_MAX:
            self.world.fail(f"{len(beside)} executors share cores on {cores.worker}")
        for held in beside:
            self.shared.add(held.attempt_id)
            if held.shared and held.attempt_id.job not in with_core:
                self.world.fail(f"{held.attempt_id} shares no core of its job on {cores.worker}")
        alone = [held.attempt_id for held in cores.held if held.exclusive]
        if alone and beside and self.is_exclusive_checked:
            self.world.fail(f"exclusive, but not alone: {beside[0].attempt_id} beside {alone[0]}")

    def begin(self, executor: "Executor") -> None:
        slot = executor.slot
        context = executor.command.context
        if self.received.setdefault(slot[:2], context) != context:
            self.world.fail(f"it starts with another context: {executor.attempt_id}")
        is_set_up = executor.command.plan.is_set_up_once
        if is_set_up and executor.context != self.committed.get(slot[:2]):
            self.world.fail(f"load without the committed context: {executor.attempt_id}")
        if slot[:2] in self.torn_down:
            self.world.fail(f"load after teardown: {executor.attempt_id}")
        other = self.active.get(slot)
        if other is not None and other.frozen_s is None:
            self.world.fail(
                f"double load: slot {slot} by {executor.attempt_id} on {executor.host.address} "
                f"beside attempt {other.attempt_id.attempt} on {other.host.address}"
            )
        if (executor.attempt_id, slot[2]) in self.begun:
            self.world.fail(f"attempt doubled: {executor.attempt_id} begins again")
        self.begun.add((executor.attempt_id, slot[2]))
        # Only a recovery may run beside an exclusive workflow.
        is_checked = self.is_exclusive_checked and executor.attempt_id.attempt == 1
        for rival in self.active.values() if is_checked else ():
            is_other = rival.attempt_id.job != executor.attempt_id.job and rival.frozen_s is None
            if is_other and (rival.exclusive or executor.exclusive):
                self.world.fail(
                    f"exclusive, but not alone: {executor.attempt_id} beside {rival.attempt_id}"
                )
        self.active[slot] = executor
        self.check_place(executor)
        gone_s = self.gone_s.pop(slot, None)
        if gone_s is not None:
            self.restored_s.append(self.world.now_s - gone_s)

    def check_place(self, executor: "Executor") -> None:
        """Check that a part with a shape takes it up where the other parts are."""
        started_s = self.started_s.get(executor.slot[:2])
        if started_s is None or not executor.command.plan.stages:
            return
        true_s = self.world.now_s - started_s
        if abs(true_s - executor.offset_s) > PLACE_ERROR_S:
            self.world.fail(
                f"{executor.attempt_id} takes its shape up at {executor.offset_s:.1f} s, and the "
                f"workflow is at {true_s:.1f} s"
            )

    def complete(self, executor: "Executor") -> None:
        """Check that an executor that comes to its end knows the changes of its load."""
        if executor.command.on_isolation is Isolation.CONTINUE:
            return
        late_s = self.world.now_s - CHANGES_WITHIN_S
        changed_s = self.changed_s.get(executor.slot[:2], [])
        known = len(executor.changes)
        if any(at_s < late_s for at_s in changed_s[known:]):
            self.world.fail(f"{executor.attempt_id} ends and knows {known} changes of its load")

    def end(self, executor: "Executor", *, is_lost: bool) -> None:
        if self.active.get(executor.slot) is executor:
            del self.active[executor.slot]
            if is_lost:
                self.gone_s[executor.slot] = self.world.now_s
        job = executor.attempt_id.job
        self.counts[job] = self.counts.get(job, 0) + executor.sent()


class Executor:
    """The executor of one slot of an attempt."""

    def __init__(
        self, target: Target, host: "Host", command: PreparePart, place: int, index: int
    ) -> None:
        self.target = target
        self.world = target.world
        self.host = host
        self.life = host.life
        self.command = command
        self.attempt_id = command.attempt_id
        self.place = place
        self.exclusive = command.exclusive
        self.slot: Slot = (
            command.attempt_id.job,
            command.attempt_id.workflow,
            command.first_slot + index,
        )
        self.context = command.set_up
        self.changes = command.changes
        self.schedule = LoadSchedule(command.plan, command.changes)
        self.offset_s = command.plan.offset_s(command.elapsed_s)
        """Time since the start of the workflow when it begins."""
        self.sent_before = 0.0  # before the last change
        self.counted_from_s = 0.0  # since then, in places of the shape
        self.lease_s: float | None = None  # None: it has no lease
        self.began_s: float | None = None
        self.frozen_s: float | None = None
        self.ran_s = 0.0
        self.is_over = False
        self.sequence = 0
        bounds = command.rows or RowBounds()
        self.drawn = bounds.first  # rows of iterations
        self.limit = bounds.limit
        self.users = bounds.users_before  # users that have a row
        self.users_before = bounds.users_before
        self.drawn_for = 0  # requests for which a row was due

    @property
    def is_here(self) -> bool:
        return self.host.life == self.life and self.host.program is not None

    def start(self, in_s: float, since_s: float | None = None) -> None:
        if since_s is not None:
            self.offset_s = self.command.plan.offset_s(since_s)
        self.world.after(in_s, self._begin)

    def change(self, changes: list[AppliedChange]) -> None:
        """Follow all changes of the load so far."""
        self.sent_before += self._sent_since()
        self.changes = changes
        self.schedule = LoadSchedule(self.command.plan, changes)
        self.counted_from_s = self._place_s()
        if self.began_s is not None:
            self._use_rows()
            self._watch_end()

    def grant_rows(self, limit: int) -> None:
        """Use rows below a higher limit."""
        self._use_rows()
        self.limit = limit

    def _use_rows(self) -> None:
        """Take the rows of the users, and those of the requests since the last time."""
        if self.began_s is None or self.is_over:
            return
        plan, slots, slot = self.command.plan, self.command.slots, self.slot[2]
        for feed in feeds_once(plan, FeedPer.VU):
            users = self.users_before + share(self.schedule.vus, slots, slot)
            for number in range(self.users, users):
                if slot + number * slots < feed.rows:
                    self.target.use_row(self, feed, slot + number * slots)
            self.users = max(self.users, users)
        due, self.drawn_for = self.sent() - self.drawn_for, self.sent()
        most = rows_of_slot(plan, slots)
        for _ in range(due if self.limit is not None and most is not None else 0):
            number = slot + self.drawn * slots
            feeds = feeds_once(plan, FeedPer.ITERATION)
            if self.drawn >= self.limit or any(number >= feed.rows for feed in feeds):
                break
            self.drawn += 1
            for feed in feeds:
                self.target.use_row(self, feed, number)

    def _begin(self) -> None:
        if self.is_over or self.began_s is not None or not self.is_here:
            return
        if self.frozen_s is not None:
            self.world.after(0.05, self._begin)
            return
        if self._is_expired():
            self.finish(PartStatus.STOPPED, "lease expired")
            return
        if self.command.tears_down:
            self.target.tear_down(self)
            wait_s = 5.0 * self.world.rng.random()
            self.world.after(wait_s, lambda: self.finish(PartStatus.COMPLETED, None))
            return
        self.target.begin(self)
        self.began_s = self.world.now_s
        self.counted_from_s = self._place_s()
        self._use_rows()
        self._watch_end()
        self.world.after(_REPORT_S, self._report)

    def _is_expired(self, *, early_s: float = 0.0) -> bool:
        if self.lease_s is None or not self.target.obeys_leases:
            return False
        return self.world.now_s >= self.lease_s - early_s

    def _watch_end(self) -> None:
        def over() -> None:
            if self.is_over or not self.is_here:
                return
            left_s = self.schedule.remaining_s(self._own_s())
            if left_s is None:
                return  # paused: the next change looks again
            if left_s > 1e-6 or self.frozen_s is not None:
                self._watch_end()
            else:
                self.target.complete(self)
                self.finish(PartStatus.COMPLETED, None)

        left_s = self.schedule.remaining_s(self._own_s())
        if left_s is not None:
            self.world.after(max(0.05, left_s), over)

    def lease(self, until_s: float) -> None:
        self.lease_s = max(until_s, 0.0)
        self.world.at(until_s, self._look_at_lease)

    def _look_at_lease(self) -> None:
        expired = self._is_expired(early_s=1e-9)
        if expired and not self.is_over and self.began_s is not None and self.frozen_s is None:
            self.finish(PartStatus.STOPPED, "lease expired")

    def freeze(self) -> None:
        if self.frozen_s is None and not self.is_over:
            self.ran_s = self._running_s()
            self.frozen_s = self.world.now_s

    def thaw(self) -> None:
        if self.frozen_s is None:
            return
        self.frozen_s = None
        if self.began_s is not None and not self.is_over:
            self.began_s = self.world.now_s - self.ran_s
            self._look_at_lease()
            if not self.is_over and self.target.active.get(self.slot) is not self:
                self.world.fail(f"double load: {self.attempt_id} wakes up beside its successor")

    def _own_s(self) -> float:
        """Return the time since the start of the workflow, as the executor sees it."""
        return self.offset_s + self._running_s()

    def _place_s(self) -> float:
        return self.schedule.place_s(self._own_s())

    def _sent_since(self) -> float:
        if self.began_s is None:
            return 0.0
        return RATE * max(0.0, self._place_s() - self.counted_from_s)

    def _running_s(self) -> float:
        if self.began_s is None:
            return 0.0
        return self.ran_s if self.frozen_s is not None else self.world.now_s - self.began_s

    def sent(self) -> int:
        return int(self.sent_before + self._sent_since() + 1e-6)

    def report(self) -> Report:
        self.sequence += 1
        sent = self.sent()
        counts = StepCounts(total=sent, ok=sent, sent=sent)
        made = PartReport(
            workflow=self.attempt_id.workflow,
            slot=self.slot[2],
            sequence=self.sequence,
            elapsed_s=self._own_s(),
            vus=1,
            iterations=sent,
            steps=[StepReport(name="hit", counts=counts)],
            # The attempt, as a count: the monitor compares it with the committed result.
            rss_bytes=self.attempt_id.attempt,
        )
        return native(made)

    def _report(self) -> None:
        if self.is_over or not self.is_here:
            return
        self.world.after(_REPORT_S, self._report)
        if self.frozen_s is None:
            self._use_rows()
            self.tell(PlaceReported(self.attempt_id, self.place, self.report(), drawn=self.drawn))

    def finish(self, status: PartStatus, error: str | None) -> None:
        """End the load now and vacate the place a moment later."""
        if self.is_over:
            return
        report = self.report()
        self.die(is_lost=False)
        provided = b""
        if status is PartStatus.COMPLETED:
            # Another attempt would provide another value.
            value = f"{self.attempt_id} at {self.world.now_s}".encode()
            provided = encode_provided(Provided(slot=self.slot[2], states={"token": value}))
        end = PlaceEnded(
            self.attempt_id,
            self.place,
            status,
            error=error,
            report=report,
            provided=provided,
            drawn=self.drawn,
        )
        self.tell(end)

        def vacate() -> None:
            self.target.leave(self)
            self.tell(PlaceVacated(self.attempt_id, self.place))

        if self.is_here:
            self.world.after(0.01, vacate)

    def die(self, *, is_lost: bool) -> None:
        if not self.is_over:
            if self.began_s is not None:
                self._use_rows()
                self.target.end(self, is_lost=is_lost)
            self.is_over = True

    def tell(self, event: Any) -> None:
        if self.is_here:
            self.host.deliver("engine", self.host.address, event)


def prepare(executors: list[Executor]) -> None:
    """Prepare the executors of an attempt, which fails now and then."""
    first = executors[0]
    world = first.world
    for executor in executors:
        first.target.occupy(executor)

    def ready() -> None:
        if not first.is_here or any(each.is_over for each in executors):
            return
        if any(each.frozen_s is not None for each in executors):
            world.after(0.1, ready)
        elif world.rng.random() < first.target.flaky or first.host.address == first.target.sick:
            for each in executors:
                each.is_over = True
                first.target.leave(each)
            first.tell(AttemptPrepareFailed(first.attempt_id, "bundle missing", is_retryable=True))
        elif first.command.plan.is_set_up_once and not first.command.set_up:
            left = first.target.set_up(first) if first.slot[2] == 0 else b""
            first.tell(AttemptSetUp(first.attempt_id, left))
        else:
            first.tell(AttemptPrepared(first.attempt_id))

    world.after(0.05 + 0.6 * world.rng.random(), ready)


def go_on(executors: list[Executor], context: bytes) -> None:
    """Finish preparing the executors of an attempt with the context that setup left."""
    first = executors[0]
    for executor in executors:
        executor.context = context

    def ready() -> None:
        if not first.is_here or any(each.is_over for each in executors):
            return
        if any(each.frozen_s is not None for each in executors):
            first.world.after(0.1, ready)
        else:
            first.tell(AttemptPrepared(first.attempt_id))

    first.world.after(0.3 * first.world.rng.random(), ready)
