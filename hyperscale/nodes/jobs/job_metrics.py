"""The metrics of a manager about jobs: their states, ends, failures and retries, queue and cores.

Each job is counted by the manager that leads its group, and the queue by the allocator, so sums
over all managers count nothing twice.
"""

import time
from collections import Counter
from collections.abc import Iterable

from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.committed.events import (
    AttemptFault,
    AttemptRevoked,
    Code,
    JobFinished,
    JobStatus,
    JobSubmitted,
    PartRedispatched,
    Reply,
)
from hyperscale.jobs.committed.failure_reason import FailureReason, failure_reason
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import JOB_ENDS
from hyperscale.jobs.leader.core import JobLeader
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.telemetry.metrics import Family, by, counter, gauge

_LIVE = [status for status in JobStatus if status not in JOB_ENDS]
_ENDS = [status for status in JobStatus if status in JOB_ENDS]
_FAULTS = [fault for fault in AttemptFault if fault is not AttemptFault.NONE]


class JobCounts:
    """What has become of jobs since this manager started, counted as their leader."""

    def __init__(self) -> None:
        self.submitted = 0
        self.ended: Counter[JobStatus] = Counter()
        self.failed: Counter[FailureReason] = Counter()
        self.retries = 0
        self.faults: Counter[AttemptFault] = Counter()  # of attempts

    def note(self, entry: AppliedEntry, machine: JobMachine) -> None:
        """Count an entry that was applied while this node led its group."""
        event, reply = entry.event, entry.reply
        if not isinstance(reply, Reply) or not reply.ok or reply.code is not Code.OK:
            return  # it changed nothing
        match event:
            case JobSubmitted():
                self.submitted += 1
            case PartRedispatched():
                self.retries += 1
            case AttemptRevoked(fault=fault) if fault is not AttemptFault.NONE:
                self.faults[fault] += 1
            case JobFinished(job=job_id, status=status):
                self.ended[status] += 1
                job = machine.job(job_id)
                reason = None if job is None else failure_reason(job)
                if reason is not None:
                    self.failed[reason] += 1

    def collect(self, led: Iterable[tuple[JobMachine, JobLeader]]) -> list[Family]:
        """Return the metrics of the jobs in the groups that this node leads."""
        now_s = time.monotonic()
        states = Counter(
            leader.row(job, now_s=now_s).status.value
            for machine, leader in led
            for job in machine.jobs()
        )
        return [
            gauge(
                "hyperscale_jobs",
                "Jobs that have not ended and whose group this manager leads, by state",
                *by("state", states, [status.value for status in _LIVE]),
            ),
            counter(
                "hyperscale_jobs_submitted_total",
                "Jobs accepted by this manager as leader of their group",
                self.submitted,
            ),
            counter(
                "hyperscale_jobs_ended_total",
                "Jobs that ended under this manager as their leader, by final state",
                *(({"state": status.value}, self.ended[status]) for status in _ENDS),
            ),
            counter(
                "hyperscale_job_failures_total",
                "Jobs that failed, timed out or completed only in part, by reason",
                *by("reason", self.failed, FailureReason),
            ),
            counter(
                "hyperscale_attempts_failed_total",
                "Attempts of parts that failed and count against their retries, by fault",
                *(({"fault": fault.value}, self.faults[fault]) for fault in _FAULTS),
            ),
            counter(
                "hyperscale_retries_total",
                "New attempts of parts, dispatched after an attempt had ended early",
                self.retries,
            ),
        ]


def allocator_metrics(allocator: Allocator, *, queue_max: int) -> list[Family]:
    """Return the metrics of cores and of the queue for them: of the allocator alone."""
    if not allocator.is_leading:
        return []
    return [
        gauge(
            "hyperscale_cores",
            "Cores of all workers that take work, as the allocator knows them",
            allocator.pool.size,
        ),
        gauge(
            "hyperscale_cores_free",
            "Cores that are neither in use nor reserved, as the allocator knows them",
            sum(allocator.pool.free().values()),
        ),
        gauge("hyperscale_queue_length", "Workflows that wait for cores", allocator.waiting),
        gauge("hyperscale_queue_length_limit", "Workflows that may wait for cores", queue_max),
        gauge(
            "hyperscale_queue_oldest_age_seconds",
            "How long the workflow that has waited longest for cores has waited; 0 if none waits",
            allocator.longest_wait_s(now_s=time.monotonic()),
        ),
    ]
