"""Global jobs for tests: submissions, a machine with its log, and an owner on virtual time."""

from hyperscale.gates.committed.events import (
    DatacentersAssigned,
    DatacenterShare,
    GlobalEvent,
    GlobalJobSubmitted,
    GlobalOptions,
    encode_global,
    global_digest,
)
from hyperscale.gates.committed.machine import GlobalJobMachine
from hyperscale.gates.committed.state import GlobalJob
from hyperscale.gates.datacenters.monitor import DatacenterView
from hyperscale.gates.messages import (
    AssignmentAnswer,
    AssignmentCommand,
    AssignmentReply,
    DatacenterReport,
    ReportAssignment,
)
from hyperscale.gates.owner import events as ev
from hyperscale.gates.owner.core import GlobalJobOwner
from hyperscale.gates.slices import split_plan
from hyperscale.jobs.committed.events import JobStatus, Reply
from hyperscale.membership.coordinates import Coordinate
from hyperscale.plan import Plan
from hyperscale.sansio.core import Tick
from tests.gates.test_routing import view
from tests.lab.job_builders import plan


def global_submission(
    key: str = "key-1", options: GlobalOptions | None = None, wanted: Plan | None = None
) -> GlobalJobSubmitted:
    chosen, opts = wanted or plan(), options or GlobalOptions()
    return GlobalJobSubmitted(
        key=key,
        digest=global_digest(chosen, "b" * 64, opts),
        plan=chosen,
        bundle="b" * 64,
        options=opts,
        by="test",
    )


def assignment_to(job: str, *datacenters: str, replaces: str = "") -> DatacentersAssigned:
    shares = split_plan(plan(), dict.fromkeys(datacenters, 4))
    return DatacentersAssigned(
        job=job,
        shares=[
            DatacenterShare(datacenter=name, workflows=shared) for name, shared in shares.items()
        ],
        replaces=replaces,
    )


class GlobalLog:
    """A machine of global jobs, its log index and clock, and the rows it wrote to history."""

    def __init__(self) -> None:
        self.machine = GlobalJobMachine("global", 1)
        self.index = 0
        self.stamp_ms = 1_000
        self.rows: list[tuple[str, str, bytes]] = []

    def put(self, event: GlobalEvent) -> Reply:
        self.index += 1
        applied = self.machine.apply(
            self.index, self.stamp_ms, encode_global(event), unix_ms=self.stamp_ms
        )
        self.rows += applied.history
        return applied.reply

    def job(self, job: str) -> GlobalJob:
        found = self.machine.job(job)
        assert found is not None
        return found


class OwnedJobs:
    """An owner over a log that commits at once, and the datacenters' side by hand."""

    def __init__(self, *datacenters: str, log: GlobalLog | None = None, now_s: float = 0.0) -> None:
        self.log = log or GlobalLog()
        self.owner = GlobalJobOwner(1, self.log.machine)
        self.now_s = now_s
        self.sent: list[tuple[float, str, AssignmentCommand]] = []
        self.replies: list[tuple[object, object]] = []
        self.proposed: list[GlobalEvent] = []
        self.commits = True  # False: every proposal fails
        self.views = {name: view(name) for name in datacenters}
        self.log.stamp_ms = self._stamp()
        self._do(self.owner.handle(ev.BecameOwner(1, self._stamp()), now_s=now_s))
        self.see()

    def see(self, *views: DatacenterView) -> None:
        self.views |= {each.datacenter: each for each in views}
        self._take(ev.DatacentersSeen(dict(self.views), Coordinate()))

    def submit(self, options: GlobalOptions | None = None, wanted: Plan | None = None) -> str:
        event = global_submission(options=options, wanted=wanted)
        reply = self.commit(event)
        return reply.job

    def commit(self, event: GlobalEvent) -> Reply:
        self.log.stamp_ms = self._stamp()
        reply = self.log.put(event)
        self._do(self.owner.handle(ev.GlobalEventApplied(event, reply), now_s=self.now_s))
        return reply

    def run(self, for_s: float) -> None:
        until_s = self.now_s + for_s
        while (wake_s := self.owner.wake_at_s()) is not None and wake_s <= until_s:
            self.now_s = max(self.now_s, wake_s)
            self._take(Tick())
        self.now_s = until_s

    def answer(
        self, answer: AssignmentAnswer | None = AssignmentAnswer.OK, *, of: str | None = None
    ) -> None:
        """Answer every command that was sent and not answered yet; None: no reply."""
        sent = [each for each in self.sent if of is None or each[1] == of]
        self.sent = [each for each in self.sent if each not in sent]
        for _, name, command in sent:
            reply = None if answer is None else AssignmentReply(answer=answer, reason="because")
            self._take(ev.AssignmentAnswered(name, command, reply))

    def report(self, report: DatacenterReport, token: object = "token") -> None:
        self._take(ev.DatacenterReported(report, token))

    def ready(self, job: str, *datacenters: str) -> None:
        for name in datacenters:
            self.report(
                ReportAssignment(
                    job=job, datacenter=name, status=JobStatus.DISPATCHING, is_ready=True
                )
            )

    def commands(self, kind: type, *, to: str | None = None) -> list[AssignmentCommand]:
        return [c for _, name, c in self.sent if isinstance(c, kind) and to in (None, name)]

    def job(self, job: str) -> GlobalJob:
        return self.log.job(job)

    def successor(self) -> "OwnedJobs":
        """Return the next owner, with the same committed state and nothing else."""
        new = OwnedJobs(*self.views, log=self.log, now_s=self.now_s)
        new.views = dict(self.views)
        new.see()
        return new

    def _take(self, event: ev.OwnerEvent) -> None:
        self._do(self.owner.handle(event, now_s=self.now_s))

    def _stamp(self) -> int:
        return 1_000_000 + round(self.now_s * 1000)

    def _do(self, effects: list[ev.OwnerEffect]) -> None:
        for effect in effects:
            match effect:
                case ev.SendAssignment(datacenter=name, command=command):
                    self.sent.append((self.now_s, name, command))
                case ev.ProposeGlobal(event=event):
                    self.proposed.append(event)
                    if self.commits:
                        self.commit(event)
                    else:
                        self._take(ev.GlobalProposalFailed(event))
                case ev.AnswerDatacenter(token=token, reply=reply):
                    self.replies.append((token, reply))
                case ev.LogGlobalJobError(error=error):
                    raise error
