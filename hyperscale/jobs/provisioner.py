"""How many cores each workflow gets: by its priority, from the whole pool.

The range of a priority follows from the *total* pool, never from the cores that are free, so
that a workflow's cores do not depend on the workflows beside it. A test workflow gets cores
within the range of its priority, and no more than it has virtual users; a workflow that is not
a test gets exactly one. The same input gives the same answer; ties keep the order of the input.

A ready workflow for which no core is left shares the cores of the other workflows of its run or
job: it gets one executor beside theirs. An exclusive workflow shares with none.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hyperscale.plan import Priority, WorkflowPlan

RANK = {
    Priority.EXCLUSIVE: 4,
    Priority.HIGH: 3,
    Priority.NORMAL: 2,
    Priority.AUTO: 1,  # above LOW, which gets a quarter of the pool at most
    Priority.LOW: 0,
}
"""Higher ranks are served first."""

SHARED_PER_WORKER_MAX = 64
"""Executors of one worker, or of a local run, that share cores of their own job."""
SHARED_NICE = {
    Priority.EXCLUSIVE: 5,  # shares with none
    Priority.HIGH: 5,
    Priority.NORMAL: 10,
    Priority.AUTO: 10,
    Priority.LOW: 15,
}
"""CPU weight of the executors that share cores, with those that hold the cores: each step of 5 is
about a third of the CPU time."""


class Claim(NamedTuple):
    """What a workflow asks of the pool."""

    name: str
    priority: Priority = Priority.AUTO
    is_test: bool = True
    vus: int | None = None  # None: more than there are cores


class Grant(NamedTuple):
    """The cores of one workflow."""

    name: str
    priority: Priority
    threads: int  # cores; the published API calls them threads


Batch = list[Grant]


def priority_range(priority: Priority, pool: int) -> tuple[int, int]:
    """Return the minimum and the maximum of cores that a priority gets from a pool."""
    quarter, three_quarters = math.ceil(pool / 4), math.ceil(pool * 3 / 4)
    return {
        Priority.LOW: (1, quarter),
        Priority.NORMAL: (quarter, three_quarters),
        Priority.HIGH: (three_quarters, pool),
        Priority.EXCLUSIVE: (pool, pool),
        Priority.AUTO: (1, pool),
    }[priority]


@dataclass(slots=True)
class _Chosen:
    """A workflow of the batch that is being filled."""

    claim: Claim
    threads: int
    most: int


class Provisioner:
    """Divides one pool of cores between workflows."""

    def __init__(self, pool: int) -> None:
        if pool < 1:
            raise ValueError(f"a pool needs at least one core, this one has {pool} cores")
        self.pool = pool

    def partition_by_priority(
        self, configs: Iterable[Claim | WorkflowPlan | Mapping[str, Any]]
    ) -> list[Batch]:
        """Divide workflows into batches that each fit the pool.

        Batches run one after the other, the workflows of a batch together. A config is a plan,
        a `Claim`, or a mapping of `workflow_name`, `priority`, `is_test` and optionally `vus`.
        """
        waiting = self._in_order(configs)
        batches = []
        while waiting:
            chosen, waiting = self._choose(waiting, self.pool)
            batches.append(self._fill(chosen, self.pool))
        return batches

    # The published API spells the name this way.
    partion_by_priority = partition_by_priority

    def grant(
        self, ready: Iterable[Claim | WorkflowPlan | Mapping[str, Any]], *, busy: int = 0
    ) -> Batch:
        """Return the ready workflows that start now, with their cores; `busy` cores are taken.

        At least one workflow starts if no core is busy. The others stay ready.
        """
        free = self.pool - busy
        chosen, _ = self._choose(self._in_order(ready), free)
        return self._fill(chosen, free)

    def range_of(self, claim: Claim) -> tuple[int, int]:
        """Return the minimum and the maximum of cores that a workflow gets from this pool."""
        if not claim.is_test:
            return 1, 1
        least, most = priority_range(claim.priority, self.pool)
        if claim.vus is not None:
            least, most = min(least, claim.vus), min(most, claim.vus)
        return least, most

    def _in_order(self, configs: Iterable[Claim | WorkflowPlan | Mapping[str, Any]]) -> list[Claim]:
        """Sort by rank, after workflows that are not tests: they are short and others need them."""
        claims = [_as_claim(config) for config in configs]
        return sorted(claims, key=lambda claim: (claim.is_test, -RANK[claim.priority]))

    def _choose(self, claims: Sequence[Claim], free: int) -> tuple[list[_Chosen], list[Claim]]:
        """Return the workflows whose minimum fits, first come first served, and the others."""
        chosen: list[_Chosen] = []
        waiting = []
        for claim in claims:
            least, most = self.range_of(claim)
            # An exclusive workflow with few virtual users leaves cores free, but no other
            # workflow may use them.
            if is_exclusive(claim):
                fits = not chosen and free == self.pool
            else:
                fits = least <= free and not any(is_exclusive(each.claim) for each in chosen)
            if fits:
                chosen.append(_Chosen(claim, least, most))
                free -= least
            else:
                waiting.append(claim)
        return chosen, waiting

    def _fill(self, chosen: Sequence[_Chosen], free: int) -> Batch:
        """Divide the spare cores: the lowest rank first, evenly between workflows of one rank."""
        spare = free - sum(each.threads for each in chosen)
        for rank in sorted({RANK[each.claim.priority] for each in chosen}):
            equals = [each for each in chosen if RANK[each.claim.priority] == rank]
            while spare:
                below_most = [each for each in equals if each.threads < each.most]
                if not below_most:
                    break
                fewest = min(below_most, key=lambda each: each.threads)
                fewest.threads += 1
                spare -= 1
        return [Grant(each.claim.name, each.claim.priority, each.threads) for each in chosen]


def is_exclusive(claim: Claim | WorkflowPlan) -> bool:
    """Return True if the workflow must run alone."""
    return claim.is_test and claim.priority is Priority.EXCLUSIVE


def _as_claim(config: Claim | WorkflowPlan | Mapping[str, Any]) -> Claim:
    if isinstance(config, Claim):
        return config
    if isinstance(config, WorkflowPlan):
        return Claim(config.name, config.priority, config.is_test, config.vus)
    priority = config.get("priority", Priority.AUTO)
    return Claim(
        name=config["workflow_name"],
        priority=priority if isinstance(priority, Priority) else Priority(priority.lower()),
        is_test=config.get("is_test", True),
        vus=config.get("vus"),
    )
