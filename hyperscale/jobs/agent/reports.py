"""What a worker sends to job leaders without being asked: when, and to which one.

Owns who leads which group, the interval of reports, forwarded output, and the delivery of
results. The attempts and their states belong to `worker_attempts`.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hyperscale.jobs.agent.attempts import AttemptOnWorker, AttemptState
from hyperscale.jobs.agent.events import (
    AgentEffect,
    ReportAnswered,
    SendMessage,
    SendReport,
    UsageMeasured,
)
from hyperscale.jobs.agent.results import PendingResult, PendingResults
from hyperscale.jobs.agent.stamps import StampClock
from hyperscale.jobs.messages import (
    AnnounceReady,
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

    def __init__(self, worker: str, clock: StampClock) -> None:
        self.worker = worker
        self.usage = UsageMeasured(0.0, 0.0)
        self.results = PendingResults()
        self._clock = clock
        self._leaders: dict[int, str] = {}  # group -> node
        self._channels: dict[int, ReportChannel] = {}  # by group
        share = zlib.crc32(worker.encode()) / 2**32  # differs between workers, constant for each
        self._ahead_s = share * PROGRESS_S[Backpressure.NONE]
        self._output_at_s: float | None = None

    def wake_at_s(self, attempts: Iterable[AttemptOnWorker]) -> float | None:
        """Return when `tick` has something to send; None if nothing is scheduled."""
        due_s = [self._output_at_s, self.results.wake_at_s()]
        due_s += [channel.wake_at_s() for channel in self._channels.values()]
        due_s += [
            attempt.announce_ready_at_s
            for attempt in attempts
            if attempt.state is AttemptState.READY
        ]
        return min((at_s for at_s in due_s if at_s is not None), default=None)

    def tick(self, attempts: Sequence[AttemptOnWorker], *, now_s: float) -> list[AgentEffect]:
        """Send what is due."""
        effects: list[AgentEffect] = []
        for attempt in attempts:
            if attempt.state is AttemptState.READY and attempt.announce_ready_at_s <= now_s:
                effects += self.announce_ready(attempt, now_s=now_s)
        for group, channel in list(self._channels.items()):
            wake_at_s = channel.wake_at_s()
            if wake_at_s is not None and wake_at_s <= now_s:
                effects += self._report(group, channel, attempts, now_s)
        if self._output_at_s is not None and self._output_at_s <= now_s:
            self._output_at_s = None
            for attempt in attempts:
                effects += self.forward_output(attempt)
        return effects + [self._send(result, now_s) for result in self.results.due(now_s=now_s)]

    # --- job leaders ------------------------------------------------------------------------

    def follow(
        self, group: int, leader: str, attempts: Iterable[AttemptOnWorker], *, now_s: float
    ) -> None:
        """Redirect everything of a group to a new job leader, at once."""
        if self._leaders.get(group) == leader:
            return
        self._leaders[group] = leader
        self._channels.pop(group, None)
        for attempt in attempts:
            if attempt.group != group:
                continue
            attempt.statistics.leader_changed()
            if attempt.is_reported:
                self.watch(group, now_s=now_s)
            else:
                attempt.announce_ready_at_s = now_s
        self.results.restart(group, now_s=now_s)

    def answered(
        self, event: ReportAnswered, attempts: Iterable[AttemptOnWorker], *, now_s: float
    ) -> None:
        """Take the reply to a report: backpressure, or the name of another job leader."""
        channel, reply = self._channels.get(event.group), event.reply
        if channel is None or self._leaders.get(event.group) != event.to:
            return  # the report went to an earlier job leader
        channel.answered(None if reply is None else reply.backpressure, now_s=now_s)
        if reply is not None and reply.leader:
            self.follow(event.group, reply.leader, attempts, now_s=now_s)
        elif reply is not None:
            for attempt in attempts:
                if attempt.group == event.group:
                    attempt.statistics.acknowledged()

    # --- attempts ---------------------------------------------------------------------------

    def announce_ready(self, attempt: AttemptOnWorker, *, now_s: float) -> list[AgentEffect]:
        """Tell the job leader that the attempt is ready to start."""
        attempt.announce_ready_at_s = now_s + READY_EVERY_S
        message = AnnounceReady(
            worker=self.worker,
            group=attempt.group,
            attempt_id=attempt.id,
            stamp_ms=self._clock.stamp_ms(now_s),
        )
        leader = self._leaders.get(attempt.group, attempt.command.leader)
        return [SendMessage(leader, message)]

    def watch(self, group: int, *, now_s: float) -> None:
        """Report the attempts of a group from now on."""
        self._channels.setdefault(group, ReportChannel(next_s=now_s, ahead_s=self._ahead_s))

    def unwatch(self, group: int) -> None:
        """Stop reporting a group that has no attempts on this worker."""
        self._channels.pop(group, None)

    def printed(self, *, now_s: float) -> None:
        """Schedule the forwarding of output."""
        if self._output_at_s is None:
            self._output_at_s = now_s + OUTPUT_EVERY_S

    def forward_output(self, attempt: AttemptOnWorker) -> list[AgentEffect]:
        """Send what the attempt has printed since the last time."""
        leader = self._leaders.get(attempt.group)
        if leader is None or not attempt.output:
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

    def result_stored(self, attempt_id: AttemptId, *, now_s: float) -> list[AgentEffect]:
        """Send a result for the first time."""
        result = self.results.stored(attempt_id)
        return [] if result is None else [self._send(result, now_s)]

    def _send(self, result: PendingResult, now_s: float) -> AgentEffect:
        leader = self._leaders.get(result.message.group)
        result.sent(now_s=now_s, is_leader_known=leader is not None)
        return SendMessage(leader, result.message)

    def _report(
        self,
        group: int,
        channel: ReportChannel,
        attempts: Iterable[AttemptOnWorker],
        now_s: float,
    ) -> list[AgentEffect]:
        reported = [each for each in attempts if each.group == group and each.is_reported]
        parts = [
            PartProgress(
                attempt_id=attempt.id,
                report=report,
                elapsed_s=attempt.statistics.elapsed_s,
                phase=attempt.phase,
                extension=(
                    attempt.statistics.why_still(now_s=now_s)
                    if attempt.state is AttemptState.RUNNING
                    else ""
                ),
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
            saturated=[attempt.id for attempt in reported if attempt.statistics.is_saturated],
        )
        return [SendReport(leader, progress)]
