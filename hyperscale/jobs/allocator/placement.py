"""Which workers a request may use, and how a grant is divided over them.

A request may use the workers whose labels meet its placement; they are its pool. Requests with
different placements may want the same workers: the minimum of each chosen request is set aside on
workers that the fewest other placements want, and spare cores go to the narrowest placement first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from hyperscale.jobs.allocator.pool import CorePool
from hyperscale.jobs.messages import RequestCores, WorkerShare
from hyperscale.plan.placement import Placement


class FreeCores:
    """The free cores of a pool while grants are decided, by placement."""

    def __init__(self, pool: CorePool, placements: Iterable[Placement]) -> None:
        self._pool = pool
        self._free = pool.free()
        self._workers = {each: pool.meeting(each) for each in dict.fromkeys(placements)}
        # How many placements want a worker.
        self._wanted = Counter(name for names in self._workers.values() for name in names)
        self._set_aside: dict[Placement, Counter[str]] = {}
        self._closed: set[str] = set()  # workers on which no further request is chosen

    @property
    def left(self) -> int:
        """Cores for further requests: neither held, reserved, set aside nor closed."""
        return sum(self._open(name) for name in self._free)

    def size(self, placement: Placement) -> int:
        """Return the cores of the workers that meet the placement, free or not."""
        return self._pool.size_of(self._workers[placement])

    def left_for(self, placement: Placement) -> int:
        return sum(self._open(name) for name in self._workers[placement])

    def _open(self, worker: str) -> int:
        return 0 if worker in self._closed else self._free[worker]

    def set_aside(self, placement: Placement, cores: int) -> None:
        """Keep the minimum of a chosen request."""
        kept = self._set_aside.setdefault(placement, Counter())
        for name in sorted(self._workers[placement], key=lambda name: (self._wanted[name], name)):
            taken = min(cores, self._open(name))
            kept[name] += taken
            self._free[name] -= taken
            cores -= taken

    def close(self, placement: Placement) -> None:
        """Let no later request pass one that has waited for long, on the workers it may use."""
        self._closed.update(self._workers[placement])

    def by_placement(self) -> list[Placement]:
        """Return the placements with chosen requests, the narrowest first."""
        chosen = [placement for placement in self._workers if placement in self._set_aside]
        return sorted(chosen, key=lambda each: len(self._workers[each]))

    def take_back(self, placement: Placement) -> dict[str, int]:
        """Return the free cores for requests of a placement, with what was set aside for them."""
        kept = self._set_aside.pop(placement)
        for name, cores in kept.items():
            self._free[name] += cores
        return {name: self._free[name] for name in self._workers[placement]}

    def use(self, shares: Iterable[WorkerShare]) -> None:
        for share in shares:
            self._free[share.worker] -= share.cores


def divide(
    cores: int, least: int, free: Mapping[str, int], labels: Mapping[str, str | None]
) -> list[WorkerShare]:
    """Divide `cores` over workers, evenly over the values of a label that workers have.

    If free cores are uneven, fewer than `cores` keep the values even, but never fewer than `least`.
    Without a label (None for every worker) it is `spread_over_workers`.
    """
    by_value: dict[str | None, dict[str, int]] = {}
    for name, count in free.items():
        if count > 0:
            by_value.setdefault(labels[name], {})[name] = count
    if len(by_value) < 2:
        return spread_over_workers(cores, free)
    given: Counter[str | None] = Counter()
    room = {value: sum(counts.values()) for value, counts in by_value.items()}
    even = min(room.values(), default=0)
    while sum(given.values()) < cores:
        open_values = [value for value in room if given[value] < room[value]]
        if not open_values:
            raise ValueError(f"{cores} cores do not fit into {sum(room.values())}")
        value = min(open_values, key=lambda each: (given[each], str(each)))
        if given[value] > even and sum(given.values()) >= least:
            break
        given[value] += 1
    return [
        share
        for value, count in sorted(given.items(), key=lambda each: str(each[0]))
        for share in spread_over_workers(count, by_value[value])
    ]


def spread_over_workers(cores: int, free: Mapping[str, int]) -> list[WorkerShare]:
    """Divide `cores` over the fewest workers that have them free.

    The emptiest workers come first; the last share goes to the fullest worker that fits, so
    that workers with many free cores keep them for large parts. Ties are broken by name.
    """
    left = {name: count for name, count in free.items() if count > 0}
    if sum(left.values()) < cores:
        raise ValueError(f"{cores} cores do not fit into {sum(left.values())}")
    shares = []
    while cores:
        fitting = [name for name, count in left.items() if count >= cores]
        if fitting:
            best = min(fitting, key=lambda name: (left[name], name))
            shares.append(WorkerShare(best, cores))
            break
        largest = min(left, key=lambda name: (-left[name], name))
        shares.append(WorkerShare(largest, left[largest]))
        cores -= left.pop(largest)
    return shares


def cores_by_value(pool: CorePool, request: RequestCores) -> Counter[str]:
    """Return the cores that the workflow of a request has on workers of each value of the label
    over which it is spread."""
    cores: Counter[str] = Counter()
    for name, worker in pool.workers.items():
        value = worker.labels.get(request.placement.spread)
        if value is not None:
            cores[value] += pool.cores_of_workflow(name, request.job, request.workflow)
    return cores
