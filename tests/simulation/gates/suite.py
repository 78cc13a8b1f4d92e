"""The simulation of gates as a suite of the campaign: seeds alternate between profiles."""

from tests.simulation.campaign import ProfileSuite
from tests.simulation.gates.profiles import PROFILES
from tests.simulation.gates.schedules import Outcome, Plan, draw, run
from tests.simulation.trace import Trace


class GateSuite(ProfileSuite):
    """Random schedules over 1 to 5 gates and 2 to 4 datacenters."""

    tier = "gates"
    profiles = PROFILES

    def draw(self, seed: int) -> Plan:
        return draw(self.profile_of(seed), seed)

    def run(self, plan: Plan, trace: Trace | None) -> Outcome:
        return run(plan, cores=self._cores, trace=trace)

    def describe(self, plan: Plan) -> str:
        lines = [
            f"{plan.profile}: {len(plan.gates)} gates, datacenters {plan.datacenters}, "
            f"{plan.groups} groups, link {plan.link}",
            *(f"  {job}" for job in plan.jobs),
            *(f"  {step}" for step in plan.steps),
        ]
        return "\n".join(lines)

    def summarise(self, outcomes: list[Outcome]) -> list[str]:
        return [
            *self.summarise_jobs(outcomes),
            f"parts that another datacenter took: {sum(o.replaced for o in outcomes)}, "
            f"parts lost: {sum(o.lost for o in outcomes)}, "
            f"results that came late: {sum(o.late for o in outcomes)}",
            f"changes of the load: {sum(o.changes for o in outcomes)}, "
            f"parts that spilled over: {sum(o.recalled for o in outcomes)}, "
            f"that joined late: {sum(o.joined for o in outcomes)}",
        ]
