"""Runs, replays and keeps schedules from the command line. See `campaign`."""

# ruff: noqa: T201  printing is what a command does

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from types import ModuleType

from tests.simulation.campaign import Suite, parallel_campaign, seeds_of_commit
from tests.simulation.fleet import schedules as fleet
from tests.simulation.fleet.suite import FleetSuite
from tests.simulation.gates import schedules as gates
from tests.simulation.gates.suite import GateSuite
from tests.simulation.jobs import schedules as jobs
from tests.simulation.jobs.suite import JobSuite
from tests.simulation.kernel import Violation
from tests.simulation.ledger import schedules as ledger
from tests.simulation.ledger.suite import LedgerSuite
from tests.simulation.trace import Trace

_BY_NAME = {
    "gates": (GateSuite, gates),
    "jobs": (JobSuite, jobs),
    "ledger": (LedgerSuite, ledger),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--schedules", type=int, default=1000)
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--first", type=int, default=None, help="first seed; default: the commit's")
    run.add_argument(
        "--profile", action="append", default=[], help="e.g. deaths, ledger/slots, jobs"
    )
    replay = commands.add_parser("replay")
    replay.add_argument("which", help="<suite>-<seed>, as a failure names it")
    replay.add_argument("--lines", type=int, default=200)
    replay.add_argument("--about", action="append", default=[])
    keep = commands.add_parser("keep")
    keep.add_argument("which")
    keep.add_argument("name")
    keep.add_argument("why")
    given = parser.parse_args()
    if given.command == "run":
        return _run(given)
    name, _, seed = given.which.rpartition("-")
    suite, module = suite_of([name])
    plan = suite.draw(int(seed))
    if given.command == "keep":
        if module in (gates, jobs):
            parser.error(f"those of {name} are kept by seed: FOUND in its tests")
        print(module.save_scenario(plan, given.name, given.why))
        return 0
    trace = Trace(1_000_000)
    try:
        suite.run(plan, trace)
        verdict = "nothing wrong"
    except Violation as violation:
        verdict = str(violation)
    print(trace.tail(given.lines, about=tuple(given.about)))
    print(suite.describe(plan))
    print(f"digest {trace.digest}: {verdict}")
    return 0


def suite_of(names: Sequence[str]) -> tuple[Suite, ModuleType]:
    """The suite some profiles are of ("ledger/slots", or "ledger" for all of them), the fleet's
    if none is named."""
    for suite, (make, module) in _BY_NAME.items():
        profiles = [name.partition("/")[2] for name in names if name.partition("/")[0] == suite]
        if profiles:
            chosen = [name for name in profiles if name]
            return make(chosen) if chosen else make(), module
    known = [name for name in names if name in fleet.PROFILES]
    return FleetSuite(known or fleet.PROFILES), fleet


def _run(given: argparse.Namespace) -> int:
    suite, _ = suite_of(given.profile)
    seeds = seeds_of_commit() if given.first is None else iter(range(given.first, sys.maxsize))
    tally = parallel_campaign(
        suite,
        islice(seeds, given.schedules),
        jobs=given.jobs,
        on_failure=lambda failure: print(failure.report, end="\n\n", flush=True),
    )
    print(f"{tally.runs} schedules in {tally.seconds:.0f} s, {len(tally.failures)} failed")
    print("\n".join(suite.summarise(tally.outcomes)))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
