"""How a job is split over datacenters: users, stages and iterations by capacity, with offsets.

Each datacenter counts as many slots as it has cores; `plan.share` splits a total over the slots,
which are dealt to the datacenters in turn, so that a small total is spread as well. The users of a
datacenter are a range: `first_vu` ... `first_vu + vus - 1` of the job's users.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.plan import Plan, StagePlan, WorkflowPlan, share

_SLOTS_MAX = 4_096


class WorkflowShare(Struct, frozen=True):
    """A datacenter's part of one workflow."""

    vus: int
    first_vu: int = 0
    iterations: int | None = None
    stages: tuple[StagePlan, ...] = ()


PlanShare = dict[str, WorkflowShare]
"""A datacenter's part of a job, by workflow."""


def split_problem(plan: Plan, datacenters: int) -> str | None:
    """Return why a plan cannot be split over this number of datacenters; None if it can."""
    for workflow in plan.workflows:
        totals = (("virtual users", workflow.vus), ("iterations", workflow.iterations))
        for what, total in totals:
            if workflow.is_test and total is not None and total < datacenters:
                return f"{workflow.name} has {total} {what}, fewer than {datacenters} datacenters"
    return None


def split_plan(plan: Plan, cores: Mapping[str, int]) -> dict[str, PlanShare]:
    """Split every workflow over the datacenters by their cores, in the order given.

    A workflow that is no test provides values to others, so it runs in every datacenter.
    """
    dealt = _deal(_scaled(list(cores.values())))
    shares: dict[str, PlanShare] = {name: {} for name in cores}
    for workflow in plan.workflows:
        vus = _split(workflow.vus, dealt, len(cores))
        if not workflow.is_test:
            vus = [max(1, each) for each in vus]
        iterations: list[int | None] = [None] * len(cores)
        if workflow.iterations is not None:
            iterations = list(_split(workflow.iterations, dealt, len(cores)))
        stages = _split_stages(workflow, dealt, len(cores))
        first_vu = 0
        for index, shared in enumerate(shares.values()):
            part = WorkflowShare(vus[index], first_vu, iterations[index], stages[index])
            shared[workflow.name] = part
            first_vu += vus[index]
    return shares


def whole_plan(plan: Plan, datacenters: list[str]) -> dict[str, PlanShare]:
    """Give every datacenter the whole plan: the users of the job are those of all of them."""
    return {
        name: {
            workflow.name: WorkflowShare(
                workflow.vus, index * workflow.vus, workflow.iterations, workflow.stages
            )
            for workflow in plan.workflows
        }
        for index, name in enumerate(datacenters)
    }


def sliced(plan: Plan, shared: PlanShare) -> Plan:
    """Return the plan as one datacenter runs it."""
    return replace(
        plan, workflows=tuple(_slice(each, shared[each.name]) for each in plan.workflows)
    )


def _slice(workflow: WorkflowPlan, shared: WorkflowShare) -> WorkflowPlan:
    # Thresholds hold for the job as a whole, so only the gates judge them.
    return replace(
        workflow,
        vus=shared.vus,
        first_vu=shared.first_vu,
        iterations=shared.iterations,
        stages=shared.stages,
        thresholds=(),
    )


def _scaled(cores: list[int]) -> list[int]:
    """Return how many slots each datacenter has: its cores, or fewer in proportion."""
    wanted = [max(1, each) for each in cores]
    factor = min(1.0, _SLOTS_MAX / sum(wanted))
    return [max(1, int(each * factor)) for each in wanted]


def _deal(slots: list[int]) -> list[int]:
    """Return the datacenter of each slot, dealt in turn in proportion to their numbers."""
    order = sorted(
        ((2 * turn + 1) / count, index)
        for index, count in enumerate(slots)
        for turn in range(count)
    )
    return [index for _, index in order]


def _split(total: int, dealt: list[int], datacenters: int) -> list[int]:
    shares = [0] * datacenters
    for slot, index in enumerate(dealt):
        shares[index] += share(total, len(dealt), slot)
    return shares


def _split_stages(
    workflow: WorkflowPlan, dealt: list[int], datacenters: int
) -> list[tuple[StagePlan, ...]]:
    """Split the users of each stage like those of the workflow, and rates in proportion."""
    shares: list[list[StagePlan]] = [[] for _ in range(datacenters)]
    for stage in workflow.stages:
        targets = [stage.target * dealt.count(index) / len(dealt) for index in range(datacenters)]
        if not workflow.is_open:
            targets = [float(each) for each in _split(int(stage.target), dealt, datacenters)]
        for index, target in enumerate(targets):
            shares[index].append(replace(stage, target=target))
    return [tuple(each) for each in shares]
