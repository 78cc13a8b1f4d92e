"""Checkpoints of running attempts, and thresholds that abort a job."""

from collections.abc import Iterator

from hyperscale.jobs.committed.events import (
    CancelRequested,
    Checkpoint,
    Checkpointed,
    JobStatus,
)
from hyperscale.jobs.committed.state import Job
from hyperscale.jobs.leader.attempts import BEGUN, Attempt
from hyperscale.jobs.leader.events import LeaderEffect
from hyperscale.jobs.leader.tables import JobProgress, LeaderTables
from hyperscale.stats.thresholds import abort_verdict

CHECKPOINT_BYTES = 512 * 1024
CHECKPOINTS_AT_ONCE = 64
CHECKPOINT_ROUNDS = 4
"""A job of many parts is saved in this many rounds, one each time all jobs are reconciled. With one
round a second that is less than the time between two checkpoints."""


class Checkpoints:
    def __init__(self, tables: LeaderTables) -> None:
        self._tables = tables

    def save_and_judge(
        self, job: Job, progress: JobProgress, *, now_s: float
    ) -> list[LeaderEffect]:
        """Commit the checkpoints that are due, and abort the job if a threshold says so."""
        timeouts = self._tables.timeouts
        effects: list[LeaderEffect] = []
        if now_s >= progress.checkpoint_at_s and not progress.unsaved:
            progress.checkpoint_at_s = now_s + timeouts.checkpoint_s
            progress.unsaved = [attempt.id for attempt in self._tables.attempts.of_job(job.id)]
        if progress.unsaved:
            effects += self._save_some(job, progress, now_s)
        if job.stop is None and now_s >= progress.thresholds_at_s:
            progress.thresholds_at_s = now_s + timeouts.thresholds_s
            effects += self._abort_on_threshold(job, progress, now_s)
        return effects

    def _save_some(self, job: Job, progress: JobProgress, now_s: float) -> list[LeaderEffect]:
        """Save some of the attempts that are due: thousands at once would hold up all else."""
        attempts = self._tables.attempts
        count = max(CHECKPOINTS_AT_ONCE, len(attempts) // CHECKPOINT_ROUNDS)
        due, progress.unsaved = progress.unsaved[:count], progress.unsaved[count:]
        points = [
            _checkpoint(attempt, progress, now_s)
            for attempt in map(attempts.get, due)
            if attempt is not None and attempt.phase in BEGUN and attempt.result is None
        ]
        effects: list[LeaderEffect] = []
        for some in _batches(points):
            event = Checkpointed(job=job.id, parts=some)
            effects += self._tables.proposals.propose(event, now_s=now_s)
        return effects

    def _abort_on_threshold(
        self, job: Job, progress: JobProgress, now_s: float
    ) -> list[LeaderEffect]:
        for name, statistics in progress.statistics.items():
            if not statistics.has_abort or job.workflows[name].has_ended:
                continue
            verdict = abort_verdict(statistics.thresholds, statistics.stats)
            if verdict is not None:
                what = verdict.describe()
                event = CancelRequested(
                    job=job.id,
                    reason=f"stopped by the threshold of {name}: {what}",
                    status=JobStatus.FAILED,
                    aborted_by=name,
                    workflow_reason=f"stopped by its threshold {what}",
                )
                return [*self._tables.proposals.propose(event, now_s=now_s)]
        return []


def _checkpoint(attempt: Attempt, progress: JobProgress, now_s: float) -> Checkpoint:
    statistics = progress.statistics.get(attempt.id.workflow)
    slot, number = attempt.assignment.first_slot, attempt.id.attempt
    known_s = attempt.timeline.known_until_s()
    return Checkpoint(
        workflow=attempt.id.workflow,
        part=attempt.id.part,
        attempt=number,
        elapsed_s=attempt.timeline.elapsed_s,
        iterations=attempt.timeline.iterations,
        report=b"" if statistics is None else statistics.checkpoint(slot, number),
        age_s=0.0 if known_s is None else max(0.0, now_s - known_s),
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
