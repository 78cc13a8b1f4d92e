"""The simulation of gates as a suite of the campaign: seeds alternate between profiles."""

from collections.abc import Iterable

from tests.simulation.gates.schedules import PROFILES, Cores, Outcome, Plan, draw, run
from tests.simulation.trace import Trace


class GateSuite:
    """Random schedules over 1 to 5 gates and 2 to 4 datacenters."""

    def __init__(self, profiles: Iterable[str] = PROFILES, *, cores: Cores | None = None) -> None:
        self._profiles = [PROFILES[name] for name in profiles]
        self._cores = cores
        self.name = f"gates/{self._profiles[0].name}" if len(self._profiles) == 1 else "gates"

    def draw(self, seed: int) -> Plan:
        return draw(self._profiles[seed % len(self._profiles)], seed)

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
        statuses: dict[str, int] = {}
        for outcome in outcomes:
            for status, count in outcome.statuses.items():
                statuses[status] = statuses.get(status, 0) + count
        return [
            f"jobs: {sum(outcome.jobs for outcome in outcomes)}, as "
            + ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())),
            f"events: {sum(o.events for o in outcomes)}, "
            f"virtual hours: {sum(o.virtual_s for o in outcomes) / 3600:.1f}",
            f"refused parts that another datacenter took: {sum(o.replaced for o in outcomes)}, "
            f"parts lost: {sum(o.lost for o in outcomes)}, "
            f"results that came late: {sum(o.late for o in outcomes)}",
        ]
