"""The global jobs that a gate owns, as reports see them."""

import asyncio
import time
from collections.abc import Iterator

import msgspec

from hyperscale.gates.committed.events import GlobalJobReported
from hyperscale.gates.committed.state import AssignmentStatus, GlobalJob, decode_global_job
from hyperscale.gates.owner.state import GlobalProgress
from hyperscale.gates.results import merged_record
from hyperscale.gates.views import SILENT_S
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.jobs.committed.state import Reported
from hyperscale.nodes.gates.owners import GlobalOwners
from hyperscale.nodes.jobs.job_routing import JobRouting
from hyperscale.nodes.reports.led_jobs import EndedJob, Loss, RunningJob, UnreportedJob

_encode = msgspec.msgpack.Encoder().encode


class GateJobs:
    """The global jobs of the groups that this gate leads."""

    def __init__(self, owners: GlobalOwners, routing: JobRouting) -> None:
        self._owners = owners
        self._routing = routing

    @property
    def node(self) -> str:
        return self._routing.node

    def running(self) -> Iterator[RunningJob]:
        now_s = time.monotonic()
        for job in self._owners.owned():
            owner = self._owners.owner(self._routing.group_of(job.id))
            if owner is not None and job.times.started_unix_ms and not job.has_ended:
                yield _running(job, owner.progress(job), now_s)

    def leads(self, job: str) -> bool:
        return self._owners.owner(self._routing.group_of(job)) is not None

    async def ended(self, job: str) -> EndedJob | None:
        if (record := await self._record(job)) is None:
            return None
        end = await asyncio.to_thread(lambda: outcome_of(merged_record(record)))
        return EndedJob(record.status.value, list(end.stats.values()), _losses(record))

    def unreported(self) -> Iterator[UnreportedJob]:
        for job in self._owners.owned():
            names = job.options.job.report
            if job.has_ended and names is not None and job.reported is None:
                yield UnreportedJob(job.id, names)

    async def record(self, job: str) -> bytes | None:
        if (record := await self._record(job)) is None:
            return None
        return await asyncio.to_thread(lambda: _encode(merged_record(record)))

    async def commit(self, job: str, reported: Reported) -> None:
        event = GlobalJobReported(job=job, reported=reported)
        ledger = self._routing.ledger
        await ledger.propose(self._routing.group_of(job), ledger.encode(event))

    async def _record(self, job: str) -> GlobalJob | None:
        data = await self._routing.final_record(job)
        return None if data is None else decode_global_job(data)


def _running(job: GlobalJob, progress: GlobalProgress, now_s: float) -> RunningJob:
    return RunningJob(
        id=job.id,
        file=job.plan.file,
        started_unix_ms=job.times.started_unix_ms,
        statistics=lambda: [each.stats for each in progress.statistics_of(job).values()],
        losses=_losses(job),
        is_complete=_has_heard_all(job, progress, now_s),
    )


def _has_heard_all(job: GlobalJob, progress: GlobalProgress, now_s: float) -> bool:
    """Return True once every datacenter has reported to this owner, is known to be silent, or has
    ended."""
    if now_s - progress.known_s > SILENT_S:
        return True
    heard = progress.heard
    return all(
        each.has_ended
        or (each.datacenter in heard and heard[each.datacenter].statistics is not None)
        for each in job.counted()
    )


def _losses(job: GlobalJob) -> list[Loss]:
    """Return the datacenters that the job has lost, in the order of their assignment."""
    return [
        Loss("", f"{each.datacenter}: {each.reason or each.status.value}")
        for each in job.assignments
        if each.status is AssignmentStatus.LOST
    ]
