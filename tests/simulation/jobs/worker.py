"""A worker's process: drives the agent core, with simulated executors."""

from typing import TYPE_CHECKING, Any

from hyperscale.jobs.agent import events as ev
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.messages import AnnounceCores, AttemptId
from hyperscale.plan.status import PartStatus
from hyperscale.sansio.core import Tick
from tests.simulation import network
from tests.simulation.jobs.target import Executor, Target, go_on, prepare

if TYPE_CHECKING:
    from tests.simulation.jobs.schedules import Setup
    from tests.simulation.kernel import Host

CLOCK_S = 5_000.0
"""Clocks of hosts differ by multiples of this offset and run at the same rate."""


class WorkerProgram:
    def __init__(self, host: "Host", setup: "Setup") -> None:
        self.host = host
        self.setup = setup
        self.target: Target = setup.target
        self.cores = setup.plan.workers[host.address]
        self.offset_s = CLOCK_S * (host.index + 1)
        self.executors: dict[AttemptId, list[Executor]] = {}
        self.agent: Agent

    def start(self, now_s: float) -> None:
        self.agent = self.setup.agent(
            self.host.address,
            incarnation=self.host.wall_ms(),
            cores=self.cores,
            now_s=self._clock(now_s),
        )
        kept = self.host.disk.read("results", {})
        if kept:
            self._handle(ev.ResultsRestored(tuple(kept.values())), now_s)

    def _clock(self, now_s: float) -> float:
        return now_s + self.offset_s

    # --- the world ------------------------------------------------------------------------

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        self._handle(ev.CommandReceived(source, payload), now_s)

    def stream(self, event: Any, now_s: float) -> None:
        match event:
            case network.Asked(source=source, message=command, handle=handle):
                self._handle(ev.CommandReceived(source, command, handle), now_s)
            case network.Answered(token=(group, to), message=taken):
                self._handle(ev.ReportAnswered(group, to, taken), now_s)
            case network.Failed(token=(group, to)):
                self._handle(ev.ReportAnswered(group, to, None), now_s)

    def engine(self, event: Any, now_s: float) -> None:
        self._handle(event, now_s)

    def disk(self, token: Any, now_s: float) -> None:
        self._handle(ev.ResultStored(token), now_s)

    def wake(self, now_s: float) -> None:
        self._handle(Tick(), now_s)

    def wake_at_s(self) -> float:
        wake_at_s = self.agent.wake_at_s()
        assert wake_at_s is not None, "core announcements are always scheduled"
        return wake_at_s - self.offset_s

    def drain(self) -> None:
        self._handle(ev.DrainRequested(hands_over=True), self.host.world.now_s)

    # --- effects --------------------------------------------------------------------------

    def _handle(self, event: Any, now_s: float) -> None:
        for effect in self.agent.handle(event, now_s=self._clock(now_s)):
            self._perform(effect)

    def _perform(self, effect: Any) -> None:
        match effect:
            case ev.ReplyToCommand(token=handle, reply=reply):
                if handle is not None:
                    self.host.answer(handle, reply)
            case ev.SendMessage(to=to, message=message):
                if isinstance(message, AnnounceCores):
                    self.target.check_shared(message)
                for manager in [to] if to else self.setup.plan.managers:
                    self.host.send(manager, message)
            case ev.SendReport(to=to, progress=progress):
                self.host.ask(to, progress, (progress.group, to), within_s=2.0)
            case ev.PrepareAttempt(command=command, places=places):
                made = [
                    Executor(self.target, self.host, command, place, index)
                    for index, place in enumerate(places)
                ]
                self.executors[command.attempt_id] = made
                prepare(made)
            case ev.ShareWithAttempt(attempt_id=attempt_id, context=context):
                go_on(self.executors[attempt_id], context)
            case ev.StartAttempt(attempt_id=attempt_id, start_in_ms=start_in_ms, since_s=since_s):
                for executor in self.executors[attempt_id]:
                    executor.start(start_in_ms / 1000, since_s)
            case ev.ChangeAttempt(attempt_id=attempt_id, changes=changes):
                for executor in self.executors.get(attempt_id, []):
                    executor.change(changes)
            case ev.GrantAttemptRows(attempt_id=attempt_id, limit=limit):
                for executor in self.executors.get(attempt_id, []):
                    executor.grant_rows(limit)
            case ev.LeaseAttempt(attempt_id=attempt_id, until_s=until_s):
                for executor in self.executors.get(attempt_id, []):
                    executor.lease(until_s - self.offset_s)
            case ev.StopAttempt(
                attempt_id=attempt_id, places=places, reason=reason, grace_s=grace_s
            ):
                self._stop(attempt_id, places, reason, grace_s)
            case ev.StoreResult(result=result):
                kept = {**self.host.disk.read("results", {}), result.attempt_id: result}
                self.host.disk.write("results", kept)
                self.host.sync(result.attempt_id, within_s=0.002)
            case ev.EraseResult(attempt_id=attempt_id):
                kept = dict(self.host.disk.read("results", {}))
                kept.pop(attempt_id, None)
                self.host.disk.write("results", kept)

    def _stop(
        self, attempt_id: AttemptId, places: tuple[int, ...], reason: str, grace_s: float
    ) -> None:
        """Stop the load of executors at once, and their processes within the grace period."""
        world = self.host.world
        executors = [each for each in self.executors.get(attempt_id, []) if each.place in places]
        if executors and executors[0].began_s is None:
            # Not started: either preparing fails, or every executor ends at once.
            for each in executors:
                each.is_over = True
                self.target.leave(each)
            first = executors[0]

            def gone() -> None:
                for each in executors:
                    each.tell(
                        ev.PlaceEnded(attempt_id, each.place, PartStatus.STOPPED, error=reason)
                    )
                    each.tell(ev.PlaceVacated(attempt_id, each.place))

            if first.is_here:
                world.after(0.01, gone)
            return
        for each in executors:
            wait_s = grace_s * world.rng.random()

            def end(executor: Executor = each) -> None:
                if executor.frozen_s is not None:
                    world.after(0.05, end)
                else:
                    executor.finish(PartStatus.STOPPED, reason)

            world.after(wait_s, end)
