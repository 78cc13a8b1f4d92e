"""What a worker tells its leaders without being asked, when, and to whom.

Owns who leads which group, the pace of reports, results until they are acknowledged, and the
news about cores. What runs, and in which phase, is the agent's to say. Pure: times come in.
"""

import zlib
from collections.abc import Iterable, Sequence

from hyperscale.jobs.agent.attempts import (
    PROGRESS_S,
    RESEND_FOR_S,
    Outlet,
    Result,
    Run,
    StampClock,
)
from hyperscale.jobs.agent.events import Answered, Effect, Measured, Report, Send
from hyperscale.jobs.messages import (
    AnnounceCores,
    AnnouncePrepareFailed,
    AnnounceReady,
    AttemptId,
    Backpressure,
    DeliverResult,
    ForwardOutput,
    HeldCores,
    PartPhase,
    PartProgress,
    ReportProgress,
)

CORES_S = 1.0
READY_S = 1.0
OUTPUT_S = 0.25
_UNREPORTED_S = 0.5
_REPORTED = (PartPhase.RUNNING, PartPhase.STOPPING)


class ReportSchedule:
    def __init__(self, worker: str, *, incarnation: int, clock: StampClock, now_s: float) -> None:
        self.worker = worker
        self._clock = clock
        self.usage = Measured(0.0, 0.0)
        self.results: dict[AttemptId, Result] = {}
        self._incarnation = incarnation
        self._leaders: dict[int, str] = {}
        self._outlets: dict[int, Outlet] = {}
        share = zlib.crc32(worker.encode()) / 2**32  # its own, and the same each time
        self._ahead_s = share * PROGRESS_S[Backpressure.NONE]
        self._cores_version = 0
        self._cores_again_s = now_s
        self._cores_told: tuple[Sequence[HeldCores], bool] | None = None
        self._output_again_s = float("inf")

    def wake_at_s(self, runs: Iterable[Run]) -> float:
        due_s = [self._cores_again_s, self._output_again_s]
        due_s += [result.wake_at_s() for result in self.results.values()]
        due_s += [outlet.next_s for outlet in self._outlets.values() if not outlet.is_waiting]
        due_s += [run.ready_again_s for run in runs if run.phase is PartPhase.READY]
        return min(due_s)

    def tick(self, runs: Sequence[Run], *, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for run in runs:
            if run.phase is PartPhase.READY and run.ready_again_s <= now_s:
                effects += self.ready(run, now_s=now_s)
        for group, outlet in list(self._outlets.items()):
            if not outlet.is_waiting and outlet.next_s <= now_s:
                effects += self._report(group, outlet, runs, now_s)
        if self._output_again_s <= now_s:
            self._output_again_s = float("inf")
            for run in runs:
                effects += self.output(run)
        for result in self.results.values():
            if result.wake_at_s() <= now_s:
                effects += self._send(result, now_s)
        return effects

    # --- leaders --------------------------------------------------------------------------

    def follow(self, group: int, leader: str, runs: Iterable[Run], *, now_s: float) -> None:
        """From here on `leader` is told; everything that still waits for an ear at once."""
        if self._leaders.get(group) == leader:
            return
        self._leaders[group] = leader
        self._outlets.pop(group, None)
        for run in runs:
            if run.group == group:
                run.merge.untold()
            if run.group == group and run.phase in _REPORTED:
                self.watch(run, now_s=now_s)
            elif run.group == group:
                run.ready_again_s = now_s
        self.offer_anew(group, now_s=now_s)

    def answered(self, event: Answered, runs: Iterable[Run], *, now_s: float) -> None:
        outlet, taken = self._outlets.get(event.group), event.taken
        if outlet is None or self._leaders.get(event.group) != event.to:
            return  # of another leader's time
        outlet.answered(None if taken is None else taken.backpressure, now_s=now_s)
        if taken is not None and taken.leader:
            self.follow(event.group, taken.leader, runs, now_s=now_s)
        elif taken is not None:
            for run in runs:
                if run.group == event.group:
                    run.merge.taken()

    # --- runs -----------------------------------------------------------------------------

    def ready(self, run: Run, *, now_s: float) -> list[Effect]:
        run.ready_again_s = now_s + READY_S
        message = AnnounceReady(
            worker=self.worker, group=run.group, run=run.id, stamp_ms=self._clock.stamp_ms(now_s)
        )
        return [Send(self._leaders.get(run.group, run.command.leader), message)]

    def watch(self, run: Run, *, now_s: float) -> None:
        """Its reports are due from here on."""
        self._outlets.setdefault(run.group, Outlet(next_s=now_s, ahead_s=self._ahead_s))

    def printed(self, *, now_s: float) -> None:
        self._output_again_s = min(self._output_again_s, now_s + OUTPUT_S)

    def output(self, run: Run) -> list[Effect]:
        """What it printed since."""
        leader = self._leaders.get(run.group)
        if leader is None or not run.output:
            return []
        first = run.command.first_slot
        slots = {place: first + index for index, place in enumerate(sorted(run.places))}
        return [
            Send(
                leader,
                ForwardOutput(
                    worker=self.worker,
                    group=run.group,
                    run=run.id,
                    slot=slots.get(place, first),
                    stream=stream,
                    text=text,
                    number=number,
                ),
            )
            for number, place, stream, text in run.output.take()
        ]

    def forget(self, run: Run, left: Iterable[Run]) -> None:
        """The run is gone; `left` are the others."""
        if not any(other.group == run.group for other in left):
            self._outlets.pop(run.group, None)

    def _report(
        self, group: int, outlet: Outlet, runs: Iterable[Run], now_s: float
    ) -> list[Effect]:
        here = [run for run in runs if run.group == group and run.phase in _REPORTED]
        parts = [
            PartProgress(
                run=run.id,
                report=report,
                elapsed_s=run.elapsed_s(),
                phase=run.phase,
                extension=run.plea(now_s=now_s),
            )
            for run in here
            if (report := run.merge.latest(now_s=now_s)) is not None
        ]
        leader = self._leaders.get(group)
        if leader is None or not parts:
            outlet.next_s = now_s + _UNREPORTED_S
            return []
        outlet.sent(now_s=now_s)
        progress = ReportProgress(
            worker=self.worker,
            group=group,
            parts=parts,
            cpu=self.usage.cpu,
            memory=self.usage.memory,
            saturated=[run.id for run in here if run.saturation.is_saturated],
        )
        return [Report(leader, progress)]

    # --- results --------------------------------------------------------------------------

    def keep(
        self, message: DeliverResult | AnnouncePrepareFailed, *, is_stored: bool, now_s: float
    ) -> Result:
        result = Result(message, is_stored, until_s=now_s + RESEND_FOR_S, again_s=now_s)
        self.results[message.run] = result
        return result

    def stored(self, run: AttemptId, *, now_s: float) -> list[Effect]:
        result = self.results.get(run)
        if result is None:
            return []
        result.is_stored = True
        return self._send(result, now_s)

    def offer_anew(self, group: int, *, now_s: float) -> list[AttemptId]:
        """Somebody listens who may not have heard of them."""
        found = [result for result in self.results.values() if result.message.group == group]
        for result in found:
            result.offer_anew(now_s=now_s)
        return [result.run for result in found]

    def _send(self, result: Result, now_s: float) -> list[Effect]:
        leader = self._leaders.get(result.message.group)
        result.sent(now_s=now_s, is_leader_known=leader is not None)
        return [Send(leader or "", result.message)]

    # --- cores ----------------------------------------------------------------------------

    def cores(
        self, total: int, held: Sequence[HeldCores], *, is_draining: bool, now_s: float
    ) -> list[Effect]:
        """On change and each second: this is what the allocator goes by."""
        told = (held, is_draining)
        if told == self._cores_told and now_s < self._cores_again_s:
            return []
        self._cores_told = told
        self._cores_again_s = now_s + CORES_S
        self._cores_version += 1
        message = AnnounceCores(
            worker=self.worker,
            incarnation=self._incarnation,
            version=self._cores_version,
            total=total,
            held=list(held),
            draining=is_draining,
        )
        return [Send("", message)]
