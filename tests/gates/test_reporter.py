"""Reports of a datacenter to the gates: how often, to whom, and until when."""

from hyperscale.gates.messages import (
    AssignmentResultReply,
    DeliverAssignmentResult,
    ReportAssignment,
    ReportAssignmentReply,
)
from hyperscale.gates.reporter import (
    AssignmentEnded,
    AssignmentForgotten,
    AssignmentUpdated,
    GateAnswered,
    GateReporter,
    GatesKnown,
    ReporterEvent,
    ResultSettled,
    SendToGate,
)
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.messages import Backpressure
from hyperscale.sansio.core import Tick

COMMITTED = AssignmentResultReply(is_committed=True)


class ReportingManager:
    """A reporter on virtual time; answers what it sends with `reply`."""

    def __init__(self) -> None:
        self.reporter = GateReporter()
        self.now_s = 0.0
        self.reply: ReportAssignmentReply | AssignmentResultReply | None = ReportAssignmentReply()
        self.sent: list[tuple[float, SendToGate]] = []
        self.settled: list[str] = []
        self.take(GatesKnown(("g0", "g1", "g2")))

    def take(self, event: ReporterEvent) -> None:
        for effect in self.reporter.handle(event, now_s=self.now_s):
            if isinstance(effect, ResultSettled):
                self.settled.append(effect.job)
            else:
                self.sent.append((self.now_s, effect))
                self.take(GateAnswered(effect.gate, effect.report, self.reply))

    def run(self, for_s: float) -> None:
        until_s = self.now_s + for_s
        while (wake_s := self.reporter.wake_at_s()) is not None and wake_s <= until_s:
            self.now_s = max(self.now_s, wake_s)
            self.take(Tick())
        self.now_s = until_s

    def update(self, status: JobStatus = JobStatus.RUNNING, *, is_ready: bool = True) -> None:
        report = ReportAssignment(job="j", datacenter="east", status=status, is_ready=is_ready)
        self.take(AssignmentUpdated(report))

    def end(self) -> None:
        done = DeliverAssignmentResult(job="j", datacenter="east", status=JobStatus.COMPLETED)
        self.take(AssignmentEnded(done))


def test_progress_is_sent_at_most_twice_a_second_and_only_the_latest() -> None:
    manager = ReportingManager()
    for _ in range(100):
        manager.update()
        manager.run(0.1)
    assert len(manager.sent) <= 21


def test_a_job_without_news_is_reported_every_ten_seconds() -> None:
    manager = ReportingManager()
    manager.update()
    manager.run(60.0)
    times = [at_s for at_s, _ in manager.sent]
    assert times == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def test_a_change_of_status_is_reported_at_once() -> None:
    manager = ReportingManager()
    manager.update(JobStatus.DISPATCHING, is_ready=False)
    manager.run(0.1)
    manager.update(JobStatus.DISPATCHING, is_ready=True)
    manager.update(JobStatus.RUNNING)
    assert [at_s for at_s, _ in manager.sent] == [0.0, 0.1, 0.1]


def test_backpressure_of_the_owner_stretches_the_interval() -> None:
    manager = ReportingManager()
    manager.reply = ReportAssignmentReply(backpressure=Backpressure.REJECT)
    for _ in range(100):
        manager.update()
        manager.run(0.1)
    assert len(manager.sent) <= 3


def test_a_result_is_delivered_until_it_is_committed_half_a_second_to_ten_seconds_apart() -> None:
    manager = ReportingManager()
    manager.reply = AssignmentResultReply(is_committed=False)
    manager.end()
    manager.run(40.0)
    times = [at_s for at_s, _ in manager.sent]
    assert times == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 35.5]
    assert manager.reporter.pending_results() == ["j"]
    manager.reply = COMMITTED
    manager.run(10.0)
    assert manager.settled == ["j"]
    assert manager.reporter.pending_results() == []
    assert manager.reporter.wake_at_s() is None


def test_a_gate_that_does_not_answer_is_replaced_by_the_next() -> None:
    manager = ReportingManager()
    manager.reply = None
    manager.end()
    manager.run(4.0)
    assert [sent.gate for _, sent in manager.sent] == ["g0", "g1", "g2", "g0"]


def test_a_result_of_a_job_that_no_gate_knows_is_dropped() -> None:
    manager = ReportingManager()
    manager.reply = AssignmentResultReply(is_known=False)
    manager.end()
    assert manager.settled == ["j"]


def test_without_gates_nothing_is_sent_and_nothing_is_lost() -> None:
    manager = ReportingManager()
    manager.take(GatesKnown(()))
    manager.end()
    manager.run(100.0)
    assert not manager.sent
    manager.reply = COMMITTED
    manager.take(GatesKnown(("g5",)))
    assert manager.settled == ["j"]


def test_a_job_that_another_manager_leads_is_not_reported() -> None:
    manager = ReportingManager()
    manager.update()
    manager.take(AssignmentForgotten("j"))
    manager.update()
    manager.take(AssignmentForgotten("j"))
    manager.sent.clear()
    manager.run(30.0)
    assert not manager.sent
