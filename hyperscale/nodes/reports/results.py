"""Results that nodes send: the leader of a job's group delivers them once the job has ended.

The reporters and their credentials come from the file that `reporting.config` of the node names;
a job carries only the names of the reporters. A delivery is committed after it was made
(`Reported`). If the leader ends in between, the next one delivers again: at least once. Every
reporter keys what it writes by the id of the run, so the second delivery replaces the first.
"""

import asyncio
import logging
from collections.abc import Sequence

from hyperscale.client.results import result_of
from hyperscale.errors import HyperscaleError, InputError
from hyperscale.jobs.committed.state import Reported
from hyperscale.nodes.reports.led_jobs import LedJobs, UnreportedJob
from hyperscale.nodes.reports.reporters import NodeReporters
from hyperscale.reporting.reporter import submit_all
from hyperscale.sansio.tasks import TaskSupervisor

_LOOK_S = 0.5
_DELIVERIES_MAX = 4  # at the same time; each has threads of its own

_log = logging.getLogger("hyperscale.reports")


class ResultReports:
    """Sends the results of the jobs that a node leads."""

    def __init__(self, reporters: NodeReporters, jobs: LedJobs, tasks: TaskSupervisor) -> None:
        self._reporters = reporters
        self._jobs = jobs
        self._tasks = tasks
        self._busy: set[str] = set()  # jobs whose results are being sent
        tasks.spawn_every(_LOOK_S, self._look, "jobs:reports")

    def _look(self) -> None:
        """Begin to send the results of jobs that have ended, and that nobody has sent."""
        for job in self._jobs.unreported():
            if job.id not in self._busy and len(self._busy) < _DELIVERIES_MAX:
                self._busy.add(job.id)
                self._tasks.spawn_request(self._deliver(job), "report")

    async def _deliver(self, job: UnreportedJob) -> None:
        try:
            record = await self._jobs.record(job.id)
            if record is None:
                return  # not written yet: the next look finds it
            await self._jobs.commit(job.id, await self._send(job, record))
        except HyperscaleError as error:  # no quorum, say: sent again, by the leader of then
            _log.warning("report.not_committed: %s", error, extra={"job": job.id})
        finally:
            self._busy.discard(job.id)

    async def _send(self, job: UnreportedJob, record: bytes) -> Reported:
        """Send the result to every reporter; return what was sent and what was lost."""
        try:
            reporters = await asyncio.to_thread(self._reporters.load, job.reporters)
            if not reporters:
                raise InputError(self._reporters.problem(()) or "there are no reporters")
            result = await asyncio.to_thread(result_of, record)
        except InputError as error:
            return self._note(job, (), [str(error)])
        failures = await submit_all(reporters, result)
        failed = {failure.reporter for failure in failures}
        sent = [name for name in map(repr, reporters) if name not in failed]
        return self._note(job, sent, [f"{each.reporter}: {each.error}" for each in failures])

    def _note(self, job: UnreportedJob, sent: Sequence[str], failed: Sequence[str]) -> Reported:
        for text in failed:
            _log.warning("report.failed: %s", text, extra={"job": job.id})
        _log.info("report.sent", extra={"job": job.id, "reporters": list(sent)})
        return Reported(by=self._jobs.node, sent=list(sent), failed=[*map(_short, failed)])


def _short(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:500]}…"
