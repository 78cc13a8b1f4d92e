"""Live streams that nodes send: the statistics of the jobs they lead, while these run.

The streams are the `[streams.NAME]` tables of `reporting.config`. Each job that a node leads has
streams of its own, from its first load to its totals. Everything that is sent is cumulative, so a
new leader goes on where the last one was.
"""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from hyperscale.config.schema import ReportingSection
from hyperscale.errors import HyperscaleError
from hyperscale.nodes.reports.led_jobs import LedJobs, Loss, RunningJob
from hyperscale.reporting.config_file import load_streams, read_tables
from hyperscale.reporting.streams.snapshot import AnnotationKind
from hyperscale.runner.live_streams import RunStreams
from hyperscale.sansio.tasks import TaskSupervisor

_LOOK_S = 0.5
_JOBS_MAX = 16  # with streams at the same time; each has a thread
_FINAL_S = 10.0  # how long the final record of a job is waited for

_log = logging.getLogger("hyperscale.reports")


class _JobStream:
    """The streams of one job: what they were sent, and when they are due again."""

    def __init__(self, streams: RunStreams, losses: Sequence[Loss], *, due_s: float) -> None:
        self.streams = streams
        self.due_s = due_s
        self._losses = len(losses)  # annotated so far

    def annotate_losses(self, losses: Sequence[Loss], kind: AnnotationKind) -> None:
        """Note what the job has lost since the last time."""
        for loss in losses[self._losses :]:
            self.streams.annotate(kind, loss.reason, loss.workflow)
        self._losses = len(losses)


class JobStreams:
    """Streams the jobs that a node leads, if its configuration has streams."""

    def __init__(
        self,
        config: ReportingSection,
        jobs: LedJobs,
        tasks: TaskSupervisor,
        *,
        datacenter: str,
        loss: AnnotationKind,
    ) -> None:
        """`datacenter`: the label of all that is sent; empty if jobs run in several. `loss`: what a
        job may lose."""
        self._file = Path(config.config)
        self._every_s = config.stream_interval_s
        self._datacenter = datacenter
        self._loss = loss
        self._jobs = jobs
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
        for job in self._jobs.running():
            led.add(job.id)
            if not job.is_complete:
                continue
            if job.id not in self._open:
                self._begin(job, now_s)
            self._push(job, now_s)
        for job_id in self._open.keys() - led:
            self._end(job_id, self._open.pop(job_id))

    def _begin(self, job: RunningJob, now_s: float) -> None:
        if len(self._open) >= _JOBS_MAX:
            return
        try:
            made = load_streams((), self._file, os.environ)
        except HyperscaleError as error:
            _log.warning("stream.not_opened: %s", error, extra={"job": job.id})
            return
        streams = RunStreams(
            made,
            run_id=job.id,
            file=job.file,
            workflows=job.statistics,
            every_s=self._every_s,
            datacenter=self._datacenter,
            started_unix_ms=job.started_unix_ms,
        )
        self._open[job.id] = _JobStream(streams, job.losses, due_s=now_s)

    def _push(self, job: RunningJob, now_s: float) -> None:
        stream = self._open.get(job.id)
        if stream is None or now_s < stream.due_s:
            return
        stream.due_s = now_s + self._every_s
        stream.annotate_losses(job.losses, self._loss)
        stream.streams.push()

    def _end(self, job: str, stream: _JobStream) -> None:
        """Send the totals of a job that has ended; leave the others to their new leader."""
        if self._jobs.leads(job):
            self._tasks.spawn_request(self._finish(job, stream), "stream")
        else:
            stream.streams.close()

    async def _finish(self, job: str, stream: _JobStream) -> None:
        until_s = time.monotonic() + _FINAL_S
        while (end := await self._jobs.ended(job)) is None:
            if time.monotonic() > until_s:
                stream.streams.close()
                return
            await asyncio.sleep(_LOOK_S)
        stream.annotate_losses(end.losses, self._loss)
        for text in await stream.streams.finish(end.status, end.totals):
            _log.warning("stream.lost: %s", text, extra={"job": job})
