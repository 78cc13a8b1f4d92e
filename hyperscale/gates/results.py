"""Results of a global job: a datacenter's record in short, and the records of all as one.

A datacenter delivers its final record with one part per workflow, whose report merges all parts
there. The merged record has one part per datacenter. It is a record like that of any job, so what
reads records needs to know nothing of datacenters, and totals come from the one merge.
"""

import msgspec
from msgspec.structs import replace

from hyperscale.gates.committed.state import AssignmentStatus, DatacenterAssignment, GlobalJob
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.outcome import JobEnd, outcome_of
from hyperscale.jobs.committed.state import (
    DatacenterRecord,
    Gap,
    Job,
    Part,
    PartEnd,
    Segment,
    WorkflowState,
    WorkflowStatus,
    decode_job,
)
from hyperscale.plan.status import PartStatus

_SERIES_S = 24 * 3600
_encode = msgspec.msgpack.Encoder().encode

_PART_ENDS = {JobStatus.COMPLETED: PartStatus.COMPLETED, JobStatus.FAILED: PartStatus.FAILED}
_JOB_ENDS = {
    PartStatus.COMPLETED: JobStatus.COMPLETED,
    PartStatus.FAILED: JobStatus.FAILED,
    PartStatus.STOPPED: JobStatus.CANCELLED,
}
_STATUSES = {
    JobStatus.COMPLETED: WorkflowStatus.COMPLETED,
    JobStatus.FAILED: WorkflowStatus.FAILED,
}
_WORST = (JobStatus.FAILED, JobStatus.TIMEOUT, JobStatus.CANCELLED, JobStatus.COMPLETED)


def short_record(record: Job, *, datacenter: str, index: int) -> bytes:
    """Return a datacenter's final record, encoded, with one part per workflow."""
    end = outcome_of(record)
    workflows = {
        name: _one_part(end, name, workflow, datacenter=datacenter, index=index)
        for name, workflow in record.workflows.items()
    }
    return _encode(
        Job(
            id=record.id,
            key=record.key,
            digest=record.digest,
            plan=record.plan,
            status=record.status,
            workflows=workflows,
            stop=record.stop,
            reason=record.reason,
            times=record.times,
        )
    )


def _one_part(
    end: JobEnd, name: str, workflow: WorkflowState, *, datacenter: str, index: int
) -> WorkflowState:
    stats = end.stats[name]
    report = stats.merged(slot=index, sequence=1, histograms=True, phases=True, seconds=_SERIES_S)
    ended_as = workflow.ended_as or JobStatus.CANCELLED
    part = Part(
        first_slot=index,
        cores=workflow.slots,
        attempt=1,
        worker=datacenter,
        elapsed_s=stats.elapsed_s,
        report=b"" if report is None else report.encode(),
        end=PartEnd(
            status=_PART_ENDS.get(ended_as, PartStatus.STOPPED),
            error=workflow.error,
            was_saturated=any(each.was_saturated for each in workflow.parts),
        ),
        segments=[
            _short_segment(segment, datacenter)
            for each in workflow.parts
            for segment in each.segments
        ],
    )
    return WorkflowState(
        status=workflow.status,
        parts=[part] if workflow.parts else [],
        gaps=[
            Gap(
                part=0,
                attempt=1,
                worker=f"{datacenter}/{gap.worker}",
                seconds=gap.seconds,
                requests_max=gap.requests_max,
                is_final=True,
            )
            for gap in end.gaps
            if gap.workflow == name
        ],
        error=workflow.error,
        ended_as=ended_as,
        ended_ms=workflow.ended_ms,
        began_ms=workflow.began_ms,
        shared_cores=workflow.shared_cores,
        teardown_problem=workflow.teardown_problem,
    )


def _short_segment(segment: Segment, datacenter: str) -> Segment:
    """Return a segment without its report, which is in the merged one."""
    return replace(segment, worker=f"{datacenter}/{segment.worker}", report=b"")


def datacenter_share(workflow: WorkflowState, datacenter: str) -> WorkflowState:
    """Return what one datacenter has of a workflow of a merged record."""
    parts = [part for part in workflow.parts if part.worker == datacenter]
    ends = [part.end for part in parts if part.end is not None]
    ended_as = _JOB_ENDS[ends[0].status] if ends else JobStatus.CANCELLED
    return replace(
        workflow,
        status=_STATUSES.get(ended_as, WorkflowStatus.CANCELLED),
        parts=parts,
        gaps=[gap for gap in workflow.gaps if gap.worker.partition("/")[0] == datacenter],
        error=ends[0].error if ends else None,
        ended_as=ended_as,
    )


def merged_record(job: GlobalJob) -> Job:
    """Return the results of all datacenters as the record of one job.

    Times of a datacenter count from the start of its part, so its clock does not matter.
    """
    counted = [
        each
        for each in job.assignments
        if each.status is AssignmentStatus.FINISHED and each.result and not each.is_late
    ]
    records = {each.datacenter: decode_job(each.result) for each in counted}
    times = replace(job.times, started_ms=job.started_ms or job.submitted_ms)
    started_ms = times.started_ms
    return Job(
        id=job.id,
        key=job.key,
        digest=job.digest,
        plan=job.plan,
        bundle=job.bundle,
        options=job.options.job,
        by=job.by,
        status=job.status,
        workflows={
            plan.name: _merged_workflow(plan.name, records, started_ms)
            for plan in job.plan.workflows
        },
        stop=job.stop,
        reason=job.reason,
        times=times,
        datacenters=[_datacenter(job, each) for each in job.assignments],
    )


def _datacenter(job: GlobalJob, part: DatacenterAssignment) -> DatacenterRecord:
    return DatacenterRecord(
        datacenter=part.datacenter,
        status=(part.ended_as or part.status).value,
        reason=part.reason,
        local_job=part.local_job,
        vus={name: share.vus for name, share in part.workflows.items()},
        elapsed_s=part.elapsed_s,
        began_s=max(0, part.began_ms - job.started_ms) / 1000 if part.began_ms else None,
        joined_late=bool(job.started_ms) and part.datacenter not in job.started_with,
        replaces=part.replaces,
        replaced_by=part.replaced_by,
        is_late=part.is_late,
    )


def _merged_workflow(name: str, records: dict[str, Job], started_ms: int) -> WorkflowState:
    found = {where: record.workflows[name] for where, record in records.items()}
    ends = {each.ended_as or JobStatus.CANCELLED for each in found.values()}
    ended_as = next((end for end in _WORST if end in ends), JobStatus.CANCELLED)
    errors = [f"{where}: {each.error}" for where, each in found.items() if each.error]
    began = [
        max(0, each.began_ms - records[where].times.started_ms)
        for where, each in found.items()
        if each.began_ms
    ]
    ended = [
        max(0, each.ended_ms - records[where].times.started_ms) for where, each in found.items()
    ]
    problems = [each.teardown_problem for each in found.values() if each.teardown_problem]
    return WorkflowState(
        status=_STATUSES.get(ended_as, WorkflowStatus.CANCELLED),
        parts=[part for each in found.values() for part in each.parts],
        gaps=[gap for each in found.values() for gap in each.gaps],
        error="; ".join(errors) or (None if found else "it ran in no datacenter"),
        ended_as=ended_as,
        began_ms=started_ms + min(began) if began else 0,
        ended_ms=started_ms + max(ended) if ended else 0,
        shared_cores=sum(each.shared_cores for each in found.values()),
        teardown_problem="; ".join(problems),
    )
