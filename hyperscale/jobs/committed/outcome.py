"""From the final record of a job to the material its results are made of.

A record holds, for each part, the whole report of the attempt that counts, the last reports of
those that were revoked (segments), and what may be missing (gaps). Requests of all of them did
hit the target, so all of them are in the totals. Anyone with the record gets the same.
"""

from dataclasses import dataclass

from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import Job, Part
from hyperscale.jobs.leader.statistics import WorkflowStatistics, decode_report
from hyperscale.stats.attempt_results import GapResult, SegmentResult, UsageResult
from hyperscale.stats.workflow import WorkflowStats

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class WorkflowEnd:
    name: str
    status: JobStatus
    stats: WorkflowStats
    cores: int
    attempts: int  # runs that were dispatched, of all its parts
    error: str | None
    was_saturated: bool
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobEnd:
    """`reported <= target <= reported + sum of requests_max`."""

    job: str
    status: JobStatus
    reason: str
    file: str
    submitted_ms: int
    started_ms: int
    ended_ms: int
    workflows: tuple[WorkflowEnd, ...]
    segments: tuple[SegmentResult, ...]
    gaps: tuple[GapResult, ...]
    usage: tuple[UsageResult, ...]
    warnings: tuple[str, ...]
    aborted_by: str = ""  # the workflow whose threshold ended the job

    @property
    def attempts(self) -> int:
        return sum(workflow.attempts for workflow in self.workflows)

    @property
    def elapsed_s(self) -> float:
        """From the first dispatch to the end."""
        return max(0, self.ended_ms - self.started_ms) / 1000 if self.started_ms else 0.0


def outcome_of(job: Job) -> JobEnd:
    """What a job came to. Needs the record of the history: a live row has no reports."""
    ends, segments, gaps, usage = [], [], [], []
    for name, workflow in job.workflows.items():
        live = WorkflowStatistics(job.plan_of(name))
        live.remember(workflow.parts)
        ends.append(
            WorkflowEnd(
                name=name,
                status=workflow.ended_as or JobStatus.CANCELLED,
                stats=live.stats,
                cores=workflow.slots,
                attempts=workflow.attempts,
                error=workflow.error,
                was_saturated=any(part.was_saturated for part in workflow.parts),
                workers=tuple(part.worker for part in workflow.parts if part.worker),
            )
        )
        # One that died before a leader heard of it has no statistics, but it did send.
        unheard = {(gap.part, gap.attempt) for gap in workflow.gaps}
        segments += [
            SegmentResult(
                workflow=name,
                part=index,
                attempt=segment.attempt,
                worker=segment.worker,
                reason=segment.reason,
                began_seconds=round(segment.began_s, _DIGITS),
                elapsed_seconds=round(segment.elapsed_s, _DIGITS),
            )
            for index, part in enumerate(workflow.parts)
            for segment in part.segments
            if segment.report or segment.elapsed_s > 0 or (index, segment.attempt) in unheard
        ]
        gaps += [
            GapResult(
                workflow=name,
                worker=gap.worker,
                seconds=round(gap.seconds, _DIGITS),
                requests_max=gap.requests_max,
            )
            for gap in workflow.gaps
        ]
        usage += _usage(name, workflow.parts)
    return JobEnd(
        job=job.id,
        status=job.status,
        reason=job.reason,
        file=job.plan.file,
        submitted_ms=job.submitted_ms,
        started_ms=job.started_ms,
        ended_ms=job.ended_ms,
        workflows=tuple(ends),
        segments=tuple(segments),
        gaps=tuple(gaps),
        usage=tuple(usage),
        warnings=job.plan.warnings,
        aborted_by=job.stop.aborted_by if job.stop else "",
    )


def _usage(workflow: str, parts: list[Part]) -> list[UsageResult]:
    rows = []
    for index, part in enumerate(parts):
        attempts = [(s.attempt, s.worker, s.elapsed_s, s.report, False) for s in part.segments]
        last = (part.attempt, part.worker, part.elapsed_s, part.report, part.was_saturated)
        for attempt, worker, elapsed_s, data, was_saturated in (*attempts, last):
            report = decode_report(data)
            if report is not None and elapsed_s > 0:
                cpu = report.cpu_s / (elapsed_s * part.cores)
                rows.append(
                    UsageResult(
                        workflow=workflow,
                        part=index,
                        attempt=attempt,
                        worker=worker,
                        cores=part.cores,
                        cpu=round(cpu, _DIGITS),
                        memory_bytes=report.rss_bytes,
                        saturated=was_saturated,
                    )
                )
    return rows
