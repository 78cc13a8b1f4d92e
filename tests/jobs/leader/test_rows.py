"""The leader raises limits of rows ahead of use."""

import msgspec

from hyperscale.jobs.committed.events import RowsGranted
from hyperscale.jobs.leader import events as ev
from hyperscale.jobs.leader.rows import AHEAD_S, first_rows
from hyperscale.jobs.messages import AnnounceRows, AttemptId, GrantRows
from hyperscale.plan import FeedPer, FeedPlan, StagePlan, Take, WorkflowPlan
from tests.lab.job_builders import workflow
from tests.lab.leader_rig import Rig


def fed(rows: int = 100_000) -> WorkflowPlan:
    feed = FeedPlan(name="people", take=Take.ONCE, per=FeedPer.ITERATION, rows=rows, digest=0)
    return msgspec.structs.replace(workflow("Load", vus=8), feeds=(feed,))


class FedRig(Rig):
    """A running job with rows, on two workers of one core."""

    def __init__(self, plan: WorkflowPlan | None = None) -> None:
        super().__init__(workers=2, cores=1)
        self.job_id = self.submit(plan or fed())
        self.run(1.0)

    def attempt(self, worker: str) -> AttemptId:
        return self.workers[worker].running()[0]

    def use(self, worker: str, used: int) -> None:
        message = AnnounceRows(
            worker=worker,
            group=1,
            attempt_id=self.attempt(worker),
            used=[used],
            limit=self.known(worker),
        )
        self.feed(ev.WorkerAnnounced(message))

    def known(self, worker: str) -> int:
        """Return the limit that the worker knows."""
        prepared = self.workers[worker].commands[self.attempt(worker)].rows
        assert prepared is not None
        assert prepared.limit is not None
        return max([prepared.limit, *self.workers[worker].limits])

    def grants(self) -> list[RowsGranted]:
        return [event for event in self.events if isinstance(event, RowsGranted)]


def test_a_part_begins_with_rows_for_a_while() -> None:
    assert first_rows(fed(), 2) == 50_000 // 16
    assert first_rows(fed(rows=100), 2) == 50  # all of them
    assert first_rows(workflow("Load"), 2) == 0
    rate = msgspec.structs.replace(
        fed(rows=1_000), is_open=True, stages=(StagePlan(duration_s=9.0, target=100.0),)
    )
    assert first_rows(rate, 2) == AHEAD_S * 100 / 2


def test_a_limit_is_committed_before_its_worker_hears_of_it() -> None:
    rig = FedRig()
    before = rig.known("w0")
    rig.commits = False
    rig.use("w0", before - 10)
    rig.run(1.0)
    assert rig.known("w0") == before
    rig.commits = True
    rig.run(2.0)
    part = rig.job(rig.job_id).workflows["Load"].parts[0]
    assert part.rows is not None
    assert part.rows.limit == rig.known("w0") > before
    assert part.rows.used == [before - 10]


def test_a_fast_part_gets_seconds_of_rows_in_few_entries() -> None:
    rig = FedRig()
    used, entries = 0, len(rig.grants())
    for _ in range(40):  # four seconds at 1,000 rows per second
        used += 100
        assert used < rig.known("w0")
        rig.use("w0", used)
        rig.run(0.1)
    assert rig.known("w0") - used > 1_000 * AHEAD_S / 2
    assert len(rig.grants()) - entries <= 5


def test_the_limit_ends_with_the_feed() -> None:
    rig = FedRig(fed(rows=300))
    rig.use("w0", 149)
    rig.run(1.0)
    assert rig.known("w0") == 150
    entries = len(rig.grants())
    rig.use("w0", 150)
    rig.run(2.0)
    assert len(rig.grants()) == entries


def test_a_lost_grant_is_repeated() -> None:
    rig = FedRig()
    before = rig.known("w0")
    rig.silences = GrantRows
    rig.use("w0", before - 10)
    rig.run(1.0)
    assert rig.known("w0") == before
    rig.silences = None
    rig.run(2.0)
    assert rig.known("w0") > before


def test_a_retry_begins_at_the_limit_and_a_new_leader_knows_it() -> None:
    rig = FedRig()
    rig.use("w0", 2_000)
    rig.run(1.0)
    limit = rig.known("w0")
    rig.take_over()
    rig.workers["w1"].total = 3
    rig.announce_cores(rig.workers["w1"])
    rig.kill("w0")
    rig.run(3.0)
    (again,) = [each for each in rig.prepared() if each.attempt_id.attempt == 2]
    assert again.rows is not None
    assert again.rows.first == limit
    (gap,) = rig.job(rig.job_id).workflows["Load"].gaps
    (lost,) = gap.rows
    assert (lost.first, lost.step, lost.count) == (2 * 2_000, 2, limit - 2_000)
