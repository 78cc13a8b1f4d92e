"""The allocator: a sans-IO core that grants the cores of a datacenter to job leaders.

Runs on the leader of the management group and stores nothing. After a change of allocator it
grants nothing until the workers have announced their cores to it. A granted request keeps a
reservation until its worker announces the cores as held. Workers may refuse a part that does
not fit; the job leader then requests cores again.

`pool` holds the workers' cores and reservations, `queue` the requests, `grants` decides.
"""

from collections.abc import Iterable

from hyperscale.jobs.allocator.events import (
    AllocatorEffect,
    AllocatorEvent,
    AnswerRequest,
    BecameAllocator,
    CoresRequested,
    LostAllocator,
    SendGrant,
)
from hyperscale.jobs.allocator.grants import (
    RECOVERED_AT_ONCE,
    GrantDecision,
    can_recover,
    crowded_jobs,
    decide_new_workflows,
    decide_recoveries,
    exclusive_workflow,
    running_workflows,
)
from hyperscale.jobs.allocator.pool import CorePool, Reservation
from hyperscale.jobs.allocator.queue import (
    AGE_S,
    NO_WORKERS,
    QUEUE_MAX,
    RESERVE_S,
    QueuedRequest,
    QueueSnapshot,
    RequestQueue,
    capacity_exceeded,
    no_worker_for,
)
from hyperscale.jobs.messages import (
    AnnounceCores,
    ReleaseCores,
    RequestCores,
    RequestCoresReply,
    RequestState,
)
from hyperscale.jobs.worker_events import WorkerDown, WorkerUp
from hyperscale.plan.placement import Placement
from hyperscale.sansio.core import Tick

FREED_S = 0.25
"""Cores of one workflow come free within this time; waiting requests are then served with all of
them, not with the first one alone."""
REBUILD_S = 5.0
"""A new allocator waits this long for announcements; exclusive workflows wait for all of them."""
SERVE_EVERY_S = 1.0
SERVE_SOON_S = 0.05
SERVE_AT_ONCE_MAX = 20_000
"""Requests times workers. Above it, events are collected for `SERVE_SOON_S` before the queue is
served, because serving takes long."""


class Allocator:
    """Grants cores while this node leads the management group."""

    def __init__(self, *, queue_max: int = QUEUE_MAX, age_s: float = AGE_S) -> None:
        self._queue_max = queue_max
        self._leading_since_s: float | None = None  # None: another node is the allocator
        self.pool = CorePool()  # read-only for others
        self._queue = RequestQueue(age_s=age_s)
        self._serve_at_s: float | None = None
        self._freed_at_s: float | None = None  # first cores that came free while requests wait
        self._snapshot: QueueSnapshot | None = None  # None: out of date

    # --- reads ------------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        """True if this node is the allocator."""
        return self._leading_since_s is not None

    @property
    def is_rebuilt(self) -> bool:
        """True if every worker that is alive has announced its cores to this allocator."""
        return self.is_leading and not self.pool.silent

    @property
    def waiting(self) -> int:
        """Requests that wait for cores."""
        return sum(request.grant is None for request in self._queue.requests.values())

    @property
    def room(self) -> int:
        """How many more requests may wait."""
        return max(0, self._queue_max - self.waiting)

    def why_unmet(self, placements: Iterable[Placement]) -> str:
        """Say that no known worker can ever meet one of the placements; empty if that is not so,
        or not known."""
        if not self.is_rebuilt or not self.pool.workers:
            return ""
        return next(filter(None, map(self.pool.why_unmet, placements)), "")

    def longest_wait_s(self, *, now_s: float) -> float:
        """Return for how long the oldest request has waited; 0 if none waits."""
        waiting = (each for each in self._queue.requests.values() if each.grant is None)
        return max((now_s - each.waiting_since_s for each in waiting), default=0.0)

    def wake_at_s(self) -> float | None:
        """Return when the queue is served next; None on a node that is not the allocator."""
        return self._serve_at_s

    # --- events -----------------------------------------------------------------------------

    def handle(self, event: AllocatorEvent, *, now_s: float) -> list[AllocatorEffect]:
        """Take one event; return answers and grants."""
        may_grant = False
        match event:
            case BecameAllocator(workers=workers):
                self._reset(CorePool(workers), leading_since_s=now_s)
            case LostAllocator():
                self._reset(CorePool(), leading_since_s=None)
            case CoresRequested(request=message, token=token):
                return [AnswerRequest(token, self._request(message, now_s))]
            case Tick():
                return self._serve(now_s)
            case _ if not self.is_leading:
                pass
            case WorkerUp(worker=worker):
                self.pool.worker_up(worker)
                may_grant = True
            case WorkerDown(worker=worker):
                self.pool.worker_down(worker)
                may_grant = True
            case AnnounceCores():
                may_grant = self._announced(event, now_s)
            case ReleaseCores():
                may_grant = self._released(event)
        return self._serve_soon(now_s) if may_grant else []

    def _reset(self, pool: CorePool, *, leading_since_s: float | None) -> None:
        """Forget everything: an allocator keeps no knowledge from an earlier time as leader."""
        self._leading_since_s = leading_since_s
        self.pool = pool
        self._queue = RequestQueue(age_s=self._queue.age_s)
        self._serve_at_s = leading_since_s
        self._freed_at_s = None
        self._snapshot = None

    def _announced(self, cores: AnnounceCores, now_s: float) -> bool:
        announcement = self.pool.announce(cores)
        if announcement is None:
            return False
        for request_id in announcement.now_held:
            if (request := self._queue.requests.get(request_id)) is not None:
                request.is_held = True
        if announcement.freed_cores and self.waiting and self._freed_at_s is None:
            self._freed_at_s = now_s
        return True

    def _request(self, message: RequestCores, now_s: float) -> RequestCoresReply:
        """Queue or renew a request. A grant of a new request follows as `SendGrant`."""
        if not self.is_leading or not self._queue.admit(message):
            return RequestCoresReply(
                request_id=message.request_id, state=RequestState.NOT_ALLOCATOR
            )
        request = self._queue.requests.get(message.request_id)
        if request is not None and request.grant is not None:
            if request.is_held or self.pool.reservations.has_request(request.id):
                request.heard_s = now_s
                return request.grant
            # Every granted core was lost with its worker: this is a new request.
            self._remove(request)
            request = None
        if request is None:
            if not self.room and not message.is_recovery:
                return self._refuse(message)
            request = self._queue.add(message, now_s=now_s)
            if self._snapshot is not None:
                self._snapshot.add(request.place(now_s))
            self._wake_by(request.settled_at_s)
        request.message, request.heard_s = message, now_s
        return self._waiting_reply(request, now_s)

    def _released(self, release: ReleaseCores) -> bool:
        request = self._queue.requests.get(release.request_id)
        if not self._queue.admit(release) or request is None:
            return False
        if release.part < 0:
            self._remove(request)
        else:
            reserved = self.pool.reservations.of_request(request.id)
            self.pool.reservations.remove(each for each in reserved if each.part == release.part)
        return True

    def _remove(self, request: QueuedRequest) -> None:
        """Delete a request and its reservations."""
        self.pool.reservations.remove(self.pool.reservations.of_request(request.id))
        del self._queue.requests[request.id]

    # --- grants -----------------------------------------------------------------------------

    def _wake_by(self, at_s: float) -> None:
        """Serve the queue at `at_s` or sooner."""
        self._serve_at_s = at_s if self._serve_at_s is None else min(self._serve_at_s, at_s)

    def _may_grant(self, now_s: float) -> bool:
        """Return True if the workers' announcements have arrived or are no longer waited for."""
        since_s = self._leading_since_s
        return since_s is not None and (self.is_rebuilt or now_s >= since_s + REBUILD_S)

    def _knows_all_grants(self, now_s: float) -> bool:
        """Return True if no grant of an earlier allocator can still be on its way to a worker."""
        since_s = self._leading_since_s
        return since_s is not None and self.is_rebuilt and now_s >= since_s + RESERVE_S

    def _serve_soon(self, now_s: float) -> list[AllocatorEffect]:
        """Serve the queue now, or together with later events if serving takes long."""
        if len(self._queue.requests) * len(self.pool.workers) <= SERVE_AT_ONCE_MAX:
            return self._serve(now_s)
        self._wake_by(now_s + SERVE_SOON_S)
        return []

    def _serve(self, now_s: float) -> list[AllocatorEffect]:
        """Drop expired requests and grant cores to waiting ones, recoveries first."""
        if self._leading_since_s is None:
            return []
        self._snapshot = None
        for request in self._queue.expired(now_s=now_s):
            self._remove(request)
        self._serve_at_s = now_s + SERVE_EVERY_S
        if not self._may_grant(now_s):
            self._wake_by(self._leading_since_s + REBUILD_S)
            return []
        waiting = self._queue.waiting(now_s=now_s)
        settled, settle_at_s = self._queue.settled(waiting, self.pool.reservations, now_s=now_s)
        for at_s in settle_at_s:
            self._wake_by(at_s)
        recoveries = [request for request in settled if request.message.is_recovery]
        decisions = decide_recoveries(self.pool, self._queue, recoveries)
        effects = [self._grant(decision, now_s) for decision in decisions]
        if len(decisions) == RECOVERED_AT_ONCE:
            # The other recoveries come next, before new workflows get cores.
            self._wake_by(now_s + SERVE_SOON_S)
            return effects
        if self._freed_at_s is not None and now_s < self._freed_at_s + FREED_S:
            self._wake_by(self._freed_at_s + FREED_S)
            return effects
        self._freed_at_s = None
        decisions = decide_new_workflows(
            self.pool,
            self._queue,
            [request for request in settled if not request.message.is_recovery],
            may_start_exclusive=self._knows_all_grants(now_s),
            now_s=now_s,
        )
        return effects + [self._grant(decision, now_s) for decision in decisions]

    def _grant(self, decision: GrantDecision, now_s: float) -> AllocatorEffect:
        """Reserve the cores of a decision and grant them to its request."""
        request, message = decision.request, decision.request.message
        for index, share in enumerate(decision.shares):
            part = message.part if message.part >= 0 else index
            self.pool.reservations.add(
                Reservation(
                    request_id=request.id,
                    job=message.job,
                    workflow=message.workflow,
                    part=part,
                    worker=share.worker,
                    cores=share.cores,
                    shared=decision.shared,
                    within_job=decision.within_job,
                )
            )
        request.heard_s = now_s
        request.grant = RequestCoresReply(
            request_id=request.id,
            group=message.group,
            state=RequestState.GRANTED,
            shares=decision.shares,
            shared=decision.shared,
            within_job=decision.within_job,
        )
        return SendGrant(message.leader, request.grant)

    # --- replies to requests that wait ------------------------------------------------------

    def _refuse(self, message: RequestCores) -> RequestCoresReply:
        waiting = self.waiting
        return RequestCoresReply(
            request_id=message.request_id,
            state=RequestState.EXCEEDED,
            position=waiting + 1,
            retry_after_s=min(60.0, 1.0 + waiting / 100),
            reason=capacity_exceeded(waiting),
        )

    def _waiting_reply(self, request: QueuedRequest, now_s: float) -> RequestCoresReply:
        snapshot = self._snapshot = self._snapshot or self._make_snapshot(now_s)
        message = request.message
        if not self._may_grant(now_s):
            state, reason = RequestState.REBUILDING, snapshot.why_rebuilding(request)
        elif not self.pool.size:
            state, reason = RequestState.IMPOSSIBLE, NO_WORKERS
        elif unmet := self.pool.why_unmet(message.placement):
            state, reason = RequestState.IMPOSSIBLE, unmet
        elif message.is_recovery and not can_recover(self.pool, message):
            state, reason = RequestState.IMPOSSIBLE, no_worker_for(message.cores)
        else:
            state, reason = RequestState.QUEUED, snapshot.why_waiting(request, now_s)
        return RequestCoresReply(
            request_id=request.id,
            state=state,
            position=snapshot.position(request.place(now_s)),
            reason=reason,
        )

    def _make_snapshot(self, now_s: float) -> QueueSnapshot:
        waiting = self._queue.waiting(now_s=now_s)
        return QueueSnapshot(
            places=[request.place(now_s) for request in waiting],
            first=waiting[0],
            pool=self.pool,
            exclusive=exclusive_workflow(self.pool, self._queue),
            running=running_workflows(self.pool, self._queue),
            silent=sorted(self.pool.silent),
            certain_at_s=(self._leading_since_s or 0.0) + RESERVE_S,
            crowded=crowded_jobs(self.pool),
        )
