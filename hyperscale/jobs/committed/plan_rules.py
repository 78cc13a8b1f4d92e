"""Which plans a machine of jobs takes: a submission that could never run is refused."""

from hyperscale.plan import Plan
from hyperscale.plan.dag import find_cycle

_SUBMISSION_BYTES_MAX = 4 * 1024 * 1024


def plan_problem(plan: Plan, *, size: int, workflows_max: int) -> str | None:
    """Return what is wrong with the plan of a submission of `size` bytes; None if nothing is."""
    names = [workflow.name for workflow in plan.workflows]
    if not names:
        return "the job has no workflows"
    if size > _SUBMISSION_BYTES_MAX:
        return f"the submission has {size:,} bytes, more than {_SUBMISSION_BYTES_MAX:,}"
    if len(names) > workflows_max:
        return f"the job has {len(names):,} workflows, more than {workflows_max:,}"
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return f"two workflows are called {twice!r}"
    after = {workflow.name: workflow.depends for workflow in plan.workflows}
    for name, depends in after.items():
        for other in depends:
            if other not in after:
                return f"{name} depends on {other!r}, which is not a workflow of the job"
    cycle = find_cycle(after) if any(after.values()) else None
    return None if cycle is None else f"workflows wait for each other: {' -> '.join(cycle)}"
