"""Where the parts of a global job go: the first choice, and other datacenters for vacant parts."""

from hyperscale.gates.committed.events import (
    DatacentersAssigned,
    DatacenterShare,
    GlobalOptions,
)
from hyperscale.gates.committed.state import DatacenterAssignment, GlobalJob, Withdrawal
from hyperscale.gates.datacenters.health import DatacenterHealth
from hyperscale.gates.datacenters.monitor import DatacenterView, Reachability
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.datacenters.routing import (
    DatacenterChoice,
    RoutingRefusal,
    RoutingRequest,
    choose_datacenters,
)
from hyperscale.gates.owner.state import GlobalProgress, OwnerState
from hyperscale.gates.slices import (
    PlanShare,
    split_plan,
    split_problem,
    whole_plan,
    without_rows,
)
from hyperscale.gates.vacancies import Targets, VacancySplit, split_vacancy, target_of
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.plan import Plan


class DatacenterPlacement:
    """Chooses datacenters for jobs and for parts that nobody runs."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state

    def route(
        self, key: str, options: GlobalOptions, *, instead_of: frozenset[str] = frozenset()
    ) -> DatacenterChoice | RoutingRefusal:
        """Choose datacenters for a job as of now, or one more instead of those given."""
        state = self._state
        datacenters = state.datacenters
        request = RoutingRequest(
            key=key,
            count=1 if instead_of else max(1, options.datacenter_count),
            named=() if instead_of else options.datacenters,
            may_replace=options.fallback,
            excluded=instead_of,
            under_way=datacenters.cores_under_way(now_s=state.now_s),
            cooling=datacenters.cooling(now_s=state.now_s),
            open_breakers=state.deliveries.open_breakers(now_s=state.now_s),
            local=datacenters.local,
        )
        return choose_datacenters(datacenters.views, request)

    def assign(self, job: GlobalJob) -> None:
        decision = self.route(job.key, job.options)
        if isinstance(decision, RoutingRefusal):
            waited_s = (self._state.now_ms - job.submitted_ms) / 1000
            if waited_s > job.options.job.dispatch_timeout_s:
                self._state.cancel(job, decision.message, JobStatus.FAILED)
            return
        problem = split_problem(job.plan, len(decision.primary))
        if problem is not None and not job.options.vus_per_datacenter:
            self._state.cancel(job, problem, JobStatus.FAILED)
            return
        shares = self.split(job.plan, job.options, decision.primary)
        self._propose_shares(job, shares, decision)

    def split(
        self, plan: Plan, options: GlobalOptions, datacenters: tuple[str, ...]
    ) -> dict[str, PlanShare]:
        """Split a plan over datacenters by their cores."""
        if options.vus_per_datacenter:
            return whole_plan(plan, list(datacenters))
        figures = {name: self._state.datacenters.views[name].figures for name in datacenters}
        cores = {name: each.total_cores if each else 1 for name, each in figures.items()}
        return split_plan(plan, cores)

    def _propose_shares(
        self,
        job: GlobalJob,
        shares: dict[str, PlanShare],
        decision: DatacenterChoice | None,
        *,
        replaces: str = "",
        given: dict[str, Targets] | None = None,
    ) -> None:
        self._state.propose(
            DatacentersAssigned(
                job=job.id,
                shares=[
                    DatacenterShare(datacenter=name, workflows=workflows)
                    for name, workflows in shares.items()
                ],
                routing=decision,
                replaces=replaces,
                given={
                    name: amounts
                    for name, amounts in (given or {}).items()
                    if any(amounts.values())
                },
            )
        )

    def fill_vacancies(self, job: GlobalJob) -> frozenset[str]:
        """Give the parts that nobody runs to others, if that is allowed. Return the datacenters
        whose replacement is under way.

        An assignment with an unknown outcome is never replaced: it may be running."""
        if job.options.datacenters and not job.options.fallback:
            return frozenset()
        vacant = [each for each in job.assignments if each.is_vacant]
        return frozenset(each.datacenter for each in vacant if self._fill(job, each))

    def _fill(self, job: GlobalJob, vacant: DatacenterAssignment) -> bool:
        """Give a vacant part to one datacenter that has none, to those that have one, or to both.
        Return False if nobody can take it."""
        taken = frozenset(each.datacenter for each in job.assignments)
        decision = self.route(job.key, job.options, instead_of=taken)
        choice = decision if isinstance(decision, DatacenterChoice) else None
        spare = None if choice is None else choice.primary[0]
        split = self._split_anew(job, vacant, spare)
        if split is None and spare is None:
            return False
        share = self._whole(job, vacant) if split is None else split.spare
        self._propose_shares(
            job,
            {} if spare is None or share is None else {spare: share},
            choice,
            replaces=vacant.datacenter,
            given={} if split is None else split.given,
        )
        return True

    def _whole(self, job: GlobalJob, vacant: DatacenterAssignment) -> PlanShare:
        may_have_run = job.started_ms and vacant.withdrawn is Withdrawal.REMOVED
        return without_rows(job.plan, vacant.workflows) if may_have_run else vacant.workflows

    def _split_anew(
        self, job: GlobalJob, vacant: DatacenterAssignment, spare: str | None
    ) -> VacancySplit | None:
        """Split a vacant part by capacity; None if it goes to the spare datacenter as it is."""
        is_recalled = vacant.withdrawn is Withdrawal.RECALLED  # because the spare one has cores
        if job.options.vus_per_datacenter or (is_recalled and spare is not None):
            return None
        views = self._state.datacenters.views
        parts = {
            each.datacenter: {
                name: target_of(share, name, each.changes.all)
                for name, share in each.workflows.items()
            }
            for each in job.open_assignments()
            if each.withdrawn is None and _can_take_more(views.get(each.datacenter))
        }
        cores = {
            name: view.figures.total_cores
            for name, view in views.items()
            if view.figures is not None
        }
        changes = vacant.changes.all
        return split_vacancy(job.plan, (vacant.workflows, changes), parts, cores, spare=spare)

    def spills_over(
        self, job: GlobalJob, progress: GlobalProgress, assignment: DatacenterAssignment
    ) -> bool:
        """Return True if a part has waited for cores as long as it may, and another datacenter has
        some."""
        options, heard = job.options, progress.heard_of(assignment.datacenter)
        if options.spill_over_s is None or (options.datacenters and not options.fallback):
            return False
        since_s = heard.queued_since_s
        if since_s is None or self._state.now_s - since_s < options.spill_over_s:
            return False
        taken = frozenset(each.datacenter for each in job.assignments)
        decision = self.route(job.key, options, instead_of=taken)
        return (
            isinstance(decision, DatacenterChoice)
            and decision.worst_health is DatacenterHealth.HEALTHY
        )


def _can_take_more(view: DatacenterView | None) -> bool:
    """Return True if a datacenter that runs a part can take some of another one."""
    return (
        view is not None
        and view.figures is not None
        and view.reachability is Reachability.REACHABLE
        and view.state is DatacenterState.ACTIVE
        and view.health is not DatacenterHealth.UNHEALTHY
    )
