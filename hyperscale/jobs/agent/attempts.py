"""What a worker's agent keeps of a run: while it is here, and afterwards until its result is
acknowledged. Also the pace of what is told about them. Pure data and arithmetic."""

from dataclasses import dataclass, field

from hyperscale.jobs.agent.events import Ended
from hyperscale.jobs.agent.merge import PartMerge
from hyperscale.jobs.messages import (
    AnnouncePrepareFailed,
    AttemptId,
    Backpressure,
    DeliverResult,
    Isolation,
    PartPhase,
    PreparePart,
)
from hyperscale.stats.report import PartReport
from hyperscale.stats.saturation import SaturationWatch

LIVE = (PartPhase.PREPARING, PartPhase.READY, PartPhase.RUNNING)

STILL_S = 10.0
"""An action that takes this long is worth a word, before the run is taken for stuck."""

RESEND_FIRST_S = 1.0
RESEND_MOST_S = 10.0
RESEND_UNASKED_S = 5.0
"""As long as no leader of the group is known, everyone is told, but not so often."""
RESEND_FOR_S = 600.0
"""After this a result waits, on disk, until somebody asks."""

PROGRESS_S = {
    Backpressure.NONE: 0.5,
    Backpressure.THROTTLE: 1.0,
    Backpressure.BATCH: 2.0,
    Backpressure.REJECT: 5.0,  # a probe: without it relief would never be heard of
}

OUTPUT_BYTES_PER_S = 64 * 1024
OUTPUT_BURST_BYTES = 256 * 1024


@dataclass(slots=True)
class Run:
    """A run that holds places, or waits for those of the one it supersedes."""

    command: PreparePart
    places: tuple[int, ...]
    lease_until_s: float
    merge: PartMerge
    saturation: SaturationWatch
    output: "OutputBuffer"
    phase: PartPhase = PartPhase.PREPARING
    is_waiting: bool = False  # for its predecessor to be gone
    is_prepared: bool = False
    stop_reason: str | None = None
    is_worth_retrying: bool = False  # it was stopped for a reason of the worker's, or its lease
    ready_again_s: float = 0.0
    ended: dict[int, Ended] = field(default_factory=dict)
    vacated: set[int] = field(default_factory=set)
    started_s: float | None = None  # when its load began, or will
    told_s: dict[int, float] = field(default_factory=dict)  # of this attempt, reported, by place
    unheard_s: float = 0.0  # the longest that one which was killed may have gone on beyond that
    actions: dict[int, int] = field(default_factory=dict)  # finished, by place
    moved_s: float = float("inf")  # when one finished for the last time

    @property
    def id(self) -> AttemptId:
        return self.command.run

    @property
    def group(self) -> int:
        return self.command.group

    @property
    def left(self) -> tuple[int, ...]:
        """Its places that have not ended: the others may be somebody else's by now."""
        return tuple(place for place in self.places if place not in self.ended)

    @property
    def _offset_s(self) -> float:
        return self.command.plan.offset_s(self.command.elapsed_s)

    @property
    def is_leased(self) -> bool:
        """Whether its executors stop when nobody renews."""
        return self.command.on_isolation is Isolation.STOP

    @property
    def can_expire(self) -> bool:
        """What has not begun is given up without a leader, whatever it would do later."""
        return self.phase in LIVE and (self.is_leased or self.phase is not PartPhase.RUNNING)

    def take(self, place: int, report: PartReport, *, now_s: float) -> None:
        self.merge.offer(place, report)
        self.saturation.observe(report)
        self.told_s[place] = report.elapsed_s - self._offset_s
        actions = sum(step.counts.total for step in report.steps)
        if self.actions.get(place) != actions:
            self.actions[place] = actions
            self.moved_s = now_s

    def plea(self, *, now_s: float) -> str:
        """Why it should not be taken for stuck, though no action of it has finished for long."""
        still_s = now_s - self.moved_s
        if still_s < STILL_S or self.phase is not PartPhase.RUNNING or not self.merge.vus:
            return ""
        return f"{self.merge.vus} virtual users have been in their steps for {still_s:.0f} s"

    def died(self, place: int, *, now_s: float) -> None:
        """An executor ended without a last report. By the end of its lease it sent no more."""
        if self.started_s is None:
            return
        over_s = min(now_s, self.lease_until_s) if self.is_leased else now_s
        told_until_s = self.started_s + self.told_s.get(place, 0.0)
        self.unheard_s = max(self.unheard_s, over_s - told_until_s)

    def elapsed_s(self) -> float:
        """Of this attempt."""
        return max(0.0, self.merge.elapsed_s - self._offset_s)


@dataclass(slots=True)
class Result:
    """The end of a run, told again and again until it is acknowledged."""

    message: DeliverResult | AnnouncePrepareFailed
    is_stored: bool
    until_s: float
    again_s: float
    wait_s: float = RESEND_FIRST_S

    @property
    def run(self) -> AttemptId:
        return self.message.run

    def wake_at_s(self) -> float:
        is_silent = not self.is_stored or self.again_s > self.until_s
        return float("inf") if is_silent else self.again_s

    def sent(self, *, now_s: float, is_leader_known: bool) -> None:
        least_s = 0.0 if is_leader_known else RESEND_UNASKED_S
        self.again_s = now_s + max(self.wait_s, least_s)
        self.wait_s = min(self.wait_s * 1.5, RESEND_MOST_S)

    def offer_anew(self, *, now_s: float) -> None:
        """Somebody new listens."""
        self.again_s = now_s
        self.wait_s = RESEND_FIRST_S
        self.until_s = now_s + RESEND_FOR_S


@dataclass(slots=True)
class Outlet:
    """The reports of one group's runs to its leader: when the next is due."""

    next_s: float
    level: Backpressure = Backpressure.NONE
    is_waiting: bool = False  # for the answer to the last
    # The second comes so much sooner: workers begin together and should not report together.
    ahead_s: float = 0.0

    def sent(self, *, now_s: float) -> None:
        self.is_waiting = True
        interval_s = PROGRESS_S[self.level]
        # One that was a little late makes the next no later.
        due_s = max(self.next_s, now_s - interval_s / 2)
        self.next_s = due_s + interval_s - self.ahead_s
        self.ahead_s = 0.0

    def answered(self, level: Backpressure | None, *, now_s: float) -> None:
        self.is_waiting = False
        if level is not None and level is not self.level:
            relief_s = PROGRESS_S[self.level] - PROGRESS_S[level]
            self.level = level
            self.next_s = max(now_s, self.next_s - relief_s)


class StampClock:
    """The worker's time as leaders carry it back: milliseconds that grow with every life.

    Counted on from the incarnation, so that a stamp of an earlier life, also of one before a
    reboot, lies before the beginning of this one.
    """

    def __init__(self, incarnation: int, *, now_s: float) -> None:
        self._incarnation = incarnation
        self._began_s = now_s

    def stamp_ms(self, now_s: float) -> int:
        return self._incarnation + int((now_s - self._began_s) * 1000)

    def alive_ms(self, now_s: float) -> int:
        return int((now_s - self._began_s) * 1000)

    def instant_s(self, stamp_ms: int) -> float:
        return self._began_s + (stamp_ms - self._incarnation) / 1000


class OutputBuffer:
    """What a run printed and nobody was told yet; bounded by a rate, with a note of the rest.

    Its pieces are numbered from `first` on, whoever they are told to, so that whoever hears of
    one again knows it.
    """

    def __init__(self, *, first: int, now_s: float) -> None:
        self._next = first
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._credit_bytes = float(OUTPUT_BURST_BYTES)
        self._filled_s = now_s
        self._dropped_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._texts) or self._dropped_bytes > 0

    def add(self, place: int, stream: str, text: str, *, now_s: float) -> None:
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
        """Number, place, stream and text of everything that waits."""
        taken = [(*key, "".join(texts)) for key, texts in self._texts.items()]
        self._texts = {}
        if self._dropped_bytes:
            note = f"[{self._dropped_bytes:,} bytes of output were too many to bring here]\n"
            taken.append((taken[0][0] if taken else 0, "stderr", note))
            self._dropped_bytes = 0
        first = self._next
        self._next += len(taken)
        return [(number, *piece) for number, piece in enumerate(taken, first)]
