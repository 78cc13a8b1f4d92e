"""What a global job needs next: its committed state compared with what datacenters report."""

from msgspec.structs import replace

from hyperscale.gates.committed.events import (
    AssignmentRecalled,
    DatacenterBegan,
    DatacenterLost,
    GlobalCancelRequested,
    GlobalJobFinished,
    GlobalStartOrdered,
    LossPolicy,
)
from hyperscale.gates.committed.state import (
    AssignmentStatus,
    DatacenterAssignment,
    GlobalJob,
    Withdrawal,
)
from hyperscale.gates.deadlines import datacenter_deadline_ms
from hyperscale.gates.messages import AssignJob, CancelAssignment, ChangeAssignment, StartAssignment
from hyperscale.gates.owner.placement import DatacenterPlacement
from hyperscale.gates.owner.state import GlobalProgress, OwnerState
from hyperscale.gates.results import heard_record
from hyperscale.gates.slices import sliced
from hyperscale.jobs.committed.events import GlobalPart, JobStatus
from hyperscale.stats.thresholds import abort_verdict

JOINS_LATE_S = 2.0
"""A datacenter that begins later than this after the others runs for the remaining time only."""


_BEGAN_AFTER_S = 2.0  # the report that was fastest on its way tells best, so not the first one
_CORES_UNKNOWN = 64  # of a datacenter that no gate has heard of for long


class GlobalReconciler:
    """Brings one job at a time forward. Every decision is committed before it has an effect."""

    def __init__(self, state: OwnerState, placement: DatacenterPlacement) -> None:
        self._state = state
        self._placement = placement

    def reconcile(self, job: GlobalJob) -> None:
        state = self._state
        if job.has_ended:
            state.forget(job.id)
            return
        progress = state.job(job)
        if job.stop is None:
            self._enforce(job, progress)
        if not job.assignments:
            if job.stop is not None:
                self._finish(job)
            else:
                self._placement.assign(job)
            return
        replacing = self._placement.fill_vacancies(job) if job.stop is None else frozenset()
        if job.stop is None and job.options.policy is LossPolicy.ALL_OR_NOTHING:
            self._give_up_on_failure(job, replacing)
        for assignment in job.assignments:
            if not assignment.has_ended:
                self._bring_forward(job, progress, assignment)
                self._note_begin(job, progress, assignment)
        self._order_start(job, progress)
        if not replacing and not any(True for _ in job.open_assignments()):
            self._finish(job)

    # --- delivering -------------------------------------------------------------------------

    def _bring_forward(
        self, job: GlobalJob, progress: GlobalProgress, assignment: DatacenterAssignment
    ) -> None:
        state = self._state
        if assignment.datacenter in state.datacenters.removed:
            self._lose(job, assignment, f"{assignment.datacenter} was removed", is_removed=True)
        elif self._is_lost(job, progress, assignment):
            reason = f"not heard for {job.options.lost_after_s:g} s after its own deadline"
            self._lose(job, assignment, reason)
        elif job.stop is not None:
            self._deliver_cancel(job, assignment, job.stop.reason, job.stop.status)
        elif assignment.withdrawn is Withdrawal.RECALLED:
            self._deliver_cancel(job, assignment, assignment.reason, JobStatus.CANCELLED)
        elif self._placement.spills_over(job, progress, assignment):
            reason = f"it waited in the queue of {assignment.datacenter} for too long"
            state.propose(
                AssignmentRecalled(job=job.id, datacenter=assignment.datacenter, reason=reason)
            )
        elif assignment.status is AssignmentStatus.ASSIGNED:
            self._deliver_assignment(job, assignment)
        elif assignment.changes.open:
            self._deliver_changes(job, assignment)
        elif job.started_ms and progress.heard_of(assignment.datacenter).is_ready:
            self._deliver_start(job, progress, assignment)

    def _note_begin(
        self, job: GlobalJob, progress: GlobalProgress, assignment: DatacenterAssignment
    ) -> None:
        """Commit when the load of a datacenter began, once a few reports have told."""
        state, name = self._state, assignment.datacenter
        began_s = progress.heard_of(name).began_s
        if began_s is None or assignment.began_ms or state.now_s - began_s < _BEGAN_AFTER_S:
            return
        began_ms = max(1, state.ms_of(began_s))
        state.propose(DatacenterBegan(job=job.id, datacenter=name, began_ms=began_ms))

    def _deliver_cancel(
        self, job: GlobalJob, assignment: DatacenterAssignment, reason: str, status: JobStatus
    ) -> None:
        state = self._state
        state.deliver(
            assignment.datacenter,
            CancelAssignment(
                job=job.id, group=state.group, term=state.term, reason=reason, status=status
            ),
        )

    def _deliver_changes(self, job: GlobalJob, assignment: DatacenterAssignment) -> None:
        state, changes = self._state, assignment.changes
        state.deliver(
            assignment.datacenter,
            ChangeAssignment(
                job=job.id,
                group=state.group,
                term=state.term,
                changes=changes.open,
                taken=len(changes.all),
            ),
        )

    def _deliver_assignment(self, job: GlobalJob, assignment: DatacenterAssignment) -> None:
        state = self._state
        left_s = self._left_s(job, assignment)
        if left_s <= 0:
            return  # too late to begin; whether it has begun shows before it is lost
        state.deliver(
            assignment.datacenter,
            AssignJob(
                job=job.id,
                group=state.group,
                term=state.term,
                plan=sliced(job.plan, assignment.workflows),
                bundle=job.bundle,
                options=replace(
                    job.options.job,
                    timeout_s=left_s,
                    report=None,  # gates send the result of the whole job
                    part_of=GlobalPart(job=job.id, index=assignment.index),
                ),
                by=job.by,
            ),
        )

    def _deliver_start(
        self, job: GlobalJob, progress: GlobalProgress, assignment: DatacenterAssignment
    ) -> None:
        state = self._state
        names = [each.datacenter for each in job.open_assignments()]
        if progress.start_at_s is None:
            farthest_s = max(state.datacenters.rtts_s.get(name, 0.0) for name in names) / 2
            progress.start_at_s = state.now_s + state.timeouts.start_in_s + farthest_s
        rtt_s = state.datacenters.rtts_s.get(assignment.datacenter, 0.0)
        start_in_s = progress.start_at_s - state.now_s - rtt_s / 2
        # By committed time: this owner may not be the one that ordered the start.
        ran_ms = state.now_ms - job.started_ms - job.paused_ms(job.started_ms, state.now_ms)
        late_s = ran_ms / 1000 - state.timeouts.start_in_s + rtt_s / 2
        state.deliver(
            assignment.datacenter,
            StartAssignment(
                job=job.id,
                group=state.group,
                term=state.term,
                start_in_ms=max(0.0, start_in_s) * 1000,
                elapsed_s=late_s if late_s >= JOINS_LATE_S else 0.0,
            ),
        )

    def _order_start(self, job: GlobalJob, progress: GlobalProgress) -> None:
        """Order the start when every datacenter is ready, or some are and the others took long."""
        if job.started_ms or job.stop is not None:
            return
        open_ = list(job.open_assignments())
        ready = [each.datacenter for each in open_ if progress.heard_of(each.datacenter).is_ready]
        if not ready:
            return
        waited_s = (self._state.now_ms - min(each.assigned_ms for each in open_)) / 1000
        if len(ready) == len(open_) or waited_s >= job.options.start_timeout_s:
            self._state.propose(GlobalStartOrdered(job=job.id, ready=ready))

    # --- ending -----------------------------------------------------------------------------

    def _lose(
        self,
        job: GlobalJob,
        assignment: DatacenterAssignment,
        reason: str,
        *,
        is_removed: bool = False,
    ) -> None:
        """Conclude without a datacenter: what it reported counts, the rest is a gap."""
        state, name = self._state, assignment.datacenter
        heard = state.job(job).heard_of(name)
        view = state.datacenters.views.get(name)
        cores = max(1, view.figures.total_cores) if view and view.figures else _CORES_UNKNOWN
        state.propose(
            DatacenterLost(
                job=job.id,
                datacenter=name,
                reason=reason,
                result=heard_record(
                    job, assignment, heard.statistics, cores=cores, now_ms=state.now_ms
                ),
                began_ms=state.began_ms(job, name),
                is_removed=is_removed,
            )
        )

    def _is_lost(
        self, job: GlobalJob, progress: GlobalProgress, assignment: DatacenterAssignment
    ) -> bool:
        state = self._state
        late_s = -self._left_s(job, assignment)
        silent_s = state.now_s - progress.heard_of(assignment.datacenter).at_s
        return min(late_s, silent_s) >= job.options.lost_after_s

    def _left_s(self, job: GlobalJob, assignment: DatacenterAssignment) -> float:
        now_ms = self._state.now_ms
        return (datacenter_deadline_ms(job, assignment, now_ms=now_ms) - now_ms) / 1000

    def _enforce(self, job: GlobalJob, progress: GlobalProgress) -> None:
        """Stop a job that takes too long, that no datacenter reports on, or that has failed."""
        state, options = self._state, job.options
        elapsed_s = (state.now_ms - job.submitted_ms) / 1000
        extension_s = max(
            (
                heard.extension_s
                for heard in progress.heard.values()
                if heard.extended_until_s > state.now_s
            ),
            default=0.0,
        )
        if options.timeout_s is not None and elapsed_s > options.timeout_s + extension_s:
            self._state.cancel(
                job,
                f"Global timeout exceeded ({elapsed_s:.1f}s > {options.timeout_s + extension_s:.1f}"
                f"s, base={options.timeout_s:.1f}s + max_extension={extension_s:.1f}s)",
                JobStatus.TIMEOUT,
            )
        elif self._is_stuck(job, progress):
            names = ", ".join(each.datacenter for each in job.open_assignments())
            self._state.cancel(job, f"All DCs stuck: {names}", JobStatus.TIMEOUT)
        elif state.now_s >= progress.thresholds_at_s:
            progress.thresholds_at_s = state.now_s + state.timeouts.thresholds_s
            self._abort_on_threshold(job, progress)

    def _is_stuck(self, job: GlobalJob, progress: GlobalProgress) -> bool:
        """Return True if no datacenter was heard for long. Once the end of one was heard, the
        others are unknown instead: each of them is lost by itself, long after its own deadline."""
        state, open_ = self._state, list(job.open_assignments())
        if not open_ or any(each.status is AssignmentStatus.FINISHED for each in job.assignments):
            return False
        heard_s = max(progress.heard_of(each.datacenter).at_s for each in open_)
        return state.now_s - heard_s > state.timeouts.stuck_s

    def _give_up_on_failure(self, job: GlobalJob, replacing: frozenset[str]) -> None:
        if not any(True for _ in job.open_assignments()):
            return  # nothing is left to stop
        for each in job.counted():
            if each.has_ended and not each.is_completed and each.datacenter not in replacing:
                why = each.reason or (each.ended_as or each.status).value
                reason = f"{each.datacenter} did not complete ({why}): the job is all or nothing"
                self._state.cancel(job, reason, JobStatus.FAILED)
                return

    def _abort_on_threshold(self, job: GlobalJob, progress: GlobalProgress) -> None:
        for name, statistics in progress.statistics.items():
            if not statistics.has_abort:
                continue
            verdict = abort_verdict(statistics.thresholds, statistics.stats)
            if verdict is not None:
                self._state.propose(
                    GlobalCancelRequested(
                        job=job.id,
                        reason=f"stopped by the threshold of {name}: {verdict.describe()}",
                        status=JobStatus.FAILED,
                        aborted_by=name,
                    )
                )
                return

    def _finish(self, job: GlobalJob) -> None:
        self._state.propose(
            GlobalJobFinished(job=job.id, status=job.final_status(), reason=job.final_reason())
        )
