"""The simulation of gates with thousands of seeds; writes its report to benchmarks/results."""

from multiprocessing import get_context

import pytest

from tests.simulation.campaign import (
    jobs_of_soak,
    parallel_campaign,
    say,
    seeds_of_commit,
    times_noticed,
    write_result,
)
from tests.simulation.gates.mutants import MUTANTS, Mutant
from tests.simulation.gates.schedules import PROFILES
from tests.simulation.gates.suite import GateSuite

pytestmark = pytest.mark.soak

SCHEDULES = 5_400
MUTANT_SCHEDULES = 100


@pytest.mark.timeout(7_200)
def test_thousands_of_schedules_violate_nothing_and_every_mutant_is_caught() -> None:
    suite = GateSuite()
    processes = jobs_of_soak()
    first = next(seeds_of_commit())
    seeds = range(first, first + SCHEDULES)
    tally = parallel_campaign(suite, seeds, jobs=processes, on_failure=say)
    with get_context("fork").Pool(processes) as pool:
        caught = pool.map(_times_caught, MUTANTS)
    write_result(
        "soak-gates.txt",
        "Owners of global jobs, reporters and datacenters in the simulator: invariants at every "
        "event, all accounted for at the end",
        f"{tally.runs} schedules from seed {first} on ({', '.join(PROFILES)}), "
        f"{len(tally.failures)} failed, {tally.seconds:.0f} s, {processes} processes",
        *suite.summarise(tally.outcomes),
        "",
        f"Mutants, caught in so many of {MUTANT_SCHEDULES} schedules:",
        *(
            f"  {mutant.name}: {times} (profile {mutant.profile}, "
            f"by {' or '.join(map(repr, mutant.caught_by))})"
            for mutant, times in zip(MUTANTS, caught, strict=True)
        ),
    )
    tally.raise_if_failed()
    assert all(caught), dict(zip([mutant.name for mutant in MUTANTS], caught, strict=True))


def _times_caught(mutant: Mutant) -> int:
    suite = GateSuite([mutant.profile], cores=mutant.cores)
    return times_noticed(suite, mutant.caught_by, schedules=MUTANT_SCHEDULES)
