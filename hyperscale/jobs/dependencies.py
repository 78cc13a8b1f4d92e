"""Which workflows may start: each as soon as its own dependencies have finished.

Not layer by layer, as the steps of an iteration: nothing waits for a stranger.
"""

from collections.abc import Collection, Iterable, Mapping

from hyperscale.plan import WorkflowPlan
from hyperscale.plan.dag import ancestors


def ready(
    plans: Iterable[WorkflowPlan], finished: Collection[str], running: Collection[str]
) -> list[WorkflowPlan]:
    """Those not begun whose dependencies have all finished well, in the order written."""
    return [
        plan
        for plan in plans
        if plan.name not in finished
        and plan.name not in running
        and all(name in finished for name in plan.depends)
    ]


def blocked_by(plans: Iterable[WorkflowPlan], failed: Collection[str]) -> dict[str, str]:
    """Workflows that can never start, each with the failed one it waits for."""
    order: Mapping[str, tuple[str, ...]] = {plan.name: plan.depends for plan in plans}
    blocked = {}
    for name in order:
        causes = [other for other in order if other in failed and other in ancestors(order, name)]
        if causes and name not in failed:
            blocked[name] = causes[0]
    return blocked
