"""The job simulation as a suite of the campaign: seeds alternate between profiles."""

from tests.simulation.campaign import ProfileSuite, quantiles
from tests.simulation.jobs.profiles import PROFILES
from tests.simulation.jobs.schedules import Outcome, Plan, draw, run
from tests.simulation.trace import Trace


class JobSuite(ProfileSuite):
    """Random schedules over 1 to 5 managers and 2 to 4 workers."""

    tier = "jobs"
    profiles = PROFILES

    def draw(self, seed: int) -> Plan:
        return draw(self.profile_of(seed), seed)

    def run(self, plan: Plan, trace: Trace | None) -> Outcome:
        return run(plan, cores=self._cores, trace=trace)

    def describe(self, plan: Plan) -> str:
        lines = [
            f"{plan.profile}: {len(plan.managers)} managers, workers {plan.workers}, "
            f"{plan.groups} groups, link {plan.link}",
            *(f"  {job}" for job in plan.jobs),
            *(f"  {step}" for step in plan.steps),
        ]
        return "\n".join(lines)

    def summarise(self, outcomes: list[Outcome]) -> list[str]:
        return [
            *self.summarise_jobs(outcomes),
            f"attempts revoked: {sum(outcome.revoked for outcome in outcomes)}, "
            f"on shared cores of their job: {sum(outcome.shared for outcome in outcomes)}",
            f"death of a worker to its load being back, s: "
            f"{quantiles([s for o in outcomes for s in o.restored_s])}",
            f"gaps, s: {quantiles([s for o in outcomes for s in o.gaps_s])}",
        ]
