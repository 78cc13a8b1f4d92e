"""Checkpoints of running attempts: what the next leader knows of them."""

from collections.abc import Iterator

from hyperscale.jobs.committed.events import Checkpoint, Checkpointed
from hyperscale.jobs.committed.state import Job
from hyperscale.jobs.leader.attempts import BEGUN, Attempt
from hyperscale.jobs.leader.state import JobProgress, LeaderState

CHECKPOINT_BYTES = 512 * 1024
CHECKPOINTS_AT_ONCE = 64
CHECKPOINT_ROUNDS = 4
"""A job of many parts is saved in this many rounds, one each time all jobs are reconciled. With one
round a second that is less than the time between two checkpoints."""


def save_checkpoints(state: LeaderState, job: Job, progress: JobProgress) -> None:
    """Commit the checkpoints that are due, some at a time: thousands would hold up all else."""
    attempts = state.attempts
    if state.now_s >= progress.checkpoint_at_s and not progress.unsaved:
        progress.checkpoint_at_s = state.now_s + state.timeouts.checkpoint_s
        progress.unsaved = [attempt.id for attempt in attempts.of_job(job.id)]
    count = max(CHECKPOINTS_AT_ONCE, len(attempts) // CHECKPOINT_ROUNDS)
    due, progress.unsaved = progress.unsaved[:count], progress.unsaved[count:]
    points = [
        _checkpoint(attempt, progress, state.now_s)
        for attempt in map(attempts.get, due)
        if attempt is not None and attempt.phase in BEGUN and attempt.result is None
    ]
    for some in _batches(points):
        state.propose(Checkpointed(job=job.id, parts=some))


def _checkpoint(attempt: Attempt, progress: JobProgress, now_s: float) -> Checkpoint:
    statistics = progress.statistics.get(attempt.id.workflow)
    slot, number = attempt.assignment.first_slot, attempt.id.attempt
    known_s, started_s = attempt.timeline.known_until_s(), attempt.timeline.started_s
    return Checkpoint(
        workflow=attempt.id.workflow,
        part=attempt.id.part,
        attempt=number,
        elapsed_s=attempt.timeline.elapsed_s,
        iterations=attempt.timeline.iterations,
        report=b"" if statistics is None else statistics.stats.checkpoint(slot, number),
        age_s=0.0 if known_s is None else max(0.0, now_s - known_s),
        since_s=attempt.began_s,
        workflow_age_s=None if started_s is None else attempt.began_s + now_s - started_s,
    )


def _batches(points: list[Checkpoint]) -> Iterator[list[Checkpoint]]:
    """Split checkpoints so that entries of the log stay small."""
    some: list[Checkpoint] = []
    size = 0
    for point in points:
        size += len(point.report)
        if some and size > CHECKPOINT_BYTES:
            yield some
            some, size = [], len(point.report)
        some.append(point)
    if some:
        yield some
