"""What a leader knows of running parts beyond what is committed: phases, reports, rates.

All of it can be had again from the workers, so none of it is replicated. The elapsed time and
the seconds in a report are those of the workflow, whichever attempt it is of; the elapsed time
beside a report is that of the attempt.
"""

import math
from dataclasses import dataclass, field

import msgspec

from hyperscale.jobs.committed.events import AttemptRevoked, Checkpoint, PartEnded
from hyperscale.jobs.committed.state import Part
from hyperscale.jobs.leader.timeouts import extension_s
from hyperscale.jobs.messages import (
    AnnouncePrepareFailed,
    AttemptId,
    DeliverResult,
    PartPhase,
    PartProgress,
)
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.status import PartStatus
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.stats.merge import PartState, WorkflowStats
from hyperscale.stats.report import MetricReport, PartReport, SeriesPoint, StepReport
from hyperscale.stats.series import counted, thinned
from hyperscale.stats.view import LiveMeter

RATE_PER_CORE_MAX = 100_000
"""Bound of what a core can send in a second, where nothing was measured."""
SERIES_PARTS_MAX = 32
"""The histograms of seconds of workflows with more parts are for the live view only: all of
them would make a record too large for the log."""
COUNTED_POINTS_MAX = 1_600
"""Points without histograms of one such part, some 60 KB..."""
COUNTED_POINTS_OF_ALL = 400_000
"""... and of all of them together."""
SEGMENT_POINTS_MAX = 1_000
"""Points of all steps together that stay of an attempt that was given up, the newest."""
_RATE_MARGIN = 1.25
_OTHERS_MARGIN = 2.0  # for one of which only is known how fast others of its workflow were
_MERGE_S = 0.15  # how much older one core's share of a report may be than another's
_CLOCKS_S = 1.0  # how far the clocks of two managers may be apart
_RATE_SPAN_S = 0.4  # rates over less are noise

Seconds = dict[str, dict[int, SeriesPoint]]
"""By step and second."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PartReport)


def encode_report(report: PartReport) -> bytes:
    return _encoder.encode(report)


def decode_report(data: bytes) -> PartReport | None:
    """None for no report, and for one that cannot be read: statistics end no job."""
    try:
        return _decoder.decode(data) if data else None
    except (msgspec.MsgspecError, ValueError):
        return None


def work_of(report: PartReport) -> tuple[int, int]:
    """Requests handed to the kernel (where a protocol does not count them, finished steps), and
    all that was finished."""
    sent, finished = 0, report.iterations
    for step in report.steps:
        counts = step.counts
        sent += max(counts.sent, counts.total)
        finished += counts.total
    return sent, finished


def whole(state: PartState, *, seconds: Seconds | None = None) -> PartReport:
    """The latest report with the latest histograms in it, as they came before or with it. Only
    the last of an attempt has phases and seconds: of others they are told again if need be."""
    report = state.report
    is_last = seconds is not None
    steps = [
        StepReport(
            name=step.name,
            counts=step.counts,
            latency=state.latency(step.name),
            phases=(dict(state.phases(step.name)) or None) if is_last else None,
            series=_in_order(seconds.get(step.name, {})) if seconds else [],
        )
        for step in report.steps
    ]
    metrics: list[MetricReport] = [
        msgspec.structs.replace(metric, distribution=state.distribution(metric.name))
        for metric in report.metrics
    ]
    return msgspec.structs.replace(report, steps=steps, metrics=metrics)


def _in_order(points: dict[int, SeriesPoint]) -> list[SeriesPoint]:
    return [points[second] for second in sorted(points)]


@dataclass(slots=True)
class LiveRun:
    """One open run as its leader sees it."""

    id: AttemptId
    worker: str
    parts: int  # of its workflow
    first_slot: int
    cores: int
    vus: int
    began_s: float  # of the part's duration, done by earlier attempts
    iterations_done: int
    is_inherited: bool  # dispatched under another leader
    shared: bool = False
    phase: PartPhase | None = None  # None: not heard of yet
    sent_s: float = float("-inf")  # when the last command about its phase went out
    opened_s: float = 0.0
    started_s: float | None = None  # when its load began, as far as this leader knows
    maybe_s: float | None = None  # from when on it may have begun, for all this leader knows
    deadline_s: float = float("inf")
    state: PartState | None = None
    elapsed_s: float = 0.0
    iterations: int = 0
    report_s: float | None = None  # when the last report came
    # No later than its load began: when it was told to, or as the fastest report has it.
    origin_s: float = float("inf")
    sent: int = 0  # requests, as the last report has them
    rates: list[float] = field(default_factory=list)  # of requests, between reports, newest last
    seconds: Seconds = field(default_factory=dict)
    actions: int = -1
    moved_s: float = 0.0  # when an action finished for the last time
    missing: int = 0  # how often its worker said it has no such run
    # Given up as its lease is over: until then a slow clock may think otherwise.
    quiet_s: float = float("-inf")
    is_saturated: bool = False  # its generators are at their limit
    is_refused: bool = False  # its worker has said that it does not and will not have it
    extensions: int = 0
    extended_at: int = -1  # actions when time was granted last
    result: DeliverResult | AnnouncePrepareFailed | None = None  # to be committed

    @property
    def is_given_up(self) -> bool:
        """Whether it is to be revoked for its silence. Then its lease is renewed no more, also
        if its worker is heard again: the next attempt begins when this one is over."""
        return self.quiet_s > float("-inf")

    @property
    def was_accepted(self) -> bool:
        """Whether a worker is known to have taken it."""
        return self.phase is not None or self.state is not None

    @property
    def accepted_s(self) -> float:
        """By when a worker had taken it, as far as is known."""
        if self.report_s is None:
            return self.opened_s
        return min(self.opened_s, self.report_s - self.elapsed_s)

    def may_be_older_than(self, alive_s: float, now_s: float) -> bool:
        """Whether it may have been there before a process that has been alive so long."""
        return self.maybe_s is None or now_s - self.maybe_s > alive_s - _CLOCKS_S

    def take(self, progress: PartProgress, *, now_s: float) -> bool:
        """One report. False if it is older than what is known."""
        report = progress.report
        if self.state is not None and report.sequence <= self.state.report.sequence:
            return False
        sent, actions = work_of(report)
        self._rate(sent, progress.elapsed_s)
        if self.state is None:
            self.state = PartState(report)
        else:
            self.state.apply(report)
        self._keep_seconds(report)
        self.elapsed_s = max(self.elapsed_s, progress.elapsed_s)
        self.iterations = report.iterations
        self.report_s = now_s
        self.origin_s = min(self.origin_s, now_s - progress.elapsed_s)
        if actions != self.actions:
            self.actions, self.moved_s = actions, now_s
        if self.phase is not PartPhase.STOPPING:
            self.phase = progress.phase
        if self.started_s is None:
            self.started_s = now_s - progress.elapsed_s
        return True

    def remember(self, part: Part, *, age_s: float, now_s: float) -> None:
        """What was committed of it, `age_s` ago, for a leader that has heard nothing yet."""
        self.maybe_s = now_s - age_s
        self.origin_s = self.maybe_s - _CLOCKS_S
        report = decode_report(part.report)
        if report is not None:
            self.state = PartState(report)
            self.elapsed_s, self.iterations = part.elapsed_s, part.iterations
            self.sent, self.actions = work_of(report)
            if part.elapsed_s > 0:
                self.rates = [self.sent / part.elapsed_s]
            self.moved_s = now_s
            self.report_s = now_s - age_s
            self.origin_s = self.report_s - part.elapsed_s - _CLOCKS_S

    def _keep_seconds(self, report: PartReport) -> None:
        """Each is told until it has been heard, and a worker that dies tells none again."""
        if self.parts > SERIES_PARTS_MAX:
            return
        newest = SEGMENT_POINTS_MAX // max(1, len(report.steps))  # of each
        for step in report.steps:
            kept = self.seconds.setdefault(step.name, {})
            if report.series_s > 1:  # it holds all of them, the old ones together
                kept.clear()
            kept.update((point.second, point) for point in step.series)
            while len(kept) > newest:
                del kept[min(kept)]

    def _rate(self, sent: int, elapsed_s: float) -> None:
        before, self.sent = self.sent, sent
        span_s = elapsed_s - self.elapsed_s
        if self.state is None:
            if elapsed_s > _RATE_SPAN_S:
                self.rates.append(self.sent / elapsed_s)
        elif span_s >= _RATE_SPAN_S:
            self.rates.append((self.sent - before) / span_s)
            del self.rates[:-10]

    def extend(self, *, now_s: float) -> float:
        """More time for one that asks for it and gets somewhere. 0: no."""
        granted_s = extension_s(self.extensions)
        has_moved = self.extensions == 0 or self.actions != self.extended_at
        if not granted_s or not has_moved:
            return 0.0
        self.extensions += 1
        self.extended_at = self.actions
        self.deadline_s += granted_s
        self.moved_s = max(self.moved_s, now_s)
        return granted_s

    def checkpoint(self, *, now_s: float) -> Checkpoint:
        return Checkpoint(
            workflow=self.id.workflow,
            part=self.id.part,
            attempt=self.id.attempt,
            elapsed_s=self.elapsed_s,
            iterations=self.iterations,
            report=b"" if self.state is None else encode_report(whole(self.state)),
            age_s=max(0.0, now_s - self.heard_until_s()),
        )

    def revocation(self, reason: str, *, unheard: "Unheard", costs_retry: bool) -> AttemptRevoked:
        """The end of an attempt that reports no more: what it did, and what it may have done."""
        return AttemptRevoked(
            job=self.id.job,
            workflow=self.id.workflow,
            part=self.id.part,
            attempt=self.id.attempt,
            reason=reason,
            report=self._last_report(),
            elapsed_s=self.elapsed_s,
            iterations=self.iterations,
            gap_s=unheard.seconds,
            requests_max=unheard.requests_max,
            costs_retry=costs_retry,
        )

    def _last_report(self) -> bytes:
        state = self.state
        return b"" if state is None else encode_report(whole(state, seconds=self.seconds))

    def ending(
        self, status: PartStatus, error: str | None, result: DeliverResult | None = None
    ) -> PartEnded:
        """The end of an attempt that is the last of its part."""
        report = b""
        if result is not None and result.report is not None:
            kept = result.report
            if self.parts > SERIES_PARTS_MAX:
                points_max = min(COUNTED_POINTS_MAX, COUNTED_POINTS_OF_ALL // self.parts)
                kept = thinned(counted(kept, timed_max=0), points_max=points_max)
            report = encode_report(kept)
        return PartEnded(
            job=self.id.job,
            workflow=self.id.workflow,
            part=self.id.part,
            attempt=self.id.attempt,
            status=status,
            error=error,
            report=report,
            provided=[] if result is None else result.provided,
            elapsed_s=0.0 if result is None else result.elapsed_s,
            was_saturated=result is not None and result.was_saturated,
        )

    def unheard(self, until_s: float, *, others_rate: float) -> "Unheard":
        """What it may have done until then, when its load was over. `others_rate`: what others
        of its workflow have sent per core and second."""
        since_s = self.heard_until_s()
        if until_s <= since_s:
            return NOTHING_UNHEARD
        seconds = until_s - since_s
        if self.rates:
            rate = max(self.rates) * _RATE_MARGIN
        else:
            rate = self.cores * (others_rate * _OTHERS_MARGIN or RATE_PER_CORE_MAX)
        # However low the rate was, each of its users may have sent one just then.
        return Unheard(seconds, max(self.vus, math.ceil(rate * (seconds + _MERGE_S))))

    def heard_until_s(self) -> float:
        """Up to when its load is known; infinite if it never began. A report may have been
        under way for long."""
        if self.report_s is not None:
            return min(self.report_s, self.origin_s + self.elapsed_s)
        begun_s = [each for each in (self.maybe_s, self.started_s) if each is not None]
        return min(begun_s, default=float("inf"))


@dataclass(frozen=True, slots=True)
class Unheard:
    """How long a run may have gone on unheard, and at most how many requests that makes."""

    seconds: float
    requests_max: int


NOTHING_UNHEARD = Unheard(0.0, 0)


class LiveWorkflow:
    """The merged statistics of a workflow while it runs."""

    def __init__(self, plan: WorkflowPlan) -> None:
        self.plan = plan
        self.stats = WorkflowStats(plan)
        self.meter = LiveMeter(self.stats)
        self.thresholds = thresholds_of(plan)
        self.has_abort = any(threshold.abort_on_fail for threshold in self.thresholds)
        self.rate_per_core = 0.0  # of requests: the highest of any part, as measured
        self._steps = {name for name, _ in self.stats.steps}

    def take(
        self,
        report: PartReport,
        *,
        attempt: int,
        rate_per_core: float,
        state: PartState | None = None,
    ) -> None:
        """Reports of steps the plan does not know are left out: a worker is not trusted."""
        if report.workflow == self.plan.name and all(s.name in self._steps for s in report.steps):
            self.stats.apply(report, attempt=attempt, state=state)
            self.rate_per_core = max(self.rate_per_core, rate_per_core)

    def remember(self, parts: list[Part]) -> None:
        """What is committed of its parts: segments, ends, checkpoints."""
        for part in parts:
            of_attempts = [(each.attempt, each.elapsed_s, each.report) for each in part.segments]
            of_attempts.append((part.attempt, part.elapsed_s, part.report))
            for attempt, elapsed_s, data in of_attempts:
                report = decode_report(data)
                if report is not None:
                    rate = work_of(report)[0] / elapsed_s if elapsed_s > _RATE_SPAN_S else 0.0
                    self.take(report, attempt=attempt, rate_per_core=rate / part.cores)
