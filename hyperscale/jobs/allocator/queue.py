"""The requests of job leaders: which wait, in which order they are served, and until when.

A request's place in the queue follows from its rank, which grows while the request waits, then
first come first served. Requests that arrive together are served together, and so are the
workflows of one job that become ready in the same moment. A request that waits is answered with its
position in the queue and why it waits (`QueueSnapshot`).
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hyperscale.jobs.allocator.pool import CorePool, Reservations
from hyperscale.jobs.messages import ReleaseCores, RequestCores, RequestCoresReply
from hyperscale.jobs.provisioner import RANK, SHARED_PER_WORKER_MAX, Claim, Provisioner
from hyperscale.plan import Priority
from hyperscale.plan.placement import ANYWHERE, Placement

SETTLE_S = 0.03
"""Requests that arrive within this time of the first one are served together with it."""
TOGETHER_S = 1.5
"""How long a request waits for the other workflows of its job that became ready with it.
Longer than the interval at which requests are repeated. Without it, the workflow whose request
arrives first would get all the cores."""
FORGET_S = 5.0
"""A waiting request that was not repeated for this long has no job leader any more."""
RESERVE_S = 15.0
"""A grant that was neither requested again nor held for this long was not used."""
AGE_S = 30.0
"""Each time a request has waited this long, its rank grows by one; after the first time no later
request passes it."""
QUEUE_MAX = 1000
NO_WORKERS = "there are no workers that take work"
_RECOVERY_RANK = 100  # ahead of every other request, however long that has waited

WorkflowOfJob = tuple[str, str]  # job, workflow
Place = tuple[float, float, int]  # negated rank, start of the wait, order of arrival


@dataclass(slots=True)
class QueuedRequest:
    """A request: it waits until `grant` is set."""

    message: RequestCores
    waiting_since_s: float  # includes the time it waited at earlier allocators
    arrived_s: float
    settled_at_s: float  # not served before: others may arrive until then
    heard_s: float
    order: int
    age_s: float
    grant: RequestCoresReply | None = None
    is_held: bool = False  # a worker has announced that it holds a share of the grant

    @property
    def id(self) -> str:
        return self.message.request_id

    @property
    def claim(self) -> Claim:
        message = self.message
        return Claim(message.request_id, message.priority, message.is_test, message.vus)

    @property
    def workflow(self) -> WorkflowOfJob:
        return self.message.job, self.message.workflow

    @property
    def is_exclusive(self) -> bool:
        """True if it waits for an idle pool. A recovery does not, whatever its workflow is."""
        return self.is_of_exclusive_workflow and not self.message.is_recovery

    @property
    def is_of_exclusive_workflow(self) -> bool:
        return self.message.is_test and self.message.priority is Priority.EXCLUSIVE

    def place(self, now_s: float) -> Place:
        """Return the sort key of the queue: smaller is served sooner."""
        return -self._rank(now_s), self.waiting_since_s, self.order

    def has_aged(self, now_s: float) -> bool:
        """Return True if it has waited so long that no later request may pass it."""
        return now_s >= self.waiting_since_s + self.age_s

    def _rank(self, now_s: float) -> float:
        if self.message.is_recovery:
            return _RECOVERY_RANK
        # Workflows that are not tests are short, and other workflows wait for them.
        base = RANK[self.message.priority] if self.message.is_test else len(RANK)
        return base + int((now_s - self.waiting_since_s) / self.age_s)


class RequestQueue:
    """The requests of job leaders, waiting and granted."""

    def __init__(self, *, age_s: float = AGE_S) -> None:
        self.age_s = age_s
        self.requests: dict[str, QueuedRequest] = {}  # by id
        self._terms: dict[int, int] = {}  # group -> newest term seen of its job leader
        self._arrivals = 0
        self._settled_at_s: float | None = None  # of the requests that arrived last

    def admit(self, message: RequestCores | ReleaseCores) -> bool:
        """Note the term of a message; return False if its sender is a deposed job leader."""
        newest = max(message.term, self._terms.get(message.group, message.term))
        self._terms[message.group] = newest
        return message.term == newest

    def add(self, message: RequestCores, *, now_s: float) -> QueuedRequest:
        """Queue a new request."""
        self._arrivals += 1
        if self._settled_at_s is None or now_s >= self._settled_at_s:
            self._settled_at_s = now_s + SETTLE_S
        request = QueuedRequest(
            message,
            waiting_since_s=now_s - max(0.0, message.waited_s),
            arrived_s=now_s,
            settled_at_s=self._settled_at_s,
            heard_s=now_s,
            order=self._arrivals,
            age_s=self.age_s,
        )
        self.requests[message.request_id] = request
        return request

    def expired(self, *, now_s: float) -> list[QueuedRequest]:
        """Return waiting requests without a job leader, and grants that were not used."""
        return [
            request
            for request in self.requests.values()
            if now_s >= request.heard_s + (FORGET_S if request.grant is None else RESERVE_S)
        ]

    def waiting(self, *, now_s: float) -> list[QueuedRequest]:
        """Return the waiting requests in the order in which they are served."""
        waiting = [request for request in self.requests.values() if request.grant is None]
        return sorted(waiting, key=lambda request: request.place(now_s))

    def settled(
        self, waiting: Sequence[QueuedRequest], reservations: Reservations, *, now_s: float
    ) -> tuple[list[QueuedRequest], list[float]]:
        """Return the requests that may be served now, and when the others may be."""
        arrived = Counter(
            request.message.job
            for request in self.requests.values()
            if not request.message.is_recovery
            and (request.grant is None or reservations.has_request(request.id))
        )
        until_s: dict[str, float] = {}
        for request in waiting:
            message = request.message
            misses_others = not message.is_recovery and message.together > arrived[message.job]
            at_s = request.arrived_s + TOGETHER_S if misses_others else request.settled_at_s
            unit = _served_with(request)
            until_s[unit] = max(at_s, until_s.get(unit, at_s))
        settled = [request for request in waiting if now_s >= until_s[_served_with(request)]]
        return settled, [at_s for at_s in until_s.values() if now_s < at_s]


@dataclass(slots=True)
class QueueSnapshot:
    """Queue and pool as they were when the first waiting request was answered.

    Every request is repeated each second, so a snapshot is used until the queue is served again.
    """

    places: list[Place]  # sorted
    first: QueuedRequest
    pool: CorePool
    exclusive: WorkflowOfJob | None  # must run alone, and has begun
    running: list[WorkflowOfJob]
    silent: list[str]  # workers that have not announced their cores
    certain_at_s: float  # from then on no grant of an earlier allocator can be unknown
    crowded: frozenset[str]  # jobs on whose cores no further workflow may run
    _rooms: dict[Placement, tuple[int, int]] = field(default_factory=dict)

    def add(self, place: Place) -> None:
        """Add a request that arrived after the snapshot was made."""
        insort(self.places, place)

    def position(self, place: Place) -> int:
        """Return the position in the queue; 1 is served next."""
        return bisect_left(self.places, place) + 1

    def why_rebuilding(self, request: QueuedRequest) -> str:
        """Say why a new allocator grants nothing yet."""
        return f"{request.message.workflow} {self._waits_for_silent()}"

    def why_waiting(self, request: QueuedRequest, now_s: float) -> str:
        """Say why the request waits; empty if it is about to be granted."""
        placement = request.message.placement
        if self._room(placement)[0]:
            reason = self._reason(request, now_s)
        else:
            reason = f"waits for a worker that has {placement.describe()} to take work"
        return f"{request.message.workflow} {reason}" if reason else ""

    # --- predicates of sentences whose subject is the workflow ------------------------------

    def _reason(self, request: QueuedRequest, now_s: float) -> str:
        placement = request.message.placement
        size, free = self._room(placement)
        taken = size - free
        where = f" that have {placement.describe()}" if placement != ANYWHERE else ""
        busy = f"{taken} of {size}{where} {'is' if taken == 1 else 'are'} busy"
        if request.message.is_recovery:
            return f"needs {_cores(request.message.cores)} on another worker, and {busy}"
        if self.exclusive is not None:
            return f"waits for the EXCLUSIVE {_name(self.exclusive)} to end"
        if request.is_exclusive and (reason := self._why_not_alone(now_s)):
            return reason
        least, _ = Provisioner(size).range_of(request.claim)
        if least > free and not request.is_exclusive:
            limit = (
                f"; {SHARED_PER_WORKER_MAX} workflows share the cores of each worker of its job, "
                "and no more may"
            )
            return (
                f"needs {_cores(least)}, and {busy}{limit * (request.message.job in self.crowded)}"
            )
        if self.first is request:
            return ""
        return f"waits behind {_name(self.first.workflow)}"

    def _room(self, placement: Placement) -> tuple[int, int]:
        """Return the cores of the workers that meet a placement, and how many of them are free."""
        if placement not in self._rooms:
            workers, free = self.pool.meeting(placement), self.pool.free()
            self._rooms[placement] = (
                self.pool.size_of(workers),
                sum(free[name] for name in workers),
            )
        return self._rooms[placement]

    def _why_not_alone(self, now_s: float) -> str:
        """Say what keeps an exclusive workflow from getting the pool; empty if nothing does."""
        if others := self.running:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            return f"is EXCLUSIVE and waits for {_name(others[0])}{more} to end"
        if self.silent:
            return self._waits_for_silent()
        if now_s < self.certain_at_s:
            left_s = max(1, round(self.certain_at_s - now_s))
            return (
                f"is EXCLUSIVE and waits {left_s} s more, because the previous allocator may have "
                "granted cores that no worker holds yet"
            )
        return ""

    def _waits_for_silent(self) -> str:
        return f"waits until {', '.join(self.silent)} announced which cores are in use"


def capacity_exceeded(waiting: int) -> str:
    """Return the sentence that refuses a submission or a request because the queue is full."""
    return f"capacity exceeded: {waiting:,} workflows wait for cores, and no more may"


def _served_with(request: QueuedRequest) -> str:
    """The new workflows of a job are served together; a recovery is served alone."""
    return request.id if request.message.is_recovery else request.message.job


def no_worker_for(cores: int) -> str:
    """Say that no worker can take a lost part."""
    return f"no worker can take a part of {_cores(cores)}"


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"


def _name(workflow: WorkflowOfJob) -> str:
    job, name = workflow
    return f"{name} of {job}"
