"""Membership as a suite of the campaign: the profiles take turns, seed by seed."""

from collections.abc import Iterable
from typing import Any

from hyperscale.membership.core import Membership
from tests.simulation.campaign import quantiles
from tests.simulation.fleet.schedules import PROFILES, Outcome, Plan, draw, run
from tests.simulation.trace import Trace


class FleetSuite:
    """Random schedules over 3 to 50 nodes."""

    def __init__(
        self,
        profiles: Iterable[str] = PROFILES,
        *,
        core: Any = Membership,
        drains: bool = True,
    ) -> None:
        self._profiles = [PROFILES[name] for name in profiles]
        self._core = core
        self._drains = drains
        self.name = self._profiles[0].name if len(self._profiles) == 1 else "fleet"

    def draw(self, seed: int) -> Plan:
        return draw(self._profiles[seed % len(self._profiles)], seed)

    def run(self, plan: Plan, trace: Trace | None) -> Outcome:
        return run(plan, core=self._core, drains=self._drains, trace=trace)

    def describe(self, plan: Plan) -> str:
        roles = list(plan.roles.values())
        counted = ", ".join(f"{roles.count(role)} {role}s" for role in dict.fromkeys(roles))
        steps = [s for s in plan.steps if s["do"] != "start" or s["at_s"] > 3.0]
        lines = [f"{plan.profile}: {counted}, seeds {plan.seeds}, rejoin {plan.rejoin}"]
        lines += [f"link {plan.link}", *(f"  {step}" for step in steps)]
        return "\n".join(lines)

    def summarise(self, outcomes: list[Outcome]) -> list[str]:
        found = [outcome.findings for outcome in outcomes]
        refused = [value for f in found for value in f.refused_s]
        evidence = [value for f in found for value in f.evidence_s]
        silent = [value for f in found for value in f.silent_s]
        nodes = [float(outcome.nodes) for outcome in outcomes]
        events = sum(outcome.events for outcome in outcomes)
        return [
            f"nodes: {quantiles(nodes, (0.0, 0.5, 0.9, 1.0))}",
            f"events: {events}, virtual hours: {sum(o.virtual_s for o in outcomes) / 3600:.1f}",
            f"deaths seen: {sum(f.deaths for f in found)}, of live and reachable nodes: "
            f"{sum(f.false_deaths for f in found)}, suspicions: {sum(f.suspicions for f in found)}",
            f"crash to DEAD at each observer, s: {quantiles(refused)}",
            f"first refused evidence to DEAD at each observer, s: {quantiles(evidence)}",
            f"silence to DEAD at each observer, s: {quantiles(silent)}",
            f"heal to one view, s: {quantiles([o.converged_s for o in outcomes])}",
        ]
