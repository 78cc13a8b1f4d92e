"""How a part that nobody runs is split: over datacenters that have a part, and one that has none.

What they get makes the shares follow capacity again, as far as that is possible without taking load
from any of them: each gets a share of the vacant part by how far it is below what its cores would
give it of the whole. A datacenter with a part is scaled up, which needs a load that is the same all
the time; a load with stages, a number of iterations or rows that are dealt once goes whole to a
datacenter that has no part.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.gates.slices import PlanShare, WorkflowShare
from hyperscale.plan import Plan, Take, WorkflowPlan
from hyperscale.plan.changes import ChangeKind, LoadChange
from hyperscale.plan.share import apportion

Targets = dict[str, float]
"""Users, or iterations per second, by workflow."""


class VacancySplit(Struct, frozen=True, kw_only=True):
    """What becomes of a vacant part."""

    given: dict[str, Targets]  # by datacenter: what it gets
    spare: PlanShare | None = None  # of the datacenter that had no part; None: it gets nothing


def target_of(share: WorkflowShare, workflow: str, changes: Sequence[LoadChange]) -> float:
    """Return the users, or the rate, that a part of a workflow has by its share and changes."""
    for change in reversed(changes):
        if change.kind is ChangeKind.SCALE and change.workflow == workflow:
            return change.rate or 0.0 if change.vus is None else float(change.vus)
    return max((stage.target for stage in share.stages), default=float(share.vus))


def is_steady(share: WorkflowShare, workflow: str, changes: Sequence[LoadChange]) -> bool:
    """Return True if the load of a workflow is the same from now on, so that it can be scaled."""
    is_scaled = any(each.kind is ChangeKind.SCALE and each.workflow == workflow for each in changes)
    return is_scaled or len({stage.target for stage in share.stages}) <= 1


def split_vacancy(
    plan: Plan,
    vacant: tuple[PlanShare, Sequence[LoadChange]],
    parts: Mapping[str, Targets],
    cores: Mapping[str, int],
    *,
    spare: str | None = None,
) -> VacancySplit | None:
    """Split a vacant part, with the changes of its load, over datacenters that have `parts` and a
    `spare` one that has none; None if it cannot be split. `cores` are those of all of them.
    """
    shares, changes = vacant
    tests = [workflow for workflow in plan.workflows if workflow.is_test]
    if not parts or not tests or not all(_can_grow(each, shares, changes) for each in tests):
        return None
    names = [*parts] if spare is None else [*parts, spare]
    targets: dict[str, Targets] = {name: parts.get(name, {}) for name in names}
    given: dict[str, Targets] = {name: {} for name in names}
    for workflow in tests:
        total = target_of(shares[workflow.name], workflow.name, changes)
        amounts = _give(total, workflow, targets, cores)
        if spare is not None and amounts[spare] < 1:
            # Too little for a part of its own.
            return split_vacancy(plan, vacant, parts, cores)
        for name, amount in amounts.items():
            given[name][workflow.name] = amount
    if spare is None:
        return VacancySplit(given=given)
    whole = {each.name: target_of(shares[each.name], each.name, changes) for each in tests}
    return VacancySplit(
        given=given,
        spare={
            each.name: _part(each, shares[each.name], given[spare][each.name] / whole[each.name])
            if each.name in whole
            else shares[each.name]
            for each in plan.workflows
        },
    )


def _can_grow(workflow: WorkflowPlan, shares: PlanShare, changes: Sequence[LoadChange]) -> bool:
    has_own_rows = any(feed.take is Take.ONCE for feed in workflow.feeds)
    is_fixed = workflow.is_counted or not workflow.is_timed or has_own_rows
    return not is_fixed and is_steady(shares[workflow.name], workflow.name, changes)


def _give(
    total: float, workflow: WorkflowPlan, has: Mapping[str, Targets], cores: Mapping[str, int]
) -> dict[str, float]:
    """Split a total by how far each datacenter is below its share of the whole by cores."""
    current = {name: targets.get(workflow.name, 0.0) for name, targets in has.items()}
    whole, all_cores = total + sum(current.values()), sum(max(1, cores[name]) for name in has)
    missing = [max(0.0, whole * max(1, cores[name]) / all_cores - current[name]) for name in has]
    if not any(missing):
        missing = [float(max(1, cores[name])) for name in has]
    if workflow.is_open:
        return {name: total * each / sum(missing) for name, each in zip(has, missing, strict=True)}
    return dict(zip(has, map(float, apportion(round(total), missing)), strict=True))


def _part(plan: WorkflowPlan, share: WorkflowShare, fraction: float) -> WorkflowShare:
    """Return a fraction of a share; of users, those with the first numbers."""
    targets = [stage.target * fraction for stage in share.stages]
    if not plan.is_open:
        targets = [float(round(each)) for each in targets]
    return replace(
        share,
        vus=max(1, round(share.vus * fraction)),
        stages=tuple(
            replace(stage, target=each) for stage, each in zip(share.stages, targets, strict=True)
        ),
    )
