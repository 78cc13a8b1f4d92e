"""The owner of a group's global jobs: a core that decides, from committed state and reports.

The owner is the gate that leads the group. It delivers what is committed, and not yet acknowledged,
to datacenters, and commits what they answer. An owner that takes over knows the machine's state and
nothing else: it finds every assignment that was not accepted, not started or not cancelled at once,
because it looks at all jobs, and delivers it again. Datacenters take a repeated command for what it
is. An unknown outcome stays unknown until the datacenter answers: nothing is run elsewhere.
"""

from collections.abc import Callable
from typing import Any

from hyperscale.gates.committed.events import (
    AssignmentAccepted,
    AssignmentChanged,
    AssignmentRefused,
    DatacenterFinished,
    DatacentersAssigned,
    GlobalCancelRequested,
    GlobalJobSubmitted,
    GlobalOptions,
)
from hyperscale.gates.committed.machine import GlobalJobMachine
from hyperscale.gates.committed.state import AssignmentStatus, GlobalJob
from hyperscale.gates.datacenters.routing import DatacenterChoice, RoutingRefusal
from hyperscale.gates.messages import (
    AssignJob,
    AssignmentAnswer,
    AssignmentCommand,
    AssignmentReply,
    ChangeAssignment,
    DeliverAssignmentResult,
    ReportAssignment,
    ReportAssignmentReply,
    StartAssignment,
)
from hyperscale.gates.owner.deliveries import delivery_key
from hyperscale.gates.owner.events import (
    AnswerDatacenter,
    AssignmentAnswered,
    BecameOwner,
    DatacenterReported,
    DatacentersRemoved,
    DatacentersSeen,
    GlobalEventApplied,
    GlobalProposalFailed,
    LogGlobalJobError,
    OwnerEffect,
    OwnerEvent,
    OwnerTimeouts,
)
from hyperscale.gates.owner.placement import DatacenterPlacement
from hyperscale.gates.owner.reconcile import GlobalReconciler
from hyperscale.gates.owner.state import GlobalProgress, OwnerState
from hyperscale.gates.slices import PlanShare
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.plan import Plan
from hyperscale.sansio.core import Tick

_WAITING_MAX = 8  # deliveries of one result that wait for its commit
_EXTENSION_HEARD_S = 15.0
"""How long an extension counts after it was reported; a live one is reported again."""


class GlobalJobOwner:
    """Owns all global jobs of one group from one election to the next.

    The first event is `BecameOwner`. When another gate is elected, this object is dropped.
    """

    def __init__(
        self, group: int, machine: GlobalJobMachine, *, timeouts: OwnerTimeouts | None = None
    ) -> None:
        self.state = OwnerState(group, timeouts or OwnerTimeouts())
        self._machine = machine
        self._placement = DatacenterPlacement(self.state)
        self._reconciler = GlobalReconciler(self.state, self._placement)
        self._tick_at_s: float | None = None
        self._failed_jobs: set[str] = set()
        self._handlers: dict[type, Callable[[Any], None]] = {
            BecameOwner: self._became_owner,
            GlobalEventApplied: self._applied,
            GlobalProposalFailed: lambda failed: self.state.proposal_failed(failed.event),
            DatacentersSeen: self._datacenters_seen,
            DatacentersRemoved: self._datacenters_removed,
            AssignmentAnswered: self._answered,
            DatacenterReported: self._reported,
            Tick: self._tick,
        }

    def handle(self, event: OwnerEvent, *, now_s: float) -> list[OwnerEffect]:
        self.state.begin_event(now_s)
        self._handlers[type(event)](event)
        return self.state.effects

    def wake_at_s(self) -> float | None:
        return self._tick_at_s

    def progress(self, job: GlobalJob) -> GlobalProgress:
        """Return what this owner has heard about a job."""
        return self.state.job(job)

    def route(self, key: str, options: GlobalOptions) -> DatacenterChoice | RoutingRefusal:
        """Return where a job would go now, or why it cannot go anywhere."""
        return self._placement.route(key, options)

    def split(
        self, plan: Plan, options: GlobalOptions, choice: DatacenterChoice
    ) -> dict[str, PlanShare]:
        """Return the part of each chosen datacenter."""
        return self._placement.split(plan, options, choice.primary)

    # --- the ledger -------------------------------------------------------------------------

    def _became_owner(self, event: BecameOwner) -> None:
        self.state.begin(event.term, event.now_ms, self.state.now_s)
        self._tick_at_s = self.state.now_s

    def _applied(self, applied: GlobalEventApplied) -> None:
        event, reply, state = applied.event, applied.reply, self.state
        state.proposal_applied(event)
        job = self._machine.job(reply.job if isinstance(event, GlobalJobSubmitted) else event.job)
        if isinstance(event, DatacenterFinished):
            # The first result counts; a repeated one is acknowledged as well.
            state.acknowledge(event, is_committed=True, is_known=job is not None)
        if job is None:
            return
        if isinstance(event, DatacentersAssigned) and reply.ok:
            for share in event.shares:
                users = sum(each.vus for each in share.workflows.values())
                state.datacenters.assigned(share.datacenter, users, now_s=state.now_s)
        self._guard(job)

    # --- datacenters ------------------------------------------------------------------------

    def _datacenters_seen(self, seen: DatacentersSeen) -> None:
        self.state.datacenters.seen(seen.views, seen.local)

    def _datacenters_removed(self, removed: DatacentersRemoved) -> None:
        self.state.datacenters.removed = removed.datacenters
        for job in list(self._machine.jobs()):
            self._guard(job)

    def _answered(self, event: AssignmentAnswered) -> None:
        state, command, reply = self.state, event.command, event.reply
        key = delivery_key(event.datacenter, command)
        job = self._machine.job(command.job)
        if reply is None:
            state.deliveries.failed(key, now_s=state.now_s)
            state.datacenters.cool_down(event.datacenter, now_s=state.now_s)
            return
        # The others are over when the answer is committed: its proposal may fail.
        is_start = isinstance(command, StartAssignment)
        is_done = is_start and reply.answer is AssignmentAnswer.OK
        state.deliveries.answered(key, is_done=is_done, now_s=state.now_s)
        if job is None or job.has_ended or job.assignment(event.datacenter) is None:
            return
        state.job(job).heard_of(event.datacenter).at_s = state.now_s
        self._take_reply(job, event.datacenter, command, reply)
        self._guard(job)

    def _take_reply(
        self,
        job: GlobalJob,
        datacenter: str,
        command: AssignmentCommand,
        reply: AssignmentReply,
    ) -> None:
        state = self.state
        if reply.answer is AssignmentAnswer.NEVER_RAN:
            state.propose(
                DatacenterFinished(
                    job=job.id,
                    datacenter=datacenter,
                    status=JobStatus.CANCELLED,
                    reason=reply.reason or "cancelled before it began",
                )
            )
        elif isinstance(command, AssignJob) and reply.answer is AssignmentAnswer.OK:
            state.propose(
                AssignmentAccepted(job=job.id, datacenter=datacenter, local_job=reply.local_job)
            )
        elif isinstance(command, ChangeAssignment):
            if reply.answer is AssignmentAnswer.OK:
                state.propose(
                    AssignmentChanged(job=job.id, datacenter=datacenter, taken=command.taken)
                )
        elif reply.answer is AssignmentAnswer.REFUSED:
            # Also in reply to a cancel, if the reply to the assignment was lost.
            state.datacenters.cool_down(datacenter, now_s=state.now_s)
            state.propose(AssignmentRefused(job=job.id, datacenter=datacenter, reason=reply.reason))

    def _reported(self, event: DatacenterReported) -> None:
        report, state = event.report, self.state
        job = self._machine.job(report.job)
        assignment = None if job is None else job.assignment(report.datacenter)
        if isinstance(report, DeliverAssignmentResult):
            finished = DatacenterFinished(
                job=report.job,
                datacenter=report.datacenter,
                status=report.status,
                reason=report.reason,
                local_job=report.local_job,
                elapsed_s=report.elapsed_s,
                result=report.result,
                began_ms=state.began_ms(job, report.datacenter),
            )
            waiting = state.unanswered.setdefault((report.job, report.datacenter), [])
            waiting.append(event.token)
            del waiting[:-_WAITING_MAX]
            if job is None or assignment is None:
                # A datacenter can only speak about what it was given.
                state.acknowledge(finished, is_committed=False, is_known=False)
            elif assignment.status is AssignmentStatus.FINISHED:
                state.acknowledge(finished, is_committed=True)
            else:
                state.propose(finished)
            return
        is_known = job is not None and assignment is not None and not job.has_ended
        if is_known and job is not None:
            self._take_report(job, report)
        is_over = assignment is not None and assignment.has_ended
        reply = ReportAssignmentReply(
            is_known=job is not None and assignment is not None, is_over=is_over
        )
        state.effects.append(AnswerDatacenter(event.token, reply))

    def _take_report(self, job: GlobalJob, report: ReportAssignment) -> None:
        state, assignment = self.state, job.assignment(report.datacenter)
        progress = state.job(job)
        heard = progress.heard_of(report.datacenter)
        was_ready, heard.at_s = heard.is_ready, state.now_s
        heard.is_ready = heard.is_ready or report.is_ready
        heard.extension_s = report.extension_s
        heard.extended_until_s = state.now_s + _EXTENSION_HEARD_S
        if report.is_queued and heard.queued_since_s is None:
            heard.queued_since_s = state.now_s
        elif not report.is_queued:
            heard.queued_since_s = None
        if report.running_s > 0:
            # The report that was fastest on its way tells best when the load began.
            way_s = state.datacenters.rtts_s.get(report.datacenter, 0.0) / 2
            began_s = state.now_s - way_s - report.running_s
            heard.began_s = began_s if heard.began_s is None else min(heard.began_s, began_s)
        if assignment is not None:
            progress.take(job, assignment, report.reports, state.now_s)
            if assignment.status is AssignmentStatus.ASSIGNED:
                # The reply to the assignment was lost, but the datacenter has it.
                accepted = AssignmentAccepted(
                    job=job.id, datacenter=report.datacenter, local_job=""
                )
                state.propose(accepted)
        if heard.is_ready and not was_ready:
            self._guard(job)

    # --- time -------------------------------------------------------------------------------

    def _tick(self, _tick: Tick) -> None:
        if self._tick_at_s is None or self.state.now_s < self._tick_at_s:
            return
        self._tick_at_s = self.state.now_s + self.state.timeouts.tick_s
        for job in list(self._machine.jobs()):
            self._guard(job)

    def _guard(self, job: GlobalJob) -> None:
        """Reconcile a job. If that raises, which is a bug, only this job is cancelled."""
        state = self.state
        before = len(state.effects)
        try:
            self._reconciler.reconcile(job)
        except Exception as error:  # noqa: BLE001  see above
            del state.effects[before:]
            if job.id not in self._failed_jobs:
                self._failed_jobs.add(job.id)
                state.effects.append(LogGlobalJobError(job.id, error))
            reason = f"internal error: {type(error).__name__}: {error}"
            state.propose(GlobalCancelRequested(job=job.id, reason=reason, status=JobStatus.FAILED))
