"""How a job is split over datacenters by capacity: users, stages, iterations, rows, with offsets.

Each datacenter counts as many slots as it has cores; `plan.share` splits a total over the slots,
which are dealt to the datacenters in turn, so that a small total is spread as well. The users of a
datacenter are a range: `first_vu` ... `first_vu + vus - 1` of the job's users. So are its rows of
each feed: no two datacenters deal the same one, as long as there are as many rows as datacenters.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.plan import FeedPlan, Plan, StagePlan, Take, WorkflowPlan, share

_SLOTS_MAX = 4_096


class WorkflowShare(Struct, frozen=True, omit_defaults=True):
    """A datacenter's part of one workflow."""

    vus: int
    first_vu: int = 0
    iterations: int | None = None
    stages: tuple[StagePlan, ...] = ()
    arrival_phase: float = 0.0
    rows: dict[str, tuple[int, int]] = {}  # by feed: the first of its rows, and how many they are


PlanShare = dict[str, WorkflowShare]
"""A datacenter's part of a job, by workflow."""


def split_problem(plan: Plan, datacenters: int) -> str | None:
    """Return why a plan cannot be split over this number of datacenters; None if it can."""
    for workflow in plan.workflows:
        totals = [("virtual users", workflow.vus), ("iterations", workflow.iterations)]
        once = (feed for feed in workflow.feeds if feed.take is Take.ONCE)
        totals += [(f"rows in {feed.name}", feed.rows) for feed in once]
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
        rows = _split_rows(workflow, dealt, len(cores))
        first_vu = 0
        for index, shared in enumerate(shares.values()):
            part = WorkflowShare(
                vus[index],
                first_vu,
                iterations[index],
                stages[index],
                # The slots of the datacenters before it have earlier arrivals.
                sum(each < index for each in dealt) / len(dealt),
                rows[index],
            )
            shared[workflow.name] = part
            first_vu += vus[index]
    return shares


def whole_plan(plan: Plan, datacenters: list[str]) -> dict[str, PlanShare]:
    """Give every datacenter the whole plan: the users of the job are those of all of them."""
    dealt, count = list(range(len(datacenters))), len(datacenters)
    return {
        name: {
            workflow.name: WorkflowShare(
                workflow.vus,
                index * workflow.vus,
                workflow.iterations,
                workflow.stages,
                index / count,
                _split_rows(workflow, dealt, count)[index],
            )
            for workflow in plan.workflows
        }
        for index, name in enumerate(datacenters)
    }


def without_rows(plan: Plan, shared: PlanShare) -> PlanShare:
    """Return a part without rows that are dealt once: another datacenter may have used them."""
    return {
        workflow.name: replace(
            shared[workflow.name],
            rows=shared[workflow.name].rows
            | {feed.name: (0, 0) for feed in workflow.feeds if feed.take is Take.ONCE},
        )
        for workflow in plan.workflows
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
        arrival_phase=shared.arrival_phase,
        iterations=shared.iterations,
        stages=shared.stages,
        thresholds=(),
        feeds=tuple(_slice_feed(feed, shared.rows.get(feed.name)) for feed in workflow.feeds),
    )


def _slice_feed(feed: FeedPlan, rows: tuple[int, int] | None) -> FeedPlan:
    return feed if rows is None else replace(feed, first=rows[0], count=rows[1])


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


def _split_rows(
    workflow: WorkflowPlan, dealt: list[int], datacenters: int
) -> list[dict[str, tuple[int, int]]]:
    """Split the rows of each feed into ranges. With fewer rows than datacenters, all of them have
    all rows of a feed that deals a row more than once."""
    shares: list[dict[str, tuple[int, int]]] = [{} for _ in range(datacenters)]
    for feed in workflow.feeds:
        counts, first = _split(feed.rows, dealt, datacenters), 0
        if not workflow.is_test or (min(counts) == 0 and feed.take is not Take.ONCE):
            continue
        for index, count in enumerate(counts):
            shares[index][feed.name] = (first, count)
            first += count
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
