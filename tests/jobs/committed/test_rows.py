"""Rows of feeds that are dealt once, as they are committed."""

import msgspec

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    Code,
    PartDispatch,
    PartRedispatched,
    RowGrant,
    RowsGranted,
    WorkflowDispatched,
)
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.jobs.committed.state import PartRows
from hyperscale.plan import FeedPer, FeedPlan, Take, WorkflowPlan
from hyperscale.plan.rows import LostRows
from tests.jobs.committed.test_machine import MachineLog
from tests.lab.job_builders import workflow

WORKERS = [PartDispatch(0, 2, "w0"), PartDispatch(2, 1, "w1")]


def fed(per: FeedPer = FeedPer.ITERATION, rows: int = 90) -> WorkflowPlan:
    feed = FeedPlan(name="people", take=Take.ONCE, per=per, rows=rows, digest=0)
    return msgspec.structs.replace(workflow("Load", vus=6), feeds=(feed,))


def begin(plan: WorkflowPlan) -> tuple[MachineLog, str]:
    log = MachineLog()
    job = log.submit(plan)
    event = WorkflowDispatched(job=job, workflow="Load", parts=WORKERS, rows=10)
    assert log.put(event).ok
    return log, job


def rows(log: MachineLog, job: str, part: int = 0) -> PartRows:
    found = log.job(job).workflows["Load"].parts[part].rows
    assert found is not None
    return found


def grant(job: str, limit: int, used: list[int], *, attempt: int = 1) -> RowsGranted:
    given = RowGrant(workflow="Load", part=0, attempt=attempt, used=used, limit=limit)
    return RowsGranted(job=job, grants=[given])


def revoke(job: str, used: list[int], *, has_begun: bool = True) -> AttemptRevoked:
    return AttemptRevoked(
        job=job,
        workflow="Load",
        part=0,
        attempt=1,
        reason="w0 died",
        rows_used=used,
        has_begun=has_begun,
    )


def again(job: str) -> PartRedispatched:
    return PartRedispatched(job=job, workflow="Load", part=0, attempt=2, worker="w2", rows=10)


def test_the_next_attempt_begins_at_the_limit_and_the_rows_in_between_are_named() -> None:
    log, job = begin(fed())
    assert log.put(grant(job, 20, [6, 7])).ok
    assert log.put(revoke(job, [8, 9])).ok
    assert log.put(again(job)).ok
    assert rows(log, job) == PartRows(first=20, limit=30, used=[20, 20], users_before=2)
    (gap,) = outcome_of(log.job(job)).gaps
    assert gap.rows == [
        LostRows(feed="people", first=0 + 8 * 3, step=3, count=12),
        LostRows(feed="people", first=1 + 9 * 3, step=3, count=11),
    ]
    assert rows(log, job, 1).limit == 10  # of the other part


def test_what_was_committed_as_used_counts_if_the_leader_knows_nothing() -> None:
    log, job = begin(fed())
    log.put(grant(job, 20, [6, 7]))
    log.put(revoke(job, []))
    (gap,) = log.job(job).workflows["Load"].gaps
    assert [each.count for each in gap.rows] == [14, 13]


def test_an_attempt_that_never_began_has_used_no_row() -> None:
    log, job = begin(fed())
    log.put(revoke(job, [0, 0], has_begun=False))
    log.put(again(job))
    assert rows(log, job) == PartRows(first=0, limit=10, used=[0, 0])
    assert log.job(job).workflows["Load"].gaps == []


def test_a_limit_never_falls_and_a_late_grant_of_a_lost_attempt_is_refused() -> None:
    log, job = begin(fed())
    log.put(grant(job, 20, [6, 7]))
    assert log.put(grant(job, 15, [0, 0])).code is Code.DUPLICATE
    assert (rows(log, job).limit, rows(log, job).used) == (20, [6, 7])
    log.put(revoke(job, [8, 9]))
    log.put(again(job))
    assert log.put(grant(job, 99, [8, 9])).code is Code.STALE_ATTEMPT
    assert rows(log, job).limit == 30


def test_users_of_a_later_attempt_get_rows_of_their_own() -> None:
    log, job = begin(fed(FeedPer.VU, rows=12))
    log.put(revoke(job, []))
    log.put(again(job))
    assert rows(log, job).users_before == 2
    (gap,) = log.job(job).workflows["Load"].gaps
    assert [(each.first, each.step, each.count) for each in gap.rows] == [(0, 3, 2), (1, 3, 2)]


def test_other_workflows_have_no_limit() -> None:
    log, job = begin(workflow("Load"))
    assert log.job(job).workflows["Load"].parts[0].rows is None
    assert log.put(grant(job, 20, [6, 7])).code is Code.STALE_ATTEMPT
