"""Build the results of a job from its final record, in the form of a run on one machine."""

from datetime import UTC, datetime
from importlib.metadata import version

import msgspec

from hyperscale.gates.results import datacenter_share
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.jobs.committed.outcome import JobEnd, outcome_of
from hyperscale.jobs.committed.state import DatacenterRecord, Job, WorkflowState, decode_job
from hyperscale.reporting.build import WorkflowOutcome, build_result, clean, workflow_results
from hyperscale.reporting.results import DatacenterResult, RunResult, RunStatus
from hyperscale.stats.holds import hold_warnings


def result_of(record: bytes) -> RunResult:
    """Return the results that a final record describes."""
    return result_of_end(outcome_of(decode_job(record)))


def result_of_end(end: JobEnd) -> RunResult:
    """Return the results of a job's outcome."""
    job = end.job
    started_unix_ms = job.times.started_unix_ms or job.times.submitted_unix_ms
    return build_result(
        file=job.plan.file,
        status=RunStatus(job.status.value),
        started_at=datetime.fromtimestamp(started_unix_ms / 1000, UTC),
        elapsed_s=job.times.elapsed_s,
        outcomes=_outcomes(end),
        warnings=[*job.plan.warnings, *_notes(end)],
        generator=f"hyperscale {version('hyperscale')}",
        aborted_by=job.aborted_by,
        parameters=job.plan.parameters,
        job_id=job.id,
        datacenters=_datacenters(job),
        segments=end.segments,
        gaps=end.gaps,
        usage=end.usage,
        datacenter_results=[_datacenter(job, each) for each in job.datacenters],
    )


def _outcomes(end: JobEnd) -> list[WorkflowOutcome]:
    return [
        WorkflowOutcome(
            stats=end.stats[name],
            status=RunStatus((workflow.ended_as or JobStatus.CANCELLED).value),
            cores=workflow.slots,
            error=workflow.error,
            warnings=tuple(hold_warnings(end.stats[name]).values()),
            was_saturated=any(part.was_saturated for part in workflow.parts),
            attempts=workflow.attempts,
            workers=tuple(workflow.workers),
            began_s=_began_s(workflow, end.stats[name].elapsed_s, end.job.times.started_ms),
            shared_cores=workflow.shared_cores,
            changes=workflow.changes,
        )
        for name, workflow in end.job.workflows.items()
    ]


def _datacenters(job: Job) -> list[str]:
    """Return where the job ran."""
    if not job.datacenters:
        return [parse_job_id(job.id).scope]
    return [each.datacenter for each in job.datacenters if not each.replaced_by]


def _datacenter(job: Job, record: DatacenterRecord) -> DatacenterResult:
    """Return the results of one datacenter: the record of the job with the parts from there."""
    end = outcome_of(_part_of(job, record))
    return DatacenterResult(
        datacenter=record.datacenter,
        status=record.status,
        reason=clean(record.reason),
        job_id=record.local_job,
        elapsed_seconds=record.elapsed_s,
        began_seconds=record.began_s,
        joined_late=record.joined_late,
        late=bool(record.late_result),
        replaces=record.replaces,
        replaced_by=record.replaced_by,
        workflows=workflow_results(_outcomes(end)),
        gaps=end.gaps,
    )


def _part_of(job: Job, record: DatacenterRecord) -> Job:
    source = decode_job(record.late_result) if record.late_result else job
    # Thresholds hold for the job as a whole, so a datacenter has none.
    plans = tuple(
        msgspec.structs.replace(plan, vus=record.vus.get(plan.name, 0), thresholds=())
        for plan in job.plan.workflows
    )
    return msgspec.structs.replace(
        job,
        plan=msgspec.structs.replace(job.plan, workflows=plans),
        workflows={
            name: msgspec.structs.replace(
                datacenter_share(workflow, record.datacenter),
                changes=record.changes.get(name, workflow.changes if record.late_result else []),
            )
            for name, workflow in source.workflows.items()
        },
    )


def _began_s(workflow: WorkflowState, elapsed_s: float, started_ms: int) -> float | None:
    """Return when the load of a workflow began, from the start of the job."""
    if not elapsed_s:
        return None
    # A workflow that ended before its first checkpoint began that much before its end.
    began_ms = workflow.began_ms or workflow.ended_ms - round(elapsed_s * 1000)
    return max(0, began_ms - started_ms) / 1000


def _notes(end: JobEnd) -> list[str]:
    notes, job = [], end.job
    errors = [workflow.error for workflow in job.workflows.values() if workflow.error]
    is_repeated = job.reason in errors or (job.stop is None and job.reason == job.final_reason())
    if job.reason and job.status is not JobStatus.COMPLETED and not is_repeated:
        notes.append(f"the job {_ENDED_AS.get(job.status, 'ended')}: {job.reason}")
    lost_on: dict[tuple[str, str], list[str]] = {}
    for row in end.segments:
        where = f"{row.worker} after {row.elapsed_seconds:.1f} s"
        lost_on.setdefault((row.workflow, row.reason), []).append(where)
    notes += [
        f"{workflow}: attempts on {', '.join(where)} were revoked: {reason}"
        for (workflow, reason), where in lost_on.items()
    ]
    notes += [
        f"{name}: teardown: {workflow.teardown_problem}"
        for name, workflow in job.workflows.items()
        if workflow.teardown_problem
    ]
    for workflow in dict.fromkeys(row.workflow for row in end.usage if row.saturated):
        full = {r.worker for r in end.usage if r.saturated and r.workflow == workflow}
        notes.append(
            f"{workflow}: {_named(full)} saturated: latencies measured there contain the worker's "
            "own delay"
        )
    lost = [row for row in end.gaps if row.requests_max]
    if lost:
        most = sum(row.requests_max for row in lost)
        notes.append(
            f"up to {most:,} more requests than counted may have reached the target: "
            f"{', '.join(sorted({row.worker for row in lost}))} had not reported them"
        )
    notes += [
        f"{gap.workflow}: {gap.worker} may have used rows, which no other user gets: "
        f"{_listed([rows.describe() for rows in gap.rows])}"
        for gap in end.gaps
        if gap.rows
    ]
    return notes


def _listed(texts: list[str]) -> str:
    shown, more = texts[:_LISTED], len(texts) - _LISTED
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def _named(workers: set[str]) -> str:
    first, *others = sorted(workers)
    return f"{first} and {len(others)} more were" if others else f"{first} was"


_LISTED = 4
_ENDED_AS = {
    JobStatus.CANCELLED: "was cancelled",
    JobStatus.TIMEOUT: "timed out",
    JobStatus.FAILED: "failed",
    JobStatus.PARTIAL: "is partial",
}
