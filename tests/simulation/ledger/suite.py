"""The ledger as a suite of the campaign: one profile after the other, seed by seed."""

from collections.abc import Iterable

from tests.simulation.campaign import quantiles
from tests.simulation.ledger.mutants import REAL, Mutant
from tests.simulation.ledger.schedules import BALLOTS, PROFILES, Outcome, Plan, draw, run
from tests.simulation.trace import Trace


class LedgerSuite:
    """Random schedules over tiers of 3 to 7 nodes."""

    def __init__(self, profiles: Iterable[str] = PROFILES, *, mutant: Mutant = REAL) -> None:
        known = {**PROFILES, BALLOTS.name: BALLOTS}
        self._profiles = [known[name] for name in profiles]
        self._mutant = mutant
        self.name = f"ledger/{self._profiles[0].name}" if len(self._profiles) == 1 else "ledger"

    def draw(self, seed: int) -> Plan:
        return draw(self._profiles[seed % len(self._profiles)], seed)

    def run(self, plan: Plan, trace: Trace | None) -> Outcome:
        return run(plan, mutant=self._mutant, trace=trace)

    def describe(self, plan: Plan) -> str:
        lines = [
            f"{plan.profile}: {len(plan.nodes)} nodes, {len(plan.joiners)} that may join, "
            f"{plan.groups} groups, {plan.clients} clients, {plan.lasts_s:.1f} s, {plan.limits}",
            f"link {plan.link}",
        ]
        return "\n".join((*lines, *(f"  {step}" for step in plan.steps)))

    def summarise(self, outcomes: list[Outcome]) -> list[str]:
        found = [outcome.findings for outcome in outcomes]
        return [
            f"nodes: {quantiles([float(o.nodes) for o in outcomes], (0.0, 0.5, 1.0))}",
            f"events: {sum(o.events for o in outcomes)}, "
            f"virtual hours: {sum(o.virtual_s for o in outcomes) / 3600:.1f}",
            f"entries committed: {sum(f.entries for f in found)}, "
            f"acknowledged: {sum(f.acknowledged for f in found)}, "
            f"leaders: {sum(f.leaders for f in found)}, "
            f"snapshots installed: {sum(f.snapshots for f in found)}, "
            f"key slots handed over: {sum(f.migrations for f in found)} times",
            f"client calls answered: {sum(o.answered for o in outcomes)}, "
            f"of unknown outcome: {sum(o.unknown for o in outcomes)}",
            f"heal to all agreed, s: {quantiles([o.settled_s for o in outcomes])}",
        ]
