"""How many cores each workflow gets: by its priority, of the whole pool.

Ranges come from the *total* pool, never from what happens to be free, so a workflow's share
does not depend on its neighbours. A test workflow gets cores within the range of its
priority, never more than it has VUs; a non-test workflow always gets exactly one. Pure: the
same input gives the same answer, and order of writing breaks every tie.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hyperscale.plan import Priority, WorkflowPlan

# Who is served first. AUTO takes what is left, but before LOW, which is capped at a quarter.
RANK = {
    Priority.EXCLUSIVE: 4,
    Priority.HIGH: 3,
    Priority.NORMAL: 2,
    Priority.AUTO: 1,
    Priority.LOW: 0,
}


class Claim(NamedTuple):
    """What allocation needs to know of a workflow."""

    name: str
    priority: Priority = Priority.AUTO
    is_test: bool = True
    vus: int | None = None  # None: enough for any number of cores


class Grant(NamedTuple):
    name: str
    priority: Priority
    threads: int  # cores; the two words mean the same unit


Batch = list[Grant]


def claim_of(plan: WorkflowPlan) -> Claim:
    return Claim(plan.name, plan.priority, plan.is_test, plan.vus)


def priority_range(priority: Priority, pool: int) -> tuple[int, int]:
    """Fewest and most cores of a pool that a priority stands for."""
    quarter, three_quarters = math.ceil(pool / 4), math.ceil(pool * 3 / 4)
    return {
        Priority.LOW: (1, quarter),
        Priority.NORMAL: (quarter, three_quarters),
        Priority.HIGH: (three_quarters, pool),
        Priority.EXCLUSIVE: (pool, pool),
        Priority.AUTO: (1, pool),
    }[priority]


@dataclass(slots=True)
class _Seat:
    """A workflow in a batch being filled."""

    claim: Claim
    threads: int
    most: int


class Provisioner:
    """Allocation on one pool of cores."""

    def __init__(self, pool: int) -> None:
        if pool < 1:
            raise ValueError(f"a pool of {pool} cores can run nothing")
        self.pool = pool

    def partition_by_priority(
        self, configs: Iterable[Claim | WorkflowPlan | Mapping[str, Any]]
    ) -> list[Batch]:
        """Every workflow in a batch, each batch fitting the pool as a whole.

        Batches run one after the other; within one, all at once. A config is a plan, a
        `Claim`, or a mapping of `workflow_name`, `priority`, `is_test` and optionally `vus`.
        """
        waiting = self._in_order(configs)
        batches = []
        while waiting:
            seats, waiting = self._seat(waiting, self.pool)
            batches.append(self._fill(seats, self.pool))
        return batches

    # The name the original API published, kept so that code written for it runs.
    partion_by_priority = partition_by_priority

    def grant(
        self, ready: Iterable[Claim | WorkflowPlan | Mapping[str, Any]], *, busy: int = 0
    ) -> Batch:
        """Which of the ready workflows start now, and on how many cores, with `busy` taken.

        With nothing busy at least one starts. What does not fit stays ready: ask again when
        cores come free.
        """
        free = self.pool - busy
        seats, _ = self._seat(self._in_order(ready), free)
        return self._fill(seats, free)

    def _in_order(self, configs: Iterable[Claim | WorkflowPlan | Mapping[str, Any]]) -> list[Claim]:
        """Non-test workflows first: they are short and others wait for them. Then by rank."""
        claims = [_as_claim(config) for config in configs]
        return sorted(claims, key=lambda claim: (claim.is_test, -RANK[claim.priority]))

    def range_of(self, claim: Claim) -> tuple[int, int]:
        """Fewest and most cores a workflow gets of this pool."""
        if not claim.is_test:
            return 1, 1
        least, most = priority_range(claim.priority, self.pool)
        if claim.vus is not None:
            least, most = min(least, claim.vus), min(most, claim.vus)
        return least, most

    def _seat(self, claims: Sequence[Claim], free: int) -> tuple[list[_Seat], list[Claim]]:
        """First fit: who finds its least number of cores, in order, and who has to wait."""
        seats: list[_Seat] = []
        waiting = []
        for claim in claims:
            least, most = self.range_of(claim)
            # An exclusive workflow with few VUs would leave cores, yet is to have none beside it.
            if _is_exclusive(claim):
                fits = not seats and free == self.pool
            else:
                fits = least <= free and not any(_is_exclusive(seat.claim) for seat in seats)
            if fits:
                seats.append(_Seat(claim, least, most))
                free -= least
            else:
                waiting.append(claim)
        return seats, waiting

    def _fill(self, seats: Sequence[_Seat], free: int) -> Batch:
        """Spare cores: the lowest rank up to its most, then the next; equals share evenly."""
        spare = free - sum(seat.threads for seat in seats)
        for rank in sorted({RANK[seat.claim.priority] for seat in seats}):
            equals = [seat for seat in seats if RANK[seat.claim.priority] == rank]
            while spare:
                hungry = [seat for seat in equals if seat.threads < seat.most]
                if not hungry:
                    break
                # One at a time to whoever has fewest: even, and capped seats pass theirs on.
                seat = min(hungry, key=lambda seat: seat.threads)
                seat.threads += 1
                spare -= 1
        return [Grant(s.claim.name, s.claim.priority, s.threads) for s in seats]


def _is_exclusive(claim: Claim) -> bool:
    return claim.is_test and claim.priority is Priority.EXCLUSIVE


def _as_claim(config: Claim | WorkflowPlan | Mapping[str, Any]) -> Claim:
    if isinstance(config, Claim):
        return config
    if isinstance(config, WorkflowPlan):
        return claim_of(config)
    priority = config.get("priority", Priority.AUTO)
    return Claim(
        name=config["workflow_name"],
        priority=priority if isinstance(priority, Priority) else Priority(priority.lower()),
        is_test=config.get("is_test", True),
        vus=config.get("vus"),
    )
