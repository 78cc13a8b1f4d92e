"""How a change of the load of a global job is split over its datacenters.

A scale is split like the users or the rate of the workflow itself: by the shares that datacenters
were assigned. A pause or a resume is the same everywhere. A datacenter gets one change for each
workflow that is scaled, with an id that follows from that of the whole change.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from hyperscale.gates.slices import PlanShare, WorkflowShare
from hyperscale.plan.changes import ChangeKind, LoadChange
from hyperscale.plan.share import apportion


def by_workflow(change: LoadChange, targets: Mapping[str, float]) -> list[LoadChange]:
    """Return a change as one for each workflow that it scales, or as it is if it scales none."""
    if change.kind is not ChangeKind.SCALE:
        return [change]
    return [
        _with_target(replace(change, id=f"{change.id}/{name}", workflow=name), target)
        for name, target in targets.items()
    ]


def split_changes(
    changes: Sequence[LoadChange], parts: Sequence[PlanShare]
) -> list[list[LoadChange]]:
    """Split changes, each of one workflow, over parts of the job; one list for each part."""
    split: list[list[LoadChange]] = [[] for _ in parts]
    for change in changes:
        for mine, each in zip(split, _slices(change, parts), strict=True):
            mine.append(each)
    return split


def _slices(change: LoadChange, parts: Sequence[PlanShare]) -> list[LoadChange]:
    if change.kind is not ChangeKind.SCALE:
        return [change] * len(parts)
    weights = [_weight(part[change.workflow]) for part in parts]
    if not any(weights):
        weights = [1.0] * len(parts)
    if change.vus is not None:
        targets = [float(each) for each in apportion(change.vus, weights)]
    else:
        targets = [(change.rate or 0.0) * each / sum(weights) for each in weights]
    return [_with_target(change, target) for target in targets]


def _weight(share: WorkflowShare) -> float:
    return max((stage.target for stage in share.stages), default=float(share.vus))


def _with_target(change: LoadChange, target: float) -> LoadChange:
    if change.vus is not None:
        return replace(change, vus=round(target))
    return replace(change, rate=target)
