"""The life of an attempt on its worker: its states, the moves between them, its data and output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hyperscale.errors import InvariantError
from hyperscale.jobs.agent.events import PlaceEnded
from hyperscale.jobs.agent.fences import part_of
from hyperscale.jobs.agent.statistics import AttemptStatistics
from hyperscale.jobs.messages import AttemptId, Isolation, PartPhase, PreparePart


class AttemptState(Enum):
    """Where an attempt is on its worker."""

    WAITING = "waiting"  # for the places of the older attempt that it supersedes
    PREPARING = "preparing"  # executors import the code and run setup hooks
    SETTING_UP = "setting_up"  # executors wait for the context that setup left, or go on with it
    READY = "ready"  # every executor is prepared; the job leader has not started it
    RUNNING = "running"  # also while it counts down to its start
    STOPPING = "stopping"  # executors were told to stop; the places are still taken
    ENDED = "ended"  # all places are vacant; the result is kept until it is acknowledged


ATTEMPT_MOVES: Mapping[AttemptState, Mapping[AttemptState, str]] = {
    AttemptState.WAITING: {
        AttemptState.PREPARING: "the older attempt has left its places",
        AttemptState.ENDED: "stopped before it had places",
    },
    AttemptState.PREPARING: {
        AttemptState.SETTING_UP: "every executor waits for the context of setup",
        AttemptState.READY: "every executor is prepared",
        AttemptState.STOPPING: "stop, lease expired, or an executor died",
        AttemptState.ENDED: "preparing failed",
    },
    AttemptState.SETTING_UP: {
        AttemptState.READY: "every executor is prepared",
        AttemptState.STOPPING: "stop, lease expired, or an executor died",
        AttemptState.ENDED: "preparing failed",
    },
    AttemptState.READY: {
        AttemptState.RUNNING: "StartPart",
        AttemptState.STOPPING: "stop, lease expired, or an executor died",
        AttemptState.ENDED: "its only executor died",
    },
    AttemptState.RUNNING: {
        AttemptState.STOPPING: "stop, lease expired, or an executor failed",
        AttemptState.ENDED: "every executor has ended",
    },
    AttemptState.STOPPING: {AttemptState.ENDED: "every executor has ended"},
    AttemptState.ENDED: {},
}
"""Legal moves and what causes each."""

_PHASES = {
    AttemptState.WAITING: PartPhase.PREPARING,
    AttemptState.PREPARING: PartPhase.PREPARING,
    AttemptState.SETTING_UP: PartPhase.SETTING_UP,
    AttemptState.READY: PartPhase.READY,
    AttemptState.RUNNING: PartPhase.RUNNING,
    AttemptState.STOPPING: PartPhase.STOPPING,
    AttemptState.ENDED: PartPhase.FINISHED,
}

OUTPUT_BYTES_PER_S = 64 * 1024
OUTPUT_BURST_BYTES = 256 * 1024


class OutputBuffer:
    """What user code of one attempt printed and was not forwarded yet; limited by a rate.

    Pieces are numbered from `first` on, whichever job leader they are sent to, so that a
    repeated piece is recognised.
    """

    def __init__(self, *, first: int, now_s: float) -> None:
        self._next = first
        self._texts: dict[tuple[int, str], list[str]] = {}  # (place, stream) -> texts
        self._credit_bytes = float(OUTPUT_BURST_BYTES)
        self._filled_s = now_s
        self._dropped_bytes = 0

    def add(self, place: int, stream: str, text: str, *, now_s: float) -> None:
        """Keep a text, or count it as dropped if the rate is exceeded."""
        gained = (now_s - self._filled_s) * OUTPUT_BYTES_PER_S
        self._credit_bytes = min(OUTPUT_BURST_BYTES, self._credit_bytes + gained)
        self._filled_s = now_s
        size = len(text.encode("utf-8", "replace"))
        if size > self._credit_bytes:
            self._dropped_bytes += size
            return
        self._credit_bytes -= size
        self._texts.setdefault((place, stream), []).append(text)

    def take(self) -> list[tuple[int, int, str, str]]:
        """Remove and return all pieces: number, place, stream and text."""
        taken = [(*key, "".join(texts)) for key, texts in self._texts.items()]
        self._texts = {}
        if self._dropped_bytes:
            note = (
                f"[{self._dropped_bytes:,} bytes of output were dropped: the limit is "
                f"{OUTPUT_BYTES_PER_S // 1024} KiB/s]\n"
            )
            taken.append((taken[0][0] if taken else 0, "stderr", note))
            self._dropped_bytes = 0
        first = self._next
        self._next += len(taken)
        return [(number, *piece) for number, piece in enumerate(taken, first)]


@dataclass(frozen=True, slots=True)
class StopCause:
    """Why the agent stopped an attempt."""

    reason: str
    is_retryable: bool = False  # another worker may succeed


ROWS_EVERY_S = 1.0
"""How often the job leader hears how many rows were used."""
ROWS_LOW_EVERY_S = 0.1
"""... if less than half of what was granted last is left."""


class AttemptRows:
    """How many rows each slot of an attempt has used, and up to which limit it may."""

    def __init__(self, first: int, limit: int, places: tuple[int, ...]) -> None:
        self.limit = limit
        self._used = dict.fromkeys(sorted(places), first)
        self._low = (first + limit) // 2
        self._announced: list[int] | None = None
        self._announced_s = 0.0

    @property
    def used(self) -> list[int]:
        """Rows that each slot has used, in the order of the slots."""
        return list(self._used.values())

    def use(self, place: int, drawn: int) -> None:
        self._used[place] = max(self._used[place], drawn)

    def grant(self, limit: int) -> bool:
        """Raise the limit; return False if it is not higher than before."""
        if limit <= self.limit:
            return False
        self._low = (max(self._used.values()) + limit) // 2
        self.limit = limit
        return True

    def is_due(self, *, now_s: float) -> bool:
        """Return True if the job leader should hear of the use now; note that it does."""
        used = self.used
        is_low = max(used) >= self._low
        if not is_low and used == self._announced:
            return False
        every_s = ROWS_LOW_EVERY_S if is_low else ROWS_EVERY_S
        if self._announced is not None and now_s < self._announced_s + every_s:
            return False
        self._announced, self._announced_s = used, now_s
        return True

    def leader_changed(self) -> None:
        """Let the new job leader hear of the use soon."""
        self._announced = None


@dataclass(slots=True)
class Directives:
    """What the job leader may adjust while an attempt runs, as its executors know it."""

    changes: int = 0  # how many changes of the load
    rows: AttemptRows | None = None  # None: no feed deals each row once


@dataclass(slots=True)
class AttemptOnWorker:
    """An attempt that holds places, or waits for those of the attempt it supersedes."""

    command: PreparePart
    places: tuple[int, ...]
    state: AttemptState
    lease_until_s: float
    statistics: AttemptStatistics
    output: OutputBuffer
    stop_cause: StopCause | None = None
    announce_at_s: float = 0.0  # in the states SETTING_UP and READY
    set_up: bytes = b""  # what setup left here
    has_context: bool = False  # it has the context that setup left
    started_s: float | None = None  # when its load began, or will begin
    ends: dict[int, PlaceEnded] = field(default_factory=dict)  # by place
    vacated: set[int] = field(default_factory=set)
    directives: Directives = field(default_factory=Directives)
    is_weighed: bool = False  # its executors have the CPU weight of its priority

    def become(self, state: AttemptState) -> None:
        """The only writer of `state`."""
        if state not in ATTEMPT_MOVES[self.state]:
            raise InvariantError(f"{self.id}: {self.state.name} -> {state.name}")
        self.state = state

    @property
    def id(self) -> AttemptId:
        return self.command.attempt_id

    @property
    def group(self) -> int:
        return self.command.group

    @property
    def phase(self) -> PartPhase:
        """The state as job leaders see it."""
        return _PHASES[self.state]

    @property
    def is_live(self) -> bool:
        """True unless it was told to stop or has ended."""
        return self.state not in (AttemptState.STOPPING, AttemptState.ENDED)

    @property
    def is_announced(self) -> bool:
        """True if the job leader has to do something before the attempt goes on."""
        awaits_context = self.state is AttemptState.SETTING_UP and not self.has_context
        return awaits_context or self.state is AttemptState.READY

    @property
    def is_reported(self) -> bool:
        """True if its statistics are part of reports."""
        return self.state in (AttemptState.RUNNING, AttemptState.STOPPING)

    @property
    def remaining(self) -> tuple[int, ...]:
        """Places whose executor has not ended; the others may belong to other attempts by now."""
        return tuple(place for place in self.places if place not in self.ends)

    @property
    def is_leased(self) -> bool:
        """True if its executors stop when no job leader renews the lease."""
        return self.command.on_isolation is Isolation.STOP

    def is_expired(self, now_s: float) -> bool:
        """Return True if it must stop because its lease is over."""
        return (expires_at_s := self.expires_at_s) is not None and expires_at_s <= now_s

    @property
    def expires_at_s(self) -> float | None:
        """When the agent stops it unless the lease is renewed; None if the lease does not matter.

        An attempt that may continue in isolation still needs its lease until it is started.
        """
        needs_lease = self.is_leased or self.state is not AttemptState.RUNNING
        return self.lease_until_s if self.is_live and needs_lease else None


class WorkerAttempts(dict[AttemptId, AttemptOnWorker]):
    """The attempts on a worker that have not ended. Only `supervisor` adds and removes them."""

    def of_group(self, group: int) -> list[AttemptOnWorker]:
        return [attempt for attempt in self.values() if attempt.group == group]

    def of_part(self, attempt_id: AttemptId) -> list[AttemptOnWorker]:
        """Return the attempts of the same part."""
        part = part_of(attempt_id)
        return [attempt for attempt in self.values() if part_of(attempt.id) == part]
