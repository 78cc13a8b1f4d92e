"""How long a datacenter may take for its part of a job before it ends the part by itself.

The gates declare a job's timeout. A datacenter that hears of no gate enforces its own deadline,
later than theirs, so nothing runs for ever; and since it stops then, a gate may conclude without it
some time after that.
"""

from hyperscale.gates.committed.state import DatacenterAssignment, GlobalJob
from hyperscale.plan import Plan, WorkflowPlan

FALLBACK_S = 300.0
"""How much longer than the gates a datacenter waits before it enforces the job's timeout."""
_PREPARE_S = 120.0  # imports and setup hooks of a workflow
_OVERRUN_S = 60.0  # requests in flight, teardown, results of a workflow


def longest_path_s(plan: Plan) -> float:
    """Return how long the workflows of a plan may take, one after the other where they depend."""
    ends: dict[str, float] = {}
    waiting = list(plan.workflows)
    while waiting:
        ready = [each for each in waiting if all(name in ends for name in each.depends)]
        if not ready:
            break  # a cycle; such a plan is refused
        for workflow in ready:
            after_s = max((ends[name] for name in workflow.depends), default=0.0)
            ends[workflow.name] = after_s + _longest_s(workflow)
        waiting = [each for each in waiting if each.name not in ends]
    return max(ends.values(), default=0.0)


def _longest_s(workflow: WorkflowPlan) -> float:
    return workflow.duration_s + workflow.timeout_s + _PREPARE_S + _OVERRUN_S


def datacenter_deadline_ms(job: GlobalJob, assignment: DatacenterAssignment, *, now_ms: int) -> int:
    """Return when the datacenter ends its part by itself, on the clock of committed stamps. It does
    not count the time for which the load is paused."""
    options = job.options
    paused_ms = job.paused_ms(assignment.assigned_ms, now_ms)
    if options.timeout_s is not None:
        return job.submitted_ms + round((options.timeout_s + FALLBACK_S) * 1000) + paused_ms
    waits_s = options.job.dispatch_timeout_s * max(1, len(job.plan.workflows))
    total_s = longest_path_s(job.plan) + waits_s + options.start_timeout_s
    return assignment.assigned_ms + round(total_s * 1000) + paused_ms
