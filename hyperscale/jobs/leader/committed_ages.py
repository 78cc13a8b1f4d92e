"""Limits that outlive a leader: since when they run, and by how much they were extended.

Everything here follows from committed entries, in the time of the group, so that every leader of a
job finds the same: how often leaders change does not change when a limit fires.
"""

from hyperscale.jobs.committed.events import AttemptFault
from hyperscale.jobs.committed.state import Job, Part
from hyperscale.jobs.leader.extensions import extended_s


def waiting_since_ms(job: Job, workflow: str, part: int) -> int:
    """Return since when cores are wanted: for a workflow (part -1) since its dependencies have
    ended, for a new attempt since the last one that its worker had accepted was lost."""
    parts = job.workflows[workflow].parts
    if 0 <= part < len(parts) and parts[part].segments:
        return _lost_ms(parts[part])
    if parts:  # a teardown, which follows the last part
        ends_ms = [each.segments[-1].ended_ms for each in parts if each.segments]
        return max(ends_ms, default=job.times.started_ms)
    depends = job.plan_of(workflow).depends
    return max([job.times.submitted_ms, *(job.workflows[name].ended_ms for name in depends)])


def _lost_ms(part: Part) -> int:
    """Return when the first of the last attempts was lost that no worker has begun."""
    lost_ms = part.segments[-1].ended_ms
    for segment in reversed(part.segments[:-1]):
        later = part.segments[part.segments.index(segment) + 1]
        if later.elapsed_s or later.fault not in (AttemptFault.NONE, AttemptFault.REFUSED):
            break
        lost_ms = segment.ended_ms
    return lost_ms


def extension_s(job: Job) -> float:
    """Return by how much the timeout of a job is extended: as much as the part that was granted
    most, and never by more than the timeout itself."""
    parts = (part for workflow in job.workflows.values() for part in workflow.parts)
    granted_s = max((extended_s(part.extensions) for part in parts), default=0.0)
    return min(granted_s, job.options.timeout_s or 0.0)
