"""Open attempts as their leader knows them, and the table of all attempts.

A new leader learns all of this from committed state and from workers, so it is not replicated.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hyperscale.errors import InvariantError
from hyperscale.jobs.committed.events import AttemptFault, AttemptRevoked
from hyperscale.jobs.leader.gaps import TAKEOVER_S, LoadTimeline
from hyperscale.jobs.messages import AnnouncePrepareFailed, AttemptId, DeliverResult, PartPhase

_PACE_SPAN_S = 0.05  # paces over shorter spans are noise
_EXTENSIONS_S = (15.0, 7.5, 3.75, 1.875, 1.0)
"""How much more time an attempt gets each time it asks and makes progress."""


class AttemptPhase(Enum):
    """Where an attempt is, as far as its leader knows."""

    DISPATCHED = "dispatched"  # committed; its worker has not confirmed it to this leader
    PREPARING = "preparing"  # its executors import the test and run setup hooks
    SETTING_UP = "setting_up"  # its executors wait for the context that setup left
    READY = "ready"
    RUNNING = "running"  # also counting down to its start
    STOPPING = "stopping"  # the stop command was sent; its load may go on
    ENDED = "ended"  # its load is over; its result has arrived or is under way
    LOST = "lost"  # given up; its revocation is to be committed


_A = AttemptPhase
ATTEMPT_MOVES: dict[AttemptPhase, frozenset[AttemptPhase]] = {
    # A new leader, or a reply that was overtaken, may find an attempt in any later phase.
    _A.DISPATCHED: frozenset(_A) - {_A.DISPATCHED},
    _A.PREPARING: frozenset({_A.SETTING_UP, _A.READY, _A.RUNNING, _A.STOPPING, _A.ENDED, _A.LOST}),
    _A.SETTING_UP: frozenset({_A.READY, _A.RUNNING, _A.STOPPING, _A.ENDED, _A.LOST}),
    _A.READY: frozenset({_A.RUNNING, _A.STOPPING, _A.ENDED, _A.LOST}),
    _A.RUNNING: frozenset({_A.STOPPING, _A.ENDED, _A.LOST}),
    _A.STOPPING: frozenset({_A.ENDED, _A.LOST}),
    _A.ENDED: frozenset({_A.LOST}),  # its worker died or forgot it before the result arrived
    _A.LOST: frozenset({_A.ENDED}),  # a result counts until the revocation is committed
}
"""The attempt leaves the table when its end is committed."""

NOT_READY = frozenset({_A.DISPATCHED, _A.PREPARING, _A.SETTING_UP})
BEGUN = frozenset({_A.RUNNING, _A.STOPPING, _A.ENDED})
PHASE_ON_WORKER = {
    PartPhase.PREPARING: _A.PREPARING,
    PartPhase.SETTING_UP: _A.SETTING_UP,
    PartPhase.READY: _A.READY,
    PartPhase.RUNNING: _A.RUNNING,
    PartPhase.STOPPING: _A.STOPPING,
    PartPhase.FINISHED: _A.ENDED,
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """The worker, slots and share of the load of an attempt; fixed when it is dispatched."""

    worker: str
    first_slot: int
    cores: int
    vus: int
    began_s: float = 0.0  # time since the start of the workflow when the last attempt had ended
    iterations_done: int = 0
    shared: bool = False  # beside other executors: no core was free
    within_job: bool = False  # beside executors of its own job


@dataclass(slots=True)
class Activity:
    """The progress of an attempt, and its deadline."""

    finished: int | None = None  # actions, in its last report
    moved_s: float = 0.0  # when `finished` last grew
    deadline_s: float | None = None  # set when the attempt starts
    check_at_s: float = 0.0  # the attempt can be neither late nor stuck before this instant
    extensions: int = 0
    extended_at: int | None = None  # `finished` when time was last granted

    def report(self, finished: int, *, now_s: float) -> None:
        if finished != self.finished:
            self.finished, self.moved_s = finished, now_s

    def extend(self, *, now_s: float) -> None:
        """Grant more time, a few times at most, and only if the attempt has made progress."""
        has_moved = self.extensions == 0 or self.finished != self.extended_at
        if self.extensions < len(_EXTENSIONS_S) and has_moved:
            if self.deadline_s is not None:
                self.deadline_s += _EXTENSIONS_S[self.extensions]
            self.extensions += 1
            self.extended_at = self.finished
            self.moved_s = max(self.moved_s, now_s)

    def extension_s(self, *, now_s: float) -> float:
        """Return how much time was granted, until that has passed."""
        has_lapsed = self.deadline_s is None or now_s >= self.deadline_s
        return 0.0 if has_lapsed else sum(_EXTENSIONS_S[: self.extensions])


@dataclass(slots=True)
class AttemptSetup:
    """What an attempt has to do with the setup of its workflow."""

    context: bytes = b""  # setup ran here and left this; to be committed
    shared_s: float | None = None  # when its worker got the context that setup left


@dataclass(slots=True)
class AttemptCopy:
    """What is known of the attempt on its worker."""

    times_unknown: int = 0  # how often its worker replied that it has no such attempt
    is_absent: bool = False  # its worker does not have it, so its reserved cores are free
    changes_known: int | None = None  # how many changes of the load it has
    change_sent_s: float | None = None  # when changes were last sent


@dataclass(slots=True)
class RowUse:
    """Rows that the slots of an attempt have used, of feeds that deal each row once."""

    used: list[int] = field(default_factory=list)  # by slot; empty: the workflow has no such feed
    used_s: float | None = None  # when that was heard
    pace: float = 0.0  # rows per second of its fastest slot
    known: int | None = None  # the limit that its worker knows
    sent: int = 0  # the limit that was sent last
    sent_s: float | None = None  # when

    def use(self, used: list[int], *, now_s: float) -> None:
        """Take what a worker says; a message that was overtaken takes nothing back."""
        if not used or len(used) != len(self.used):
            return
        grown = max(new - old for new, old in zip(used, self.used, strict=True))
        self.used = [max(pair) for pair in zip(used, self.used, strict=True)]
        if self.used_s is not None and now_s >= self.used_s + _PACE_SPAN_S:
            # A slot that waits for rows is slower than it could be: the pace falls slowly.
            self.pace = max(grown / (now_s - self.used_s), 0.7 * self.pace)
        if self.used_s is None or now_s >= self.used_s + _PACE_SPAN_S:
            self.used_s = now_s


@dataclass(slots=True)
class Attempt:
    """One open attempt of a part."""

    id: AttemptId
    assignment: Assignment
    is_inherited: bool  # dispatched under an earlier leader
    accepted_s: float  # when its worker took it, or when it was dispatched
    timeline: LoadTimeline = field(default_factory=LoadTimeline)
    activity: Activity = field(default_factory=Activity)
    setup: AttemptSetup = field(default_factory=AttemptSetup)
    copy: AttemptCopy = field(default_factory=AttemptCopy)
    rows: RowUse = field(default_factory=RowUse)
    command_sent_s: float | None = None  # when the last command about its phase went out
    fenced_until_s: float | None = None  # lost by silence: until then it may have load
    is_saturated: bool = False  # its load generators are at their limit
    result: DeliverResult | AnnouncePrepareFailed | None = None  # the first one; to be committed
    revocation: AttemptRevoked | None = None  # to be committed; decided when the attempt is lost
    _phase: AttemptPhase = AttemptPhase.DISPATCHED

    @property
    def phase(self) -> AttemptPhase:
        return self._phase

    def become(self, phase: AttemptPhase) -> None:
        """Move to `phase`. The only writer of it."""
        if phase is self._phase:
            return
        if phase not in ATTEMPT_MOVES[self._phase]:
            raise InvariantError(f"{self.id}: {self._phase.value} -> {phase.value}")
        self._phase = phase

    @property
    def worker(self) -> str:
        return self.assignment.worker

    @property
    def began_s(self) -> float:
        """The time since the start of the workflow when it began, or would begin."""
        since_s = self.timeline.since_s
        return self.assignment.began_s if since_s is None else since_s

    @property
    def was_accepted(self) -> bool:
        """True if the worker is known to have accepted the attempt."""
        return self._phase is not AttemptPhase.DISPATCHED or self.timeline.reported_s is not None

    @property
    def fault_of_loss(self) -> AttemptFault:
        """The fault, if the worker is lost: none if it had not accepted the attempt."""
        return AttemptFault.WORKER_LOST if self.was_accepted else AttemptFault.NONE

    def taken_by_worker_s(self) -> float:
        """Return when the worker accepted the attempt, at the latest."""
        timeline = self.timeline
        if timeline.reported_s is None:
            return self.accepted_s
        return min(self.accepted_s, timeline.reported_s - timeline.elapsed_s)

    def may_predate(self, alive_s: float, *, now_s: float) -> bool:
        """Return True if the attempt may have begun before a process that is `alive_s` old."""
        since_s = self.timeline.may_run_since_s
        return since_s is None or now_s - since_s > alive_s - TAKEOVER_S


class AttemptTable:
    """Every open attempt of a group, by id, by worker and by job."""

    def __init__(self) -> None:
        self._by_id: dict[AttemptId, Attempt] = {}
        self._by_worker: dict[str, dict[AttemptId, Attempt]] = {}
        self._by_job: dict[str, dict[tuple[str, int], Attempt]] = {}  # one for each part

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._by_id.values())

    def get(self, attempt: AttemptId) -> Attempt | None:
        return self._by_id.get(attempt)

    def on(self, worker: str, attempt: AttemptId) -> Attempt | None:
        """Return the attempt if it was dispatched to this worker."""
        found = self._by_id.get(attempt)
        return found if found is not None and found.worker == worker else None

    def of_worker(self, worker: str) -> list[Attempt]:
        return list(self._by_worker.get(worker, {}).values())

    def of_part(self, job: str, workflow: str, part: int) -> Attempt | None:
        return self._by_job.get(job, {}).get((workflow, part))

    def of_job(self, job: str) -> list[Attempt]:
        return list(self._by_job.get(job, {}).values())

    def workers(self) -> Collection[str]:
        """Return the workers with at least one open attempt."""
        return self._by_worker.keys()

    def add(self, attempt: Attempt) -> None:
        self._by_id[attempt.id] = attempt
        self._by_worker.setdefault(attempt.worker, {})[attempt.id] = attempt
        of_job = self._by_job.setdefault(attempt.id.job, {})
        of_job[attempt.id.workflow, attempt.id.part] = attempt

    def remove(self, attempt: Attempt) -> None:
        del self._by_id[attempt.id]
        _discard(self._by_worker, attempt.worker, attempt.id)
        if self.of_part(attempt.id.job, attempt.id.workflow, attempt.id.part) is attempt:
            _discard(self._by_job, attempt.id.job, (attempt.id.workflow, attempt.id.part))


def _discard(index: dict[str, dict[Any, Attempt]], key: str, entry: Any) -> None:
    del index[key][entry]
    if not index[key]:
        del index[key]
