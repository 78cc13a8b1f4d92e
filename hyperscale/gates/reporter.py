"""A datacenter's reports to the gates: what its part of each global job does, and how it ended.

Any gate takes a report and forwards it to the owner; a gate that does not answer is replaced by the
next one. Progress is sent at most twice a second per job, the latest only, and at least every 10 s,
so that a job which is alive is not taken for stuck; the first report of a new status goes out at
once. A result is delivered until a gate says that it is committed, 0.5 s to 10 s apart: results are
never dropped because a gate was away.
"""

from dataclasses import dataclass, field

from hyperscale.gates.messages import (
    AssignmentResultReply,
    DatacenterReport,
    DeliverAssignmentResult,
    ReportAssignment,
    ReportAssignmentReply,
)
from hyperscale.jobs.agent.reports import PROGRESS_S
from hyperscale.jobs.messages import Backpressure
from hyperscale.sansio.core import Tick

HEARTBEAT_S = 10.0
_RETRY_FIRST_S, _RETRY_MOST_S = 0.5, 10.0


@dataclass(frozen=True, slots=True)
class GatesKnown:
    """Addresses of gates."""

    gates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AssignmentUpdated:
    """The latest about a datacenter's part of a job."""

    report: ReportAssignment


@dataclass(frozen=True, slots=True)
class AssignmentEnded:
    """The part has ended, and its end is committed in the datacenter."""

    result: DeliverAssignmentResult


@dataclass(frozen=True, slots=True)
class GateAnswered:
    """The outcome of a `SendToGate`. `reply` None: no reply."""

    gate: str
    report: DatacenterReport
    reply: ReportAssignmentReply | AssignmentResultReply | None


@dataclass(frozen=True, slots=True)
class AssignmentForgotten:
    """The datacenter's job is led by another manager now."""

    job: str


ReporterEvent = (
    GatesKnown | AssignmentUpdated | AssignmentEnded | GateAnswered | AssignmentForgotten | Tick
)


@dataclass(frozen=True, slots=True)
class SendToGate:
    """Call a gate. `GateAnswered` must follow."""

    gate: str
    report: DatacenterReport


@dataclass(frozen=True, slots=True)
class ResultSettled:
    """The gates have the result of a job (or know no such job): it need not be kept for them."""

    job: str


@dataclass(frozen=True, slots=True)
class StopAssignment:
    """The gates have given up on this part, or the whole job has ended: end it."""

    job: str


ReporterEffect = SendToGate | ResultSettled | StopAssignment


@dataclass(slots=True)
class _Part:
    report: ReportAssignment | None = None
    is_changed: bool = False
    sent_s: float | None = None
    told: tuple[object, bool] | None = None  # status and readiness of the last report
    result: DeliverAssignmentResult | None = None
    retry_at_s: float = 0.0
    wait_s: float = _RETRY_FIRST_S
    is_in_flight: bool = False
    backpressure: Backpressure = Backpressure.NONE


@dataclass(slots=True)
class GateReporter:
    """The reports of one manager, about all parts of global jobs that it leads."""

    _gates: tuple[str, ...] = ()
    _turn: int = 0
    _parts: dict[str, _Part] = field(default_factory=dict)

    def handle(self, event: ReporterEvent, *, now_s: float) -> list[ReporterEffect]:
        match event:
            case GatesKnown(gates):
                self._gates = gates
            case AssignmentUpdated(report):
                part = self._parts.setdefault(report.job, _Part())
                part.report, part.is_changed = report, True
            case AssignmentEnded(result):
                part = self._parts.setdefault(result.job, _Part())
                if part.result is None:
                    part.result, part.retry_at_s = result, now_s
            case AssignmentForgotten(job):
                self._parts.pop(job, None)
            case GateAnswered():
                return self._answered(event, now_s) + self._send(now_s)
            case Tick():
                pass
        return self._send(now_s)

    def wake_at_s(self) -> float | None:
        if not self._gates:
            return None
        times = (self._due_s(part) for part in self._parts.values())
        return min((at_s for at_s in times if at_s is not None), default=None)

    def pending_results(self) -> list[str]:
        """Return the jobs whose results no gate has acknowledged."""
        return [job for job, part in self._parts.items() if part.result is not None]

    def _due_s(self, part: _Part) -> float | None:
        """Return when the next message of a part is due; None while one is under way."""
        if part.is_in_flight:
            return None
        if part.result is not None:
            return part.retry_at_s
        if part.report is None:
            return None
        if part.sent_s is None:
            return part.retry_at_s
        is_new = part.told != (part.report.status, part.report.is_ready)
        interval_s = PROGRESS_S[part.backpressure] if part.is_changed else HEARTBEAT_S
        return max(part.retry_at_s, part.sent_s + (0.0 if is_new else interval_s))

    def _send(self, now_s: float) -> list[ReporterEffect]:
        effects: list[ReporterEffect] = []
        for part in self._parts.values() if self._gates else ():
            due_s = self._due_s(part)
            if due_s is None or due_s > now_s:
                continue
            message = part.result or part.report
            if message is None:
                continue
            if isinstance(message, ReportAssignment):
                part.told = (message.status, message.is_ready)
            part.is_in_flight, part.is_changed, part.sent_s = True, False, now_s
            effects.append(SendToGate(self._gates[self._turn % len(self._gates)], message))
        return effects

    def _answered(self, event: GateAnswered, now_s: float) -> list[ReporterEffect]:
        part, reply = self._parts.get(event.report.job), event.reply
        if part is None:
            return []
        part.is_in_flight = False
        if reply is None:
            self._turn += 1
            return self._retry(part, now_s)
        if isinstance(reply, ReportAssignmentReply):
            part.backpressure, part.wait_s = reply.backpressure, _RETRY_FIRST_S
            return [StopAssignment(event.report.job)] if reply.is_over else []
        if reply.is_committed or not reply.is_known:
            del self._parts[event.report.job]
            return [ResultSettled(event.report.job)]
        return self._retry(part, now_s)

    def _retry(self, part: _Part, now_s: float) -> list[ReporterEffect]:
        part.retry_at_s = now_s + part.wait_s
        part.wait_s = min(part.wait_s * 2, _RETRY_MOST_S)
        part.is_changed, part.told = True, None
        return []
