"""Results that managers send: the leader of a job's group delivers them once the job has ended.

The reporters and their credentials come from the file that `reporting.config` of the node names;
a job carries only the names of the reporters. A delivery is committed after it was made
(`JobReported`). If the leader ends in between, the next one delivers again: at least once. Every
reporter keys what it writes by the id of the run, so the second delivery replaces the first.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from hyperscale.client.results import result_of
from hyperscale.errors import HyperscaleError, InputError
from hyperscale.jobs.committed.events import JobReported, encode
from hyperscale.jobs.committed.state import Job
from hyperscale.nodes.jobs.job_leaders import JobLeaders
from hyperscale.nodes.jobs.job_routing import JobRouting
from hyperscale.reporting.config_file import AnyReporter, load_reporters, read_tables
from hyperscale.reporting.reporter import submit_all
from hyperscale.sansio.tasks import TaskSupervisor

_LOOK_S = 0.5
_DELIVERIES_MAX = 4  # at the same time; each has threads of its own

_log = logging.getLogger("hyperscale.reports")


class ManagerReporters:
    """The reporters of one manager, as its configuration names them."""

    def __init__(self, file: str) -> None:
        """Raises InputError if the file is wrong. An empty path: this manager has no reporters."""
        self._file = Path(file) if file else None
        if self._file is not None:
            self.load(())

    def load(self, names: Sequence[str]) -> tuple[AnyReporter, ...]:
        """Return the reporters of these names, all without any. The file is read anew, so that
        credentials can be replaced while the manager runs."""
        if self._file is None:
            return ()
        return load_reporters(names, self._file, os.environ, flag="--report")

    def problem(self, names: Sequence[str]) -> str | None:
        """Return why the results of a job cannot be sent from here; None if they can."""
        if self._file is None:
            return "this manager has no reporters: set reporting.config on every manager"
        tables = read_tables(self._file, "reporters")
        if not tables:
            return "the managers' configuration has no reporters"
        unknown = [name for name in names if name not in tables]
        if unknown:
            return f"the managers have no reporter {unknown[0]!r}; they have {', '.join(tables)}"
        return None


class ManagerReports:
    """Sends the results of the jobs that this manager leads."""

    def __init__(
        self,
        reporters: ManagerReporters,
        *,
        leaders: JobLeaders,
        routing: JobRouting,
        tasks: TaskSupervisor,
    ) -> None:
        self._reporters = reporters
        self._leaders = leaders
        self._routing = routing
        self._tasks = tasks
        self._busy: set[str] = set()  # jobs whose results are being sent
        tasks.spawn_every(_LOOK_S, self._look, "jobs:reports")

    def _look(self) -> None:
        """Begin to send the results of jobs that have ended, and that nobody has sent."""
        for machine, _ in self._leaders.led_jobs():
            for job in machine.ended_jobs():
                is_due = job.options.report is not None and job.reported is None
                if is_due and job.id not in self._busy and len(self._busy) < _DELIVERIES_MAX:
                    self._busy.add(job.id)
                    self._tasks.spawn_request(self._deliver(job), "report")

    async def _deliver(self, job: Job) -> None:
        try:
            record = await self._routing.final_record(job.id)
            if record is None:
                return  # not written yet: the next look finds it
            event = await self._send(job, record)
            group = self._routing.group_of(job.id)
            await self._routing.ledger.propose(group, encode(event))
        except HyperscaleError as error:  # no quorum, say: sent again, by the leader of then
            _log.warning("report.not_committed: %s", error, extra={"job": job.id})
        finally:
            self._busy.discard(job.id)

    async def _send(self, job: Job, record: bytes) -> JobReported:
        """Send the result to every reporter; return what was sent and what was lost."""
        try:
            reporters = await asyncio.to_thread(self._reporters.load, job.options.report or ())
            if not reporters:
                raise InputError(self._reporters.problem(()) or "there are no reporters")
            result = await asyncio.to_thread(result_of, record)
        except InputError as error:
            return self._note(job, (), [str(error)])
        failures = await submit_all(reporters, result)
        failed = {failure.reporter for failure in failures}
        sent = [name for name in map(repr, reporters) if name not in failed]
        return self._note(job, sent, [f"{each.reporter}: {each.error}" for each in failures])

    def _note(self, job: Job, sent: Sequence[str], failed: Sequence[str]) -> JobReported:
        for text in failed:
            _log.warning("report.failed: %s", text, extra={"job": job.id})
        _log.info("report.sent", extra={"job": job.id, "reporters": list(sent)})
        return JobReported(
            job=job.id, by=self._routing.node, sent=list(sent), failed=[*map(_short, failed)]
        )


def _short(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:500]}…"
