"""Jobs as people see them: rows of `hyperscale jobs`, and the live view of one job."""

from msgspec.structs import replace

from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import Job, JobView, WorkflowState, view_of, view_status
from hyperscale.jobs.leader.attempts import BEGUN, AttemptPhase
from hyperscale.jobs.leader.state import LeaderState
from hyperscale.stats.holds import hold_warnings
from hyperscale.stats.shared_cores import sharing_note
from hyperscale.stats.view import RunView, WorkerUsage

_SECONDS = 10  # of the series, in each report to the gates
_USAGE_SHOWN_MAX = 20
"""Workers in a view: each view goes to everyone who watches, and no screen has room for more."""


def job_row(state: LeaderState, job: Job, *, now_s: float) -> JobView:
    """Return a job as lists show it; if it waits for cores, with its position and the reason."""
    row = view_of(job, state.time.read_ms(now_s))
    position, why = state.requests.position(job.id)
    if not position or row.ended_ms:
        return row
    status = JobStatus.QUEUED if job.status is JobStatus.SUBMITTED else job.status
    return replace(row, status=status, position=position, reason=row.reason or why)


def live_view(state: LeaderState, job: Job, *, now_s: float) -> RunView:
    """Return a job as the terminal shows it."""
    progress = state.job(job)
    workflows = [
        progress.statistics_of(job, name).meter.view(
            now_s=now_s,
            status=view_status(workflow.status, workflow.ended_as),
            cores=workflow.slots,
            shared_cores=workflow.shared_cores,
            error=workflow.error or (workflow.stop.reason if workflow.stop else None),
            is_final=workflow.has_ended,
        )
        for name, workflow in job.workflows.items()
    ]
    usage = _usage(state, job)
    return RunView(
        file=job.plan.file,
        elapsed_s=max(
            [running_s(state, job, now_s=now_s), *(each.elapsed_s for each in workflows)]
        ),
        workflows=tuple(workflows),
        saturated=any(each.is_saturated for each in usage),
        warnings=tuple(filter(None, (*job.plan.warnings, _sharing(job), *_losses(job)))),
        usage=tuple(usage[:_USAGE_SHOWN_MAX]),
        saturation={**_holds(state, job), **_saturation(usage)},
    )


def running_s(state: LeaderState, job: Job, *, now_s: float) -> float:
    """Return for how long the job has had load, workflows that have ended included."""
    attempts = [each.timeline.started_s for each in state.attempts.of_job(job.id)]
    ages_s = [now_s - started_s for started_s in attempts if started_s is not None]
    now_ms = state.time.read_ms(now_s)
    for name, workflow in job.workflows.items():
        if workflow.began_ms:
            # A part that joined others late counts its workflow from when they began.
            left_out_s = 0.0 if job.plan_of(name).depends else job.joined_s
            ages_s.append((now_ms - workflow.began_ms) / 1000 - left_out_s)
    return max([0.0, *ages_s])


def is_prepared(state: LeaderState, job: Job) -> bool:
    """Return True if every workflow that depends on no other is ready to begin, or has begun."""
    return all(
        workflow.has_ended or _is_ready(state, job, name, workflow)
        for name, workflow in job.workflows.items()
        if not job.plan_of(name).depends
    )


def _is_ready(state: LeaderState, job: Job, name: str, workflow: WorkflowState) -> bool:
    phases = [each.phase for each in state.attempts.of_job(job.id) if each.id.workflow == name]
    return len(phases) == sum(not part.has_ended for part in workflow.parts) > 0 and all(
        phase is AttemptPhase.READY or phase in BEGUN for phase in phases
    )


def is_queued(state: LeaderState, job: Job) -> bool:
    """Return True if nothing of the job has cores, and it waits for some."""
    return job.status is JobStatus.SUBMITTED and state.requests.position(job.id)[0] > 0


def extension_s(state: LeaderState, job: Job, *, now_s: float) -> float:
    """Return the most time that an attempt was granted beyond its deadline, and still has."""
    attempts = state.attempts.of_job(job.id)
    return max((each.activity.extension_s(now_s=now_s) for each in attempts), default=0.0)


def merged_reports(state: LeaderState, job: Job, *, slot: int, sequence: int) -> list[bytes]:
    """Return one report for each workflow that has statistics: all its parts as one slot.

    Sequences of a later leader are higher. It reports nothing before all attempts that run have
    reported to it, or their leases are over: what it knows by then is not less than before.
    """
    if state.now_s < state.time.statistics_from_s:
        return []
    progress = state.job(job)
    merged = (
        progress.statistics_of(job, name).stats.merged(
            slot=slot, sequence=(state.term << 32) + sequence, histograms=True, seconds=_SECONDS
        )
        for name in job.workflows
    )
    return [report.encode() for report in merged if report is not None]


def _usage(state: LeaderState, job: Job) -> list[WorkerUsage]:
    """Return the load of the workers that run parts of a job, the busiest first."""
    saturated: dict[str, bool] = {}
    for attempt in state.attempts.of_job(job.id):
        saturated[attempt.worker] = saturated.get(attempt.worker, False) or attempt.is_saturated
    found = []
    for name, is_saturated in saturated.items():
        worker = state.workers[name]
        found.append(WorkerUsage(name, worker.cpu, worker.memory, is_saturated))
    return sorted(found, key=lambda each: (not each.is_saturated, -each.cpu, each.worker))


def _sharing(job: Job) -> str:
    return sharing_note({name: each.shared_cores for name, each in job.workflows.items()})


def _losses(job: Job) -> list[str]:
    """Return a sentence for each lost attempt."""
    return [
        f"{name}: {segment.reason}; its load went on elsewhere"
        for name, workflow in job.workflows.items()
        for part in workflow.parts
        for segment in part.segments
        if segment.elapsed_s > 0
    ]


def _holds(state: LeaderState, job: Job) -> dict[str, str]:
    """Return a warning for each hook that holds the event loop of its executors."""
    progress = state.job(job)
    found: dict[str, str] = {}
    for name in job.workflows:
        found |= hold_warnings(progress.statistics_of(job, name).stats)
    return found


def _saturation(usage: list[WorkerUsage]) -> dict[str, str]:
    full = [each for each in usage if each.is_saturated]
    if not full:
        return {}
    worst = full[0]
    others = f" and {len(full) - 1} more are" if len(full) > 1 else " is"
    return {
        "workers": f"{worst.worker}{others} saturated (CPU {worst.cpu:.0%}, memory "
        f"{worst.memory:.0%}), so latencies measured there are suspect: they contain its own delay"
    }
