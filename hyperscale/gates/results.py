"""Results of a global job: a datacenter's record in short, and the records of all as one.

A datacenter delivers its final record with one part per workflow, whose report merges all parts
there. The merged record has one part per datacenter. It is a record like that of any job, so what
reads records needs to know nothing of datacenters, and totals come from the one merge.
"""

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from hyperscale.gates.committed.events import DatacenterFinished
from hyperscale.gates.committed.state import DatacenterAssignment, GlobalJob
from hyperscale.gates.messages import DeliverAssignmentResult
from hyperscale.gates.owner.datacenter_statistics import DatacenterStatistics
from hyperscale.gates.slices import sliced
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
from hyperscale.jobs.leader.gaps import RATE_PER_CORE_MAX, UnreportedLoad
from hyperscale.jobs.leader.statistics import WorkflowStatistics
from hyperscale.plan import Take, WorkflowPlan
from hyperscale.plan.changes import LoadChange
from hyperscale.plan.rows import LostRows
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
                rows=gap.rows,
            )
            for gap in end.gaps
            if gap.workflow == name
        ],
        error=workflow.error,
        ended_as=ended_as,
        ended_ms=workflow.ended_ms,
        began_ms=workflow.began_ms,
        changes=workflow.changes,
        shared_cores=workflow.shared_cores,
        teardown_problem=workflow.teardown_problem,
    )


def _short_segment(segment: Segment, datacenter: str) -> Segment:
    """Return a segment without its report, which is in the merged one."""
    return replace(segment, worker=f"{datacenter}/{segment.worker}", report=b"")


def checked_result(
    report: DeliverAssignmentResult, job: GlobalJob | None
) -> DeliverAssignmentResult:
    """Return what a datacenter delivered, or that its part failed if it is not a record of its own
    part. Datacenters are not trusted: one such record would make the results of all unreadable.
    """
    part = None if job is None else job.assignment(report.datacenter)
    if job is None or part is None or not report.result or _is_own_record(report.result, job, part):
        return report
    reason = "it sent a result that cannot be read"
    return replace(report, status=JobStatus.FAILED, reason=reason, result=b"")


def _is_own_record(result: bytes, job: GlobalJob, part: DatacenterAssignment) -> bool:
    try:
        record = decode_job(result)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    if record.workflows.keys() != {plan.name for plan in job.plan.workflows}:
        return False
    name = part.datacenter
    return all(
        all(each.worker == name and each.first_slot == part.index for each in workflow.parts)
        and all(gap.worker.partition("/")[0] == name for gap in workflow.gaps)
        for workflow in record.workflows.values()
    )


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


def merged_record(job: GlobalJob, late: Sequence[DatacenterFinished] = ()) -> Job:
    """Return the results of all datacenters as the record of one job.

    Times of a datacenter count from the start of its part, so its clock does not matter. Results
    that came `late`, after the end of the job, are shown and are in no total.
    """
    counted = [each for each in job.assignments if each.has_ended and each.result]
    of_late = {event.datacenter: event for event in late}
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
            plan.name: _merged_workflow(job, plan.name, records, started_ms)
            for plan in job.plan.workflows
        },
        stop=job.stop,
        reason=job.reason,
        times=times,
        datacenters=[
            _datacenter(job, each, records.get(each.datacenter), of_late.get(each.datacenter))
            for each in job.assignments
        ],
    )


def _datacenter(
    job: GlobalJob,
    part: DatacenterAssignment,
    result: Job | None,
    late: DatacenterFinished | None,
) -> DatacenterRecord:
    workflows = {} if result is None else result.workflows
    record = DatacenterRecord(
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
        changes={name: each.changes for name, each in workflows.items() if each.changes},
    )
    if late is None:
        return record
    return replace(
        record,
        status=late.status.value,
        reason=late.reason,
        elapsed_s=late.elapsed_s,
        late_result=late.result,
    )


def heard_record(
    job: GlobalJob,
    part: DatacenterAssignment,
    heard: DatacenterStatistics | None,
    *,
    cores: int,
    now_ms: int,
) -> bytes:
    """Return the record of a datacenter that was lost: what it had reported counts, and what it may
    have sent beyond that, until the end of its duration, is a gap."""
    paused_s = job.paused_ms(job.started_ms, now_ms) / 1000
    plan = sliced(job.plan, part.workflows)
    statistics = heard or DatacenterStatistics(plan)
    record = Job(
        id=part.local_job or job.id,
        key=job.key,
        digest=job.digest,
        plan=plan,
        status=JobStatus.FAILED,
        workflows={
            each.name: _heard_workflow(each, part, statistics, has_begun=bool(job.started_ms))
            for each in plan.workflows
        },
    )
    for workflow in plan.workflows if job.started_ms else ():
        gap = unheard_load(
            statistics.of(workflow.name),
            workflow,
            cores=cores,
            changes=part.changes.all,
            paused_s=paused_s,
        )
        rows = _all_rows(workflow)
        if gap.requests_max or rows:
            record.workflows[workflow.name].gaps.append(
                Gap(
                    part=0,
                    attempt=1,
                    worker=part.datacenter,
                    seconds=gap.seconds,
                    requests_max=gap.requests_max,
                    is_final=True,
                    rows=rows,
                )
            )
    return _encode(record)


def _all_rows(workflow: WorkflowPlan) -> list[LostRows]:
    """Return the rows of a datacenter that are dealt once: it may have used any of them."""
    feeds = [feed for feed in workflow.feeds if feed.take is Take.ONCE and feed.dealt]
    return [LostRows(feed=each.name, first=each.first, step=1, count=each.dealt) for each in feeds]


def _heard_workflow(
    plan: WorkflowPlan, part: DatacenterAssignment, heard: DatacenterStatistics, *, has_begun: bool
) -> WorkflowState:
    stats = heard.of(plan.name).stats
    report = stats.merged(slot=part.index, sequence=1, histograms=True, phases=True)
    reported = Part(
        first_slot=part.index,
        cores=1,
        attempt=1,
        worker=part.datacenter,
        elapsed_s=stats.elapsed_s,
        report=b"" if report is None else report.encode(),
        end=PartEnd(status=PartStatus.STOPPED, error="the datacenter was lost"),
    )
    return WorkflowState(
        status=WorkflowStatus.CANCELLED,
        parts=[reported] if has_begun else [],
        error="the datacenter was lost",
        ended_as=JobStatus.FAILED,
    )


def unheard_load(
    statistics: WorkflowStatistics,
    plan: WorkflowPlan,
    *,
    cores: int,
    changes: Sequence[LoadChange] = (),
    paused_s: float = 0.0,
) -> UnreportedLoad:
    """Bound what a workflow may have sent after its last report and until its duration was over.

    It may have got any of the changes of its load, and none of the pauses."""
    seconds = max(0.0, plan.duration_s + paused_s - statistics.stats.elapsed_s)
    if not seconds:
        return UnreportedLoad(0.0, 0)
    most = cores * RATE_PER_CORE_MAX * seconds
    scaled = [each.vus or 0 for each in changes if each.workflow == plan.name]
    stages = [math.ceil(each.target) for each in plan.stages if not plan.is_open]
    vus = max([plan.vus, *stages, *scaled])
    of_users = statistics.pace().users_max(seconds, vus=vus)
    return UnreportedLoad(seconds, math.ceil(most if of_users is None else min(most, of_users)))


def _merged_workflow(
    job: GlobalJob, name: str, records: dict[str, Job], started_ms: int
) -> WorkflowState:
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
    began_ms = started_ms + min(began) if began else 0
    ended_ms = started_ms + max(ended) if ended else 0
    is_over = bool(found) and all(each.ended_ms for each in found.values())
    return WorkflowState(
        status=_STATUSES.get(ended_as, WorkflowStatus.CANCELLED),
        changes=job.applied_changes(
            name, began_ms=began_ms or started_ms, ended_ms=ended_ms if is_over else None
        ),
        parts=[part for each in found.values() for part in each.parts],
        gaps=[gap for each in found.values() for gap in each.gaps],
        error="; ".join(errors) or (None if found else "it ran in no datacenter"),
        ended_as=ended_as,
        began_ms=began_ms,
        ended_ms=ended_ms,
        shared_cores=sum(each.shared_cores for each in found.values()),
        teardown_problem="; ".join(problems),
    )
