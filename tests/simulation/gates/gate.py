"""A gate's process: drives the owners of global jobs, probes datacenters, forwards reports."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hyperscale.gates.datacenters.monitor import (
    DatacenterMonitor,
    DatacenterRegistered,
    MonitorEvent,
    ProbeAcked,
    SendProbe,
)
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.messages import (
    HOPS_MAX,
    AssignmentResultReply,
    DatacenterReport,
    DeliverAssignmentResult,
    ReportAssignment,
    ReportAssignmentReply,
)
from hyperscale.gates.owner import events as ev
from hyperscale.gates.owner.core import GlobalJobOwner
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.membership.coordinates import Coordinate
from hyperscale.sansio.core import Tick
from tests.simulation import network

if TYPE_CHECKING:
    from tests.simulation.gates.schedules import Setup
    from tests.simulation.kernel import Host

_MANAGEMENT = 0


class GateProgram:
    def __init__(self, host: "Host", setup: "Setup") -> None:
        self.host = host
        self.setup = setup
        self.ledger = setup.ledger
        groups = range(1, setup.plan.groups + 1)
        self.machines = {group: self.ledger.machine(group) for group in groups}
        self.applied = dict.fromkeys(groups, 0)
        self.owners: dict[int, GlobalJobOwner] = {}
        self.terms: dict[int, int] = {}
        self.monitor = DatacenterMonitor()

    def start(self, now_s: float) -> None:
        for group, machine in self.machines.items():
            log = self.ledger.groups[group].log
            for index, entry in enumerate(log):
                machine.apply(index + 1, entry.time_ms, entry.body, unix_ms=entry.unix_ms)
            self.applied[group] = len(log)
        for name in self.setup.plan.datacenters:
            self._watch(DatacenterRegistered(name, (name,)), now_s)

    # --- the ledger's hooks ---------------------------------------------------------------

    def entry(self, group: int, now_s: float) -> None:
        log = self.ledger.groups[group].log
        while group in self.machines and self.applied[group] < len(log):
            entry = log[self.applied[group]]
            self.applied[group] += 1
            applied = self.machines[group].apply(
                self.applied[group], entry.time_ms, entry.body, unix_ms=entry.unix_ms
            )
            self._own(group, ev.GlobalEventApplied(entry.event, applied.reply), now_s)

    def lead(self, payload: tuple[int, int], now_s: float) -> None:
        group, term = payload
        if group == _MANAGEMENT or not self.ledger.leads(self.host.address, group, term):
            return
        self.entry(group, now_s)
        self.terms[group] = term
        self.owners[group] = self.setup.owner(group, self.machines[group])
        now_ms = int(now_s * 1000) + 1_000_000
        self._own(group, ev.BecameOwner(term, now_ms), now_s)
        self._show_datacenters(group, now_s)
        self._show_removed(group, now_s)

    def removed(self, now_s: float) -> None:
        for group in list(self.owners):
            self._show_datacenters(group, now_s)
            self._show_removed(group, now_s)

    def _show_removed(self, group: int, now_s: float) -> None:
        self._own(group, ev.DatacentersRemoved(frozenset(self.setup.removed)), now_s)

    def follow(self, payload: tuple[int, int], now_s: float) -> None:
        group, term = payload
        if self.terms.get(group, 0) != term:
            return
        if self.ledger.leads(self.host.address, group, term):
            if self.ledger.groups[group].lost_s is None:
                return  # it was cut off only for a moment
            self.ledger.stepped_down(group)
        self.owners.pop(group, None)

    # --- the world ------------------------------------------------------------------------

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        nonce, figures = payload
        self._watch(ProbeAcked(source, source, nonce, figures, term=1, is_leader=True), now_s)

    def stream(self, event: Any, now_s: float) -> None:
        match event:
            case network.Asked(message=ReportAssignment() | DeliverAssignmentResult() as report):
                self._report(report, event.handle, now_s)
            case network.Answered(token=("command", group, term, command)):
                if self.terms.get(group) == term:
                    answered = ev.AssignmentAnswered(event.source, command, event.message)
                    self._own(group, answered, now_s)
            case network.Failed(token=("command", group, term, command)):
                if self.terms.get(group) == term:
                    self._own(group, ev.AssignmentAnswered(event.source, command, None), now_s)
            case network.Answered(token=("forward", handle)):
                self.host.answer(handle, event.message)

    def _report(self, report: DatacenterReport, handle: Any, now_s: float) -> None:
        group = parse_job_id(report.job).group
        if group in self.owners:
            self._own(group, ev.DatacenterReported(report, handle), now_s)
            return
        leader = self.ledger.groups[group].leader
        if leader not in (None, self.host.address) and report.hops < HOPS_MAX:
            forwarded = replace(report, hops=report.hops + 1)
            self.host.ask(str(leader), forwarded, ("forward", handle), within_s=3.0)
        elif isinstance(report, ReportAssignment):
            self.host.answer(handle, ReportAssignmentReply())
        else:
            self.host.answer(handle, AssignmentResultReply())

    def disk(self, token: Any, now_s: float) -> None: ...

    def wake(self, now_s: float) -> None:
        self._watch(Tick(), now_s)
        for group in list(self.owners):
            self._show_datacenters(group, now_s)
            self._own(group, Tick(), now_s)

    def wake_at_s(self) -> float | None:
        times = [self.monitor.wake_at_s(), *(o.wake_at_s() for o in self.owners.values())]
        return min((at_s for at_s in times if at_s is not None), default=None)

    # --- the cores ------------------------------------------------------------------------

    def _watch(self, event: MonitorEvent, now_s: float) -> None:
        for effect in self.monitor.handle(event, now_s=now_s):
            if isinstance(effect, SendProbe):
                self.host.send(effect.manager, effect.nonce)

    def _show_datacenters(self, group: int, now_s: float) -> None:
        views = {
            name: replace(view, state=DatacenterState.REMOVED)
            if name in self.setup.removed
            else view
            for name, view in self.monitor.views(now_s=now_s).items()
        }
        self._own(group, ev.DatacentersSeen(views, Coordinate()), now_s)

    def _own(self, group: int, event: ev.OwnerEvent, now_s: float) -> None:
        owner = self.owners.get(group)
        if owner is None:
            return
        for effect in owner.handle(event, now_s=now_s):
            match effect:
                case ev.ProposeGlobal(event=proposed):
                    self._propose(group, proposed)
                case ev.SendAssignment(datacenter=name, command=command):
                    token = ("command", group, self.terms[group], command)
                    self.host.ask(name, command, token, within_s=5.0)
                case ev.AnswerDatacenter(token=handle, reply=reply):
                    self.host.answer(handle, reply)
                case ev.LogGlobalJobError(job=job, error=error):
                    self.host.world.fail(f"{job} failed in the owner: {error!r}")

    def _propose(self, group: int, event: Any) -> None:
        def failed() -> None:
            self._own(group, ev.GlobalProposalFailed(event), self.host.world.now_s)

        self.ledger.propose(self.host, group, self.terms[group], event, failed)
