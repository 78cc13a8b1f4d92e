"""From the final record of a job to the material its results are made of.

A record holds, for each part, the whole report of the attempt that counts, the last reports of
those that were revoked (segments), and what may be missing (gaps). Requests of all of them did
hit the target, so all of them are in the totals. Anyone with the record gets the same.
"""

from dataclasses import dataclass

from hyperscale.jobs.committed.state import Gap, Job, Part, WorkflowState
from hyperscale.jobs.leader.gaps import merge_s
from hyperscale.jobs.leader.statistics import WorkflowStatistics, decode_report
from hyperscale.plan.share import share
from hyperscale.stats.attempt_results import GapResult, SegmentResult, UsageResult
from hyperscale.stats.workflow import WorkflowStats

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class JobEnd:
    """`reported <= target <= reported + sum of requests_max`."""

    job: Job
    stats: dict[str, WorkflowStats]  # by workflow
    segments: list[SegmentResult]
    gaps: list[GapResult]
    usage: list[UsageResult]


def outcome_of(job: Job) -> JobEnd:
    """Return what a job came to. Needs the record of the history: a live row has no reports."""
    stats: dict[str, WorkflowStats] = {}
    segments: list[SegmentResult] = []
    gaps: list[GapResult] = []
    usage: list[UsageResult] = []
    for name, workflow in job.workflows.items():
        statistics = WorkflowStatistics(job.plan_of(name))
        statistics.remember(workflow.parts)
        statistics.stats.schedule = job.schedule_of(name)
        stats[name] = statistics.stats
        # An attempt that died before its first report has no statistics, but it did send.
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
                requests_max=_requests_max(gap, workflow, statistics),
                rows=gap.rows,
            )
            for gap in workflow.gaps
        ]
        usage += _usage(name, workflow.parts)
    return JobEnd(job, stats, segments, gaps, usage)


def _requests_max(gap: Gap, workflow: WorkflowState, statistics: WorkflowStatistics) -> int:
    """Return the bound of a gap, by all that is known at the end: when it was committed, nothing of
    the workflow may have been reported yet."""
    if gap.is_final or gap.part == workflow.teardown_part:
        return gap.requests_max
    part, most = workflow.parts[gap.part], statistics.stats.schedule.vus
    slots = range(part.first_slot, part.first_slot + part.cores)
    vus = sum(share(most, workflow.slots, slot) for slot in slots)
    of_users = statistics.pace().users_max(gap.seconds + merge_s(part.cores), vus=vus)
    return gap.requests_max if of_users is None else min(gap.requests_max, max(vus, of_users))


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
