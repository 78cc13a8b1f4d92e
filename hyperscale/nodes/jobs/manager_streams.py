"""Live streams that managers send: the statistics of the jobs they lead, while these run.

The streams are the `[streams.NAME]` tables of `reporting.config`. Each job that this manager leads
has streams of its own, from its first load to its totals. Everything that is sent is cumulative,
so a new leader goes on where the last one was.
"""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from hyperscale.config.schema import ReportingSection
from hyperscale.errors import HyperscaleError
from hyperscale.jobs.committed.events import AttemptFault
from hyperscale.jobs.committed.outcome import outcome_of
from hyperscale.jobs.committed.state import Job, decode_job
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.nodes.jobs.job_leaders import JobLeaders
from hyperscale.nodes.jobs.job_routing import JobRouting
from hyperscale.reporting.config_file import load_streams, read_tables
from hyperscale.runner.live_streams import RunStreams
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.stats.workflow import WorkflowStats

_LOOK_S = 0.5
_JOBS_MAX = 16  # with streams at the same time; each has a thread
_FINAL_S = 10.0  # how long the final record of a job is waited for

_log = logging.getLogger("hyperscale.reports")


class _JobStream:
    """The streams of one job: what they were sent, and when they are due again."""

    def __init__(self, job: Job, streams: RunStreams, *, due_s: float) -> None:
        self.job = job
        self.streams = streams
        self.due_s = due_s
        self._losses = len(_losses(job))  # annotated so far

    def annotate_losses(self, job: Job) -> None:
        """Note the workers that the job has lost since the last time."""
        losses = _losses(job)
        for workflow, text in losses[self._losses :]:
            self.streams.annotate("worker_lost", text, workflow)
        self._losses = len(losses)


class ManagerStreams:
    """Streams the jobs that this manager leads, if its configuration has streams."""

    def __init__(
        self,
        config: ReportingSection,
        *,
        datacenter: str,
        leaders: JobLeaders,
        routing: JobRouting,
        tasks: TaskSupervisor,
    ) -> None:
        self._file = Path(config.config)
        self._every_s = config.stream_interval_s
        self._datacenter = datacenter
        self._leaders = leaders
        self._routing = routing
        self._tasks = tasks
        self._open: dict[str, _JobStream] = {}
        if config.config and read_tables(self._file, "streams"):
            tasks.spawn_every(_LOOK_S, self._look, "jobs:streams")

    def stop(self) -> None:
        for job in list(self._open):
            self._open.pop(job).streams.close()

    def _look(self) -> None:
        """Open the streams of jobs that have load, push what is due, end the others."""
        led: set[str] = set()
        now_s = time.monotonic()
        for machine, leader in self._leaders.led_jobs():
            for job in machine.jobs():
                led.add(job.id)
                # Before a new leader has heard from all workers, it knows less than the last one.
                if now_s < leader.state.time.statistics_from_s:
                    continue
                if job.id not in self._open and job.times.started_unix_ms:
                    self._begin(job, leader)
                self._push(job, now_s)
        for job_id in self._open.keys() - led:
            self._end(self._open.pop(job_id))

    def _begin(self, job: Job, leader: JobLeader) -> None:
        if len(self._open) >= _JOBS_MAX:
            return
        try:
            made = load_streams((), self._file, os.environ)
        except HyperscaleError as error:
            _log.warning("stream.not_opened: %s", error, extra={"job": job.id})
            return
        progress = leader.state.job(job)
        streams = RunStreams(
            made,
            run_id=job.id,
            file=job.plan.file,
            workflows=lambda: [progress.statistics_of(job, name).stats for name in job.workflows],
            every_s=self._every_s,
            datacenter=self._datacenter,
            started_unix_ms=job.times.started_unix_ms,
        )
        self._open[job.id] = _JobStream(job, streams, due_s=time.monotonic())

    def _push(self, job: Job, now_s: float) -> None:
        stream = self._open.get(job.id)
        if stream is None or now_s < stream.due_s:
            return
        stream.due_s = now_s + self._every_s
        stream.annotate_losses(job)
        stream.streams.push()

    def _end(self, stream: _JobStream) -> None:
        """Send the totals of a job that has ended; leave the others to their new leader."""
        if self._leaders.leader(self._routing.group_of(stream.job.id)) is None:
            stream.streams.close()
        else:
            self._tasks.spawn_request(self._finish(stream), "stream")

    async def _finish(self, stream: _JobStream) -> None:
        job = stream.job.id
        until_s = time.monotonic() + _FINAL_S
        while (record := await self._routing.final_record(job)) is None:
            if time.monotonic() > until_s:
                stream.streams.close()
                return
            await asyncio.sleep(_LOOK_S)
        end = outcome_of(decode_job(record))
        stream.annotate_losses(end.job)
        totals: Sequence[WorkflowStats] = list(end.stats.values())
        for text in await stream.streams.finish(end.job.status.value, totals):
            _log.warning("stream.lost: %s", text, extra={"job": job})


def _losses(job: Job) -> list[tuple[str, str]]:
    """Return workflow and reason of every attempt that was lost with its worker, oldest first."""
    found = [
        (segment.ended_ms, name, segment.reason)
        for name, workflow in job.workflows.items()
        for part in workflow.parts
        for segment in part.segments
        if segment.fault is AttemptFault.WORKER_LOST
    ]
    return [(name, reason) for _, name, reason in sorted(found)]
