"""What a worker sends to job leaders without being asked: when, and to which one.

Owns who leads which group, the interval of reports, forwarded output, and the delivery of
results. The attempts and their states belong to `supervisor`.
"""

import zlib
from dataclasses import dataclass

from hyperscale.jobs.agent.attempts import AttemptOnWorker, AttemptState, WorkerAttempts
from hyperscale.jobs.agent.events import (
    AgentEffect,
    PlacePrinted,
    PlaceReported,
    ReportAnswered,
    SendMessage,
    SendReport,
    UsageMeasured,
)
from hyperscale.jobs.agent.results import AttemptEnd
from hyperscale.jobs.messages import (
    AnnounceReady,
    AnnounceRows,
    AnnounceSetUp,
    AttemptId,
    Backpressure,
    ForwardOutput,
    PartProgress,
    ReportProgress,
)

READY_EVERY_S = 1.0
OUTPUT_EVERY_S = 0.25
NOTHING_TO_REPORT_S = 0.5
"""A group without anything to report is looked at again after this time."""

PROGRESS_S = {
    Backpressure.NONE: 0.5,
    Backpressure.THROTTLE: 1.0,
    Backpressure.BATCH: 2.0,
    Backpressure.REJECT: 5.0,  # a probe: without it the worker would not learn of the relief
}

RESEND_FIRST_S = 1.0
RESEND_MOST_S = 10.0
RESEND_TO_ALL_S = 5.0
"""While the job leader is unknown, results go to every manager, but less often."""
RESEND_FOR_S = 600.0
"""After this time a result stays on disk until a job leader lists the attempts."""


class StampClock:
    """The worker's clock in milliseconds; every start of the worker continues at a later value.

    A stamp counts from the worker's incarnation, so that a stamp taken before a restart, or
    before a reboot, lies before the start of this process.
    """

    def __init__(self, incarnation: int, *, now_s: float) -> None:
        self.incarnation = incarnation
        self._began_s = now_s

    def stamp_ms(self, now_s: float) -> int:
        return self.incarnation + self.alive_ms(now_s)

    def alive_ms(self, now_s: float) -> int:
        """Return how long this process has been running."""
        return int((now_s - self._began_s) * 1000)

    def instant_s(self, stamp_ms: int) -> float:
        return self._began_s + (stamp_ms - self.incarnation) / 1000


@dataclass(slots=True)
class PendingResult:
    """The end of an attempt that is not acknowledged yet: sent again until it is."""

    message: AttemptEnd
    is_stored: bool  # on disk, or not to be stored
    since_s: float
    send_at_s: float
    interval_s: float = RESEND_FIRST_S

    def wake_at_s(self) -> float | None:
        """Return when it is sent next; None until it is stored, and after `RESEND_FOR_S`."""
        is_silent = not self.is_stored or self.send_at_s > self.since_s + RESEND_FOR_S
        return None if is_silent else self.send_at_s


@dataclass(slots=True)
class ReportChannel:
    """The reports of one group's attempts to its job leader."""

    next_s: float
    level: Backpressure = Backpressure.NONE
    is_in_flight: bool = False  # the last report is not answered
    # Workers that start together must not report together: the second report is earlier by this.
    ahead_s: float = 0.0

    def wake_at_s(self) -> float | None:
        """Return when the next report is due; None while the last one is not answered."""
        return None if self.is_in_flight else self.next_s

    def sent(self, *, now_s: float) -> None:
        """Schedule the next report."""
        self.is_in_flight = True
        interval_s = PROGRESS_S[self.level]
        # A report that was a little late does not delay the next one.
        due_s = max(self.next_s, now_s - interval_s / 2)
        self.next_s = due_s + interval_s - self.ahead_s
        self.ahead_s = 0.0

    def answered(self, level: Backpressure | None, *, now_s: float) -> None:
        """Adapt the interval to the backpressure of the reply; None: the call failed."""
        self.is_in_flight = False
        if level is not None and level is not self.level:
            relief_s = PROGRESS_S[self.level] - PROGRESS_S[level]
            self.level = level
            self.next_s = max(now_s, self.next_s - relief_s)


class ReportSchedule:
    """Reports, results and output of all attempts on one worker."""

    def __init__(self, worker: str, clock: StampClock, attempts: WorkerAttempts) -> None:
        self.worker = worker
        self.usage = UsageMeasured(0.0, 0.0)
        self.results: dict[AttemptId, PendingResult] = {}
        self._clock = clock
        self._attempts = attempts
        self._leaders: dict[int, str] = {}  # group -> node
        self._channels: dict[int, ReportChannel] = {}  # by group
        share = zlib.crc32(worker.encode()) / 2**32  # differs between workers, constant for each
        self._ahead_s = share * PROGRESS_S[Backpressure.NONE]
        self._output_at_s: float | None = None

    def wake_at_s(self) -> float | None:
        """Return when `tick` has something to send; None if nothing is scheduled."""
        due_s = [self._output_at_s]
        due_s += [result.wake_at_s() for result in self.results.values()]
        due_s += [channel.wake_at_s() for channel in self._channels.values()]
        due_s += [each.announce_at_s for each in self._attempts.values() if each.is_announced]
        return min((at_s for at_s in due_s if at_s is not None), default=None)

    def tick(self, *, now_s: float) -> list[AgentEffect]:
        """Send what is due."""
        effects: list[AgentEffect] = []
        for attempt in self._attempts.values():
            if attempt.is_announced and attempt.announce_at_s <= now_s:
                effects += self.announce(attempt, now_s=now_s)
        for group, channel in self._channels.items():
            if _is_due(channel.wake_at_s(), now_s):
                effects += self._report(group, channel, now_s)
        if _is_due(self._output_at_s, now_s):
            self._output_at_s = None
            for attempt in self._attempts.values():
                effects += self.forward_output(attempt)
        due = [result for result in self.results.values() if _is_due(result.wake_at_s(), now_s)]
        return effects + [self._send(result, now_s) for result in due]

    # --- job leaders ------------------------------------------------------------------------

    def follow(self, group: int, leader: str, *, now_s: float) -> None:
        """Redirect everything of a group to a new job leader, at once."""
        if self._leaders.get(group) == leader:
            return
        self._leaders[group] = leader
        self._channels.pop(group, None)
        for attempt in self._attempts.of_group(group):
            attempt.statistics.leader_changed()
            if attempt.directives.rows is not None:
                attempt.directives.rows.leader_changed()
            if attempt.is_reported:
                self.watch(group, now_s=now_s)
            else:
                attempt.announce_at_s = now_s
        self.resend_results(group, now_s=now_s)

    def answered(self, event: ReportAnswered, *, now_s: float) -> None:
        """Take the reply to a report: backpressure, or the name of another job leader."""
        channel, reply = self._channels.get(event.group), event.reply
        if channel is None or self._leaders.get(event.group) != event.to:
            return  # the report went to an earlier job leader
        channel.answered(None if reply is None else reply.backpressure, now_s=now_s)
        if reply is not None and reply.leader:
            self.follow(event.group, reply.leader, now_s=now_s)
        elif reply is not None:
            for attempt in self._attempts.of_group(event.group):
                attempt.statistics.acknowledge()

    # --- attempts ---------------------------------------------------------------------------

    def announce(self, attempt: AttemptOnWorker, *, now_s: float) -> list[AgentEffect]:
        """Tell the job leader that the attempt is ready to start, or waits for its context."""
        attempt.announce_at_s = now_s + READY_EVERY_S
        group, stamp_ms = attempt.group, self._clock.stamp_ms(now_s)
        message: AnnounceReady | AnnounceSetUp
        if attempt.state is AttemptState.READY:
            message = AnnounceReady(
                worker=self.worker, group=group, attempt_id=attempt.id, stamp_ms=stamp_ms
            )
        else:
            message = AnnounceSetUp(
                worker=self.worker,
                group=group,
                attempt_id=attempt.id,
                context=attempt.set_up,
                stamp_ms=stamp_ms,
            )
        leader = self._leaders.get(attempt.group, attempt.command.leader)
        return [SendMessage(leader, message)]

    def rows_used(
        self, attempt: AttemptOnWorker, event: PlaceReported, *, now_s: float
    ) -> list[AgentEffect]:
        """Note how many rows a slot has used; tell the job leader if it should hear of it."""
        rows, leader = attempt.directives.rows, self._leaders.get(attempt.group)
        if rows is None:
            return []
        rows.use(event.place, event.drawn)
        if leader is None or not attempt.is_reported or not rows.is_due(now_s=now_s):
            return []
        message = AnnounceRows(
            worker=self.worker,
            group=attempt.group,
            attempt_id=attempt.id,
            used=rows.used,
            limit=rows.limit,
        )
        return [SendMessage(leader, message)]

    def watch(self, group: int, *, now_s: float) -> None:
        """Report the attempts of a group from now on."""
        self._channels.setdefault(group, ReportChannel(next_s=now_s, ahead_s=self._ahead_s))

    def unwatch(self, group: int) -> None:
        """Stop reporting a group that has no attempts on this worker."""
        self._channels.pop(group, None)

    def printed(self, event: PlacePrinted, *, now_s: float) -> None:
        """Keep what an executor printed until it is forwarded."""
        attempt = self._attempts.get(event.attempt_id)
        if attempt is None:
            return
        attempt.output.add(event.place, event.stream, event.text, now_s=now_s)
        if self._output_at_s is None:
            self._output_at_s = now_s + OUTPUT_EVERY_S

    def forward_output(self, attempt: AttemptOnWorker) -> list[AgentEffect]:
        """Send what the attempt has printed since the last time."""
        leader = self._leaders.get(attempt.group)
        if leader is None:
            return []
        first = attempt.command.first_slot
        slots = {place: first + index for index, place in enumerate(sorted(attempt.places))}
        return [
            SendMessage(
                leader,
                ForwardOutput(
                    worker=self.worker,
                    group=attempt.group,
                    attempt_id=attempt.id,
                    slot=slots.get(place, first),
                    stream=stream,
                    text=text,
                    number=number,
                ),
            )
            for number, place, stream, text in attempt.output.take()
        ]

    # --- results ----------------------------------------------------------------------------

    def add_result(self, message: AttemptEnd, *, now_s: float, is_stored: bool = False) -> None:
        """Keep the end of an attempt until it is acknowledged; it is sent once it is stored."""
        self.results[message.attempt_id] = PendingResult(message, is_stored, now_s, now_s)

    def result_stored(self, attempt_id: AttemptId, *, now_s: float) -> list[AgentEffect]:
        """Send a result for the first time, unless it was acknowledged already."""
        result = self.results.get(attempt_id)
        if result is None:
            return []
        result.is_stored = True
        return [self._send(result, now_s)]

    def resend_results(self, group: int, *, now_s: float) -> list[AttemptId]:
        """Send the results of a group to a new job leader, at once; return their attempts."""
        found = [result for result in self.results.values() if result.message.group == group]
        for result in found:
            self.add_result(result.message, now_s=now_s, is_stored=result.is_stored)
        return [result.message.attempt_id for result in found]

    def _send(self, result: PendingResult, now_s: float) -> AgentEffect:
        leader = self._leaders.get(result.message.group)
        least_s = RESEND_TO_ALL_S if leader is None else 0.0
        result.send_at_s = now_s + max(result.interval_s, least_s)
        result.interval_s = min(result.interval_s * 1.5, RESEND_MOST_S)
        return SendMessage(leader, result.message)

    # --- reports ----------------------------------------------------------------------------

    def _report(self, group: int, channel: ReportChannel, now_s: float) -> list[AgentEffect]:
        reported = [attempt for attempt in self._attempts.of_group(group) if attempt.is_reported]
        parts = [
            PartProgress(
                attempt_id=attempt.id,
                report=report,
                elapsed_s=attempt.statistics.elapsed_s,
                phase=attempt.phase,
                wants_extension=attempt.state is AttemptState.RUNNING
                and attempt.statistics.has_long_actions(now_s=now_s),
            )
            for attempt in reported
            if (report := attempt.statistics.latest(now_s=now_s)) is not None
        ]
        leader = self._leaders.get(group)
        if leader is None or not parts:
            channel.next_s = now_s + NOTHING_TO_REPORT_S
            return []
        channel.sent(now_s=now_s)
        progress = ReportProgress(
            worker=self.worker,
            group=group,
            parts=parts,
            cpu=self.usage.cpu,
            memory=self.usage.memory,
            saturated=[each.id for each in reported if each.statistics.saturation.is_saturated],
        )
        return [SendReport(leader, progress)]


def _is_due(at_s: float | None, now_s: float) -> bool:
    return at_s is not None and at_s <= now_s
