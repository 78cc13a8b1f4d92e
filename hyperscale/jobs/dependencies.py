"""Which workflows may start: each one as soon as its own dependencies have completed.

Workflows do not start in layers: a workflow never waits for one that it does not depend on.
"""

from collections.abc import Collection, Iterable, Mapping

from hyperscale.plan import WorkflowPlan
from hyperscale.plan.dag import ancestors


def ready(
    plans: Iterable[WorkflowPlan], finished: Collection[str], running: Collection[str]
) -> list[WorkflowPlan]:
    """Return the workflows that have not begun and whose dependencies have completed, in order."""
    return [
        plan
        for plan in plans
        if plan.name not in finished
        and plan.name not in running
        and all(name in finished for name in plan.depends)
    ]


def blocked_by(plans: Iterable[WorkflowPlan], failed: Collection[str]) -> dict[str, str]:
    """Return the workflows that can never start, each with a failed one that it depends on."""
    order: Mapping[str, tuple[str, ...]] = {plan.name: plan.depends for plan in plans}
    blocked = {}
    for name in order:
        causes = [other for other in order if other in failed and other in ancestors(order, name)]
        if causes and name not in failed:
            blocked[name] = causes[0]
    return blocked
