"""The jobs that a manager leads, as reports see them."""

import time
from collections.abc import Iterator

from hyperscale.jobs.committed.events import AttemptFault, JobReported
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.jobs.committed.state import Job, Reported, decode_job
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.nodes.jobs.job_leaders import JobLeaders
from hyperscale.nodes.jobs.job_routing import JobRouting
from hyperscale.nodes.reports.led_jobs import EndedJob, Loss, RunningJob, UnreportedJob


class ManagerJobs:
    """The jobs of the groups that this manager leads."""

    def __init__(self, leaders: JobLeaders, routing: JobRouting) -> None:
        self._leaders = leaders
        self._routing = routing

    @property
    def node(self) -> str:
        return self._routing.node

    def running(self) -> Iterator[RunningJob]:
        now_s = time.monotonic()
        for machine, leader in self._leaders.led_jobs():
            for job in machine.jobs():
                if job.times.started_unix_ms:
                    yield _running(job, leader, now_s)

    def leads(self, job: str) -> bool:
        return self._leaders.leader(self._routing.group_of(job)) is not None

    async def ended(self, job: str) -> EndedJob | None:
        if (record := await self.record(job)) is None:
            return None
        end = outcome_of(decode_job(record))
        return EndedJob(end.job.status.value, list(end.stats.values()), _losses(end.job))

    def unreported(self) -> Iterator[UnreportedJob]:
        for machine, _ in self._leaders.led_jobs():
            for job in machine.ended_jobs():
                if job.options.report is not None and job.reported is None:
                    yield UnreportedJob(job.id, job.options.report)

    async def record(self, job: str) -> bytes | None:
        return await self._routing.final_record(job)

    async def commit(self, job: str, reported: Reported) -> None:
        event = JobReported(job=job, by=reported.by, sent=reported.sent, failed=reported.failed)
        ledger = self._routing.ledger
        await ledger.propose(self._routing.group_of(job), ledger.encode(event))


def _running(job: Job, leader: JobLeader, now_s: float) -> RunningJob:
    progress = leader.state.job(job)
    return RunningJob(
        id=job.id,
        file=job.plan.file,
        started_unix_ms=job.times.started_unix_ms,
        statistics=lambda: [progress.statistics_of(job, name).stats for name in job.workflows],
        losses=_losses(job),
        is_complete=now_s >= leader.state.time.statistics_from_s,
    )


def _losses(job: Job) -> list[Loss]:
    """Return workflow and reason of every attempt that was lost with its worker, oldest first."""
    found = [
        (segment.ended_ms, name, segment.reason)
        for name, workflow in job.workflows.items()
        for part in workflow.parts
        for segment in part.segments
        if segment.fault is AttemptFault.WORKER_LOST
    ]
    return [Loss(name, reason) for _, name, reason in sorted(found)]
