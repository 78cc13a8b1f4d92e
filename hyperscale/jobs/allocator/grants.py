"""Grant decisions: which waiting requests get which cores. Pure functions of pool and queue.

How many cores a workflow gets follows from its priority and the size of its *whole* pool, all
workers that meet its placement (`provisioner`, `placement`). Smaller requests may pass a large one
that does not fit, until that one has waited for `AGE_S`.

A workflow for which no core is left shares the cores of the other workflows of its job: it gets
one executor on a worker on which the job has a core, up to `SHARED_PER_WORKER_MAX` per worker.
Jobs never share cores with each other, except that a recovery runs beside any attempt rather than
not at all.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hyperscale.jobs.allocator.placement import FreeCores, cores_by_value, divide
from hyperscale.jobs.allocator.pool import CorePool
from hyperscale.jobs.allocator.queue import QueuedRequest, RequestQueue, WorkflowOfJob
from hyperscale.jobs.messages import SHARED_MAX, RequestCores, WorkerShare
from hyperscale.jobs.provisioner import SHARED_PER_WORKER_MAX, Provisioner
from hyperscale.plan.placement import Placement

RECOVERED_AT_ONCE = 200
"""Recoveries that are granted in one round: a thousand workers may be lost together."""


class GrantDecision(NamedTuple):
    """The cores that a request gets."""

    request: QueuedRequest
    shares: list[WorkerShare]  # in order of slots
    shared: bool = False  # beside other attempts, because no worker has free cores
    within_job: bool = False  # beside attempts of the same job


def decide_new_workflows(
    pool: CorePool,
    queue: RequestQueue,
    waiting: Sequence[QueuedRequest],
    *,
    may_start_exclusive: bool,
    now_s: float,
) -> list[GrantDecision]:
    """Choose the workflows that start now and spread them over workers.

    In the order of the queue each workflow gets its minimum; then the spare cores are divided.
    """
    if not pool.size or not waiting or exclusive_workflow(pool, queue) is not None:
        return []
    free = FreeCores(pool, (request.message.placement for request in waiting))
    is_idle = not running_workflows(pool, queue)
    chosen: list[QueuedRequest] = []
    for request in waiting:
        if not free.left:
            break
        placement = request.message.placement
        if not (size := free.size(placement)):
            continue  # no worker meets it at present
        least, _ = Provisioner(size).range_of(request.claim)
        if request.is_exclusive:
            fits = is_idle and not chosen and may_start_exclusive
        else:
            fits = least <= free.left_for(placement) and not any(
                other.is_exclusive for other in chosen
            )
        if fits:
            chosen.append(request)
            free.set_aside(placement, least)
        elif request.has_aged(now_s):
            free.close(placement)  # cores that come free from now on are for this request
    decisions: list[GrantDecision] = []
    for placement in free.by_placement():
        decisions += _divide(pool, free, placement, chosen)
    if not any(request.is_exclusive for request in chosen):
        decisions += _share_cores(pool, waiting, decisions, now_s)
    return decisions


def _divide(
    pool: CorePool, free: FreeCores, placement: Placement, chosen: Sequence[QueuedRequest]
) -> list[GrantDecision]:
    """Divide the free cores of a placement between its chosen requests."""
    by_id = {each.id: each for each in chosen if each.message.placement == placement}
    left = free.take_back(placement)
    labels = {name: pool.workers[name].labels.get(placement.spread) for name in left}
    size = free.size(placement)
    provisioner = Provisioner(size)
    decisions = []
    claims = [request.claim for request in by_id.values()]
    for grant in provisioner.grant(claims, busy=size - sum(left.values())):
        request = by_id[grant.name]
        least, _ = provisioner.range_of(request.claim)
        shares = divide(grant.threads, least, left, labels)
        for share in shares:
            left[share.worker] -= share.cores
        free.use(shares)
        decisions.append(GrantDecision(request, shares))
    return decisions


def _share_cores(
    pool: CorePool, waiting: Sequence[QueuedRequest], decided: Sequence[GrantDecision], now_s: float
) -> list[GrantDecision]:
    """Place the workflows that got no core beside those of their job, which may just have been
    decided."""
    granted = {decision.request.id for decision in decided}
    left = [request for request in waiting if request.id not in granted]
    if not left:
        return []
    places = _SharedPlaces(pool)
    for decision in decided:
        places.add_cores(decision.request.message.job, decision.shares)
    decisions = []
    for request in left:
        if request.is_exclusive:
            if request.has_aged(now_s):
                break  # it waits until all others have ended: no more of them may begin
            continue
        unmet = pool.not_meeting(request.message.placement)
        worker = places.take(request.message.job, exclude=unmet)
        if worker is not None:
            share = WorkerShare(worker, 1)
            decisions.append(GrantDecision(request, [share], shared=True, within_job=True))
    return decisions


class _SharedPlaces:
    """Where workflows may share the cores of their job."""

    def __init__(self, pool: CorePool) -> None:
        self._workers_by_job = pool.workers_by_job()
        self._taken = pool.shared_within_jobs()
        self._totals = {name: worker.total for name, worker in pool.accepting().items()}

    def add_cores(self, job: str, shares: Sequence[WorkerShare]) -> None:
        """Note cores that a job gets now."""
        self._workers_by_job.setdefault(job, set()).update(share.worker for share in shares)

    def take(self, job: str, *, exclude: Collection[str] = ()) -> str | None:
        """Take a place on the worker of the job with the fewest such executors per core."""
        candidates = [
            name
            for name in self._workers_by_job.get(job, ())
            if self._taken[name] < SHARED_PER_WORKER_MAX and name not in exclude
        ]
        if not candidates:
            return None
        best = min(candidates, key=lambda name: (self._taken[name] / self._totals[name], name))
        self._taken[best] += 1
        return best

    def crowded(self) -> frozenset[str]:
        """Return the jobs on whose workers no place is left."""
        full = {name for name, taken in self._taken.items() if taken >= SHARED_PER_WORKER_MAX}
        return frozenset(job for job, workers in self._workers_by_job.items() if workers <= full)


def crowded_jobs(pool: CorePool) -> frozenset[str]:
    """Return the jobs that have cores, on which no further workflow may run."""
    return _SharedPlaces(pool).crowded()


def decide_recoveries(
    pool: CorePool, queue: RequestQueue, recoveries: Sequence[QueuedRequest]
) -> list[GrantDecision]:
    """Choose a worker for each lost part: one with free cores, else beside other attempts."""
    if not recoveries:
        return []
    free, executors, workers = pool.free(), pool.executors(), pool.accepting()
    exclusive = _exclusive_jobs(pool, queue)
    places = _SharedPlaces(pool)
    decisions: list[GrantDecision] = []
    too_many: int | None = None  # no worker can take a part of this many cores
    for request in recoveries:
        message, cores = request.message, request.message.cores
        if too_many is not None and cores >= too_many and not message.within_job:
            continue
        if any(job != message.job for job in exclusive):
            continue
        if len(decisions) == RECOVERED_AT_ONCE:
            break
        with_free_cores = [name for name, left in free.items() if left >= cores]
        with_room_beside = [
            name
            for name, worker in workers.items()
            if executors[name] + cores <= worker.total * SHARED_MAX
        ]
        if not with_free_cores and not with_room_beside and not message.within_job:
            too_many = cores
            continue
        exclude = _excluded(pool, message) | pool.not_meeting(message.placement)
        candidates = [name for name in with_free_cores if name not in exclude]
        shared = not candidates
        if candidates:
            crowd = _crowd_by_worker(pool, message, candidates)
            best = min(candidates, key=lambda name: (crowd[name], free[name], name))
            free[best] -= cores
            places.add_cores(message.job, [WorkerShare(best, cores)])
        elif (
            message.within_job
            and message.job not in exclusive
            and (own := places.take(message.job, exclude=exclude))
        ):
            share = WorkerShare(own, cores)
            decisions.append(GrantDecision(request, [share], shared=True, within_job=True))
            continue
        elif message.may_share and (
            candidates := [name for name in with_room_beside if name not in exclude]
        ):
            best = min(
                candidates,
                key=lambda name: ((executors[name] + cores) / workers[name].total, name),
            )
        else:
            continue
        executors[best] += cores
        decisions.append(GrantDecision(request, [WorkerShare(best, cores)], shared))
    return decisions


def can_recover(pool: CorePool, request: RequestCores) -> bool:
    """Return True if some worker could take the lost part if it were idle."""
    return bool(_able(pool, request))


def _able(pool: CorePool, request: RequestCores) -> list[str]:
    """Return the workers that could take the lost part if they were idle."""
    per_core = SHARED_MAX if request.may_share else 1
    workers = pool.accepting()
    return [
        name
        for name in pool.meeting(request.placement)
        if request.cores <= workers[name].total * per_core
    ]


def _crowd_by_worker(
    pool: CorePool, request: RequestCores, workers: Sequence[str]
) -> dict[str, int]:
    """Return for each worker how many cores its workflow has on workers of the same value of the
    label over which it is spread; 0 for all if it is not spread."""
    spread = request.placement.spread
    if not spread:
        return dict.fromkeys(workers, 0)
    cores = cores_by_value(pool, request)
    return {name: cores[pool.workers[name].labels[spread]] for name in workers}


def _excluded(pool: CorePool, request: RequestCores) -> frozenset[str]:
    """Return the workers that must not take the lost part: those on which it failed. If no other
    worker could take it, the one on which it failed longest ago may."""
    if not request.exclude:
        return frozenset()
    able = _able(pool, request)
    left = [name for name in request.exclude if name in able]
    is_other_able = len(left) < len(able)
    return frozenset(request.exclude) - frozenset(left[: 0 if is_other_able else 1])


def exclusive_workflow(pool: CorePool, queue: RequestQueue) -> WorkflowOfJob | None:
    """Return the workflow that must run alone and has begun or was granted its cores."""
    for held in pool.held():
        if held.exclusive:
            return held.attempt_id.job, held.attempt_id.workflow
    for request in queue.requests.values():
        if request.is_of_exclusive_workflow and (
            request.message.is_recovery or pool.reservations.has_request(request.id)
        ):
            return request.workflow
    return None


def running_workflows(pool: CorePool, queue: RequestQueue) -> list[WorkflowOfJob]:
    """Return the workflows that hold cores or have reservations, each once."""
    held = [(held.attempt_id.job, held.attempt_id.workflow) for held in pool.held()]
    reserved = [request.workflow for request in _reserving(pool, queue)]
    return list(dict.fromkeys([*held, *reserved]))


def _exclusive_jobs(pool: CorePool, queue: RequestQueue) -> set[str]:
    """Return the jobs that have the datacenter to themselves, or were granted it."""
    return {held.attempt_id.job for held in pool.held() if held.exclusive} | {
        request.message.job for request in _reserving(pool, queue) if request.is_exclusive
    }


def _reserving(pool: CorePool, queue: RequestQueue) -> list[QueuedRequest]:
    """Return the requests that have a reservation on any worker."""
    requests = queue.requests.values()
    return [request for request in requests if pool.reservations.has_request(request.id)]
