"""Keys that change the load of a run: `p` pauses and resumes, `+` and `-` scale by a tenth."""

import math

from hyperscale.graph.changes import pause, resume, scale_to
from hyperscale.plan.changes import LoadChange
from hyperscale.stats.view import RunView, ViewStatus, WorkflowView

_STEP = 0.1  # of the target


def change_of(key: str, view: RunView, selected: str | None) -> LoadChange | None:
    """Return the change that a key stands for; None if there is nothing to change.

    `+` and `-` are for the selected workflow, or for the one that runs. If several run and none is
    selected, the change names none, and is refused with a hint.
    """
    if key == "p":
        is_paused = any(each.status is ViewStatus.PAUSED for each in view.workflows)
        return resume() if is_paused else pause()
    running = [each for each in view.workflows if each.target is not None and _is_on(each)]
    if selected is not None:
        running = [each for each in running if each.name == selected]
    if not running:
        return None
    first = running[0]
    target = _stepped(sum(each.target or 0.0 for each in running), key)
    name = selected or (first.name if len(running) == 1 else "")
    if first.is_open:
        return scale_to(rate=f"{target:g}/s", workflow=name)
    return scale_to(vus=round(target), workflow=name)


def _is_on(workflow: WorkflowView) -> bool:
    return workflow.status in (ViewStatus.RUNNING, ViewStatus.PAUSED)


def _stepped(target: float, key: str) -> float:
    step = max(1, math.ceil(target * _STEP))
    return target + step if key == "+" else max(0.0, target - step)
