"""Workers as a job leader knows them: whether they are alive, and how long their leases last.

A lease counts from a stamp of the worker's own clock that the leader echoes. Once the leader has
heard no new stamp for as long as a lease lasts, the worker has stopped by itself, whatever became
of renewals on their way.

A stamp is echoed only when it is *confirmed*: it had been heard when a majority of managers last
confirmed this leader. A successor cannot have been elected before that, so every lease that its
predecessors granted (frozen, cut off or slow to notice) counts from before its own election. The
successor waits as long as if it had heard every worker just then, and no longer.
"""

from dataclasses import dataclass
from enum import Enum

from hyperscale.errors import InvariantError
from hyperscale.jobs.leader.timeouts import LeaderTimeouts

STALLED_S = 1.0
"""A leader has work four times a second. If it did nothing for this long, it was stopped."""

Stamps = dict[str, tuple[int, float]]
"""By worker: the latest stamp, and when it arrived."""


class WorkerState(Enum):
    UP = "up"  # membership sees it
    SILENT = "silent"  # membership does not; it may still run what it was given
    DOUBTFUL = "doubtful"  # a process of it has ended, perhaps not the one that runs attempts
    GONE = "gone"  # its process has ended, and with it all it ran


_W = WorkerState
WORKER_MOVES: dict[WorkerState, frozenset[WorkerState]] = {
    _W.UP: frozenset({_W.SILENT, _W.DOUBTFUL, _W.GONE}),
    _W.SILENT: frozenset({_W.UP, _W.DOUBTFUL, _W.GONE}),
    _W.DOUBTFUL: frozenset({_W.UP, _W.GONE}),
    _W.GONE: frozenset(),
}
"""A worker that comes back after it was GONE is another process and gets a record of its own."""


@dataclass(slots=True)
class WorkerLiveness:
    """One worker process."""

    heard_s: float  # when its latest stamp arrived
    stamp_ms: int = 0  # the latest stamp of its clock
    confirmed_ms: int = 0  # the latest stamp that may be echoed
    confirmed_s: float | None = None  # when that stamp arrived
    renewed_s: float | None = None  # when the last renewal or question went out; None: due now
    rtt_s: float = 0.0
    ended_s: float | None = None  # since when connections to it are refused
    has_listed_attempts: bool = False  # it told this leader what it runs
    is_held: bool = False  # its silence is attributed to the network
    cpu: float = 0.0  # shares in use, as it reports them
    memory: float = 0.0
    _state: WorkerState = WorkerState.SILENT

    @property
    def state(self) -> WorkerState:
        return self._state

    @property
    def is_gone(self) -> bool:
        return self._state is WorkerState.GONE

    def become(self, state: WorkerState) -> None:
        """Move to `state`. The only writer of it."""
        if state is self._state:
            return
        if state not in WORKER_MOVES[self._state]:
            raise InvariantError(f"worker {self._state.value} -> {state.value}")
        self._state = state

    def failed(self, *, is_doubtful: bool, ended_s: float | None, now_s: float) -> None:
        """Note that a process of this worker has certainly ended."""
        self.become(WorkerState.DOUBTFUL if is_doubtful else WorkerState.GONE)
        self.ended_s = min(each for each in (self.ended_s, ended_s, now_s) if each is not None)
        self.has_listed_attempts = False
        self.renewed_s = None


class WorkerTable(dict[str, WorkerLiveness]):
    """Every worker this leader knows of. Looking up an unknown worker adds it."""

    def __init__(self, timeouts: LeaderTimeouts) -> None:
        self.now_s = 0.0  # when the event that is being handled happened
        self._timeouts = timeouts
        self._took_over_s = 0.0
        self._awake_s = 0.0

    def __missing__(self, worker: str) -> WorkerLiveness:
        return self.add(worker, WorkerState.SILENT)

    def add(self, worker: str, state: WorkerState) -> WorkerLiveness:
        """Begin a record for a process of this worker: nothing of an earlier process holds."""
        added = self[worker] = WorkerLiveness(heard_s=self.now_s, _state=state)
        return added

    def begin(self, workers: tuple[str, ...]) -> None:
        """Begin with the workers that membership sees. All stamps that earlier leaders echoed had
        arrived before now."""
        self._took_over_s = self._awake_s = self.now_s
        for worker in workers:
            self.add(worker, WorkerState.UP)

    def awake(self) -> None:
        """Forgive silence while this node itself was suspended: it has not read what arrived.

        Call it before anything is concluded from silence.
        """
        stalled_s = self.now_s - self._awake_s
        self._awake_s = self.now_s
        if stalled_s > STALLED_S:
            for worker in self.values():
                worker.heard_s = min(self.now_s, worker.heard_s + stalled_s)

    def heard(self, worker: str, stamp_ms: int) -> None:
        """Take a stamp. An older one was overtaken on its way and says nothing."""
        known = self[worker]
        if stamp_ms > known.stamp_ms:
            known.stamp_ms = stamp_ms
            known.ended_s = None
            known.heard_s = self.now_s

    def stamps(self) -> Stamps:
        """Return the latest stamps, which a question that is sent now may confirm."""
        return {
            name: (worker.stamp_ms, worker.heard_s)
            for name, worker in self.items()
            if worker.stamp_ms
        }

    def confirm(self, stamps: Stamps) -> None:
        """Confirm stamps that had arrived before a majority confirmed this leader."""
        for name, (stamp_ms, heard_s) in stamps.items():
            worker = self[name]
            if worker.confirmed_ms < stamp_ms <= worker.stamp_ms:
                worker.confirmed_ms, worker.confirmed_s = stamp_ms, heard_s

    def has_lease_time(self, worker: str) -> bool:
        """Return True if a lease from the confirmed stamp has at least half its time left."""
        confirmed_s = self[worker].confirmed_s
        return confirmed_s is not None and self.now_s <= confirmed_s + self._timeouts.lease_s / 2

    def unanswered(self, worker: str, *, refused_s: float | None) -> bool:
        """Take note of a missing reply; return True if it proves that the worker is gone.

        A refused connection proves that a process has ended. If membership sees no other, and has
        had the time to hear of one, it was the process in question.
        """
        if refused_s is None:
            return False
        known = self[worker]
        if known.ended_s is None:
            known.ended_s = refused_s
        is_proof = known.state is WorkerState.DOUBTFUL or (
            known.state is WorkerState.SILENT and self.now_s >= self._settled_s
        )
        if is_proof:
            known.become(WorkerState.GONE)
        return is_proof

    @property
    def _settled_s(self) -> float:
        """When membership here has heard all that the last leader knew."""
        return self._took_over_s + self._timeouts.settle_s

    def is_due(self, worker: WorkerLiveness) -> bool:
        """Return True if its leases are to be renewed or its attempts listed: each second, and once
        more when a refused connection becomes proof of its end."""
        renewed_s = worker.renewed_s
        if renewed_s is None:
            return True
        if worker.ended_s is not None and renewed_s < self._settled_s <= self.now_s:
            return True
        # Half a tick early rather than a whole tick late.
        return self.now_s >= renewed_s + self._timeouts.renew_s * 7 / 8

    def measured(self, worker: str, rtt_s: float) -> None:
        """Take a round trip. The lowest recent one counts: the others include time in queues."""
        known = self[worker]
        known.rtt_s = rtt_s if not known.rtt_s else min(rtt_s, known.rtt_s * 1.1)

    def stopped_at_s(self, worker: str, *, since_s: float) -> float:
        """Return when a silent worker has certainly stopped an attempt of `since_s`."""
        # An idle worker may not have been heard for long.
        heard_s = max(self[worker].heard_s, since_s)
        return heard_s + self._timeouts.lease_s + self._timeouts.silence_margin_s
