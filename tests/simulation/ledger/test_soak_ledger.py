"""The long run of the ledger. Writes what it found to benchmarks/results."""

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
from tests.simulation.ledger.mutants import MUTANTS, Mutant
from tests.simulation.ledger.schedules import PROFILES
from tests.simulation.ledger.suite import LedgerSuite

pytestmark = pytest.mark.soak

SCHEDULES = 10_000
MUTANT_SCHEDULES = 80


@pytest.mark.timeout(10_800)
def test_ten_thousand_schedules_violate_nothing() -> None:
    suite = LedgerSuite()
    processes = jobs_of_soak()
    first = next(seeds_of_commit())
    seeds = range(first, first + SCHEDULES)
    tally = parallel_campaign(suite, seeds, jobs=processes, on_failure=say)
    write_result(
        "soak-ledger.txt",
        "The ledger in the simulator: real cores and job machines, crashable disks, bad links; "
        "invariants after every event, linearizable histories, progress once healed",
        f"{tally.runs} schedules from seed {first} on ({', '.join(PROFILES)}), "
        f"{len(tally.failures)} failed, {tally.seconds:.0f} s, {processes} processes",
        *suite.summarise(tally.outcomes),
    )
    tally.raise_if_failed()


@pytest.mark.timeout(3_600)
def test_every_mutant_is_caught() -> None:
    with get_context("fork").Pool(jobs_of_soak()) as pool:
        caught = pool.map(_times_caught, MUTANTS, chunksize=1)
    write_result(
        "soak-ledger-mutants.txt",
        f"Broken rules of the ledger, noticed in so many of {MUTANT_SCHEDULES} schedules:",
        *(
            f"  {mutant.name}: {times} (profile {mutant.profile})"
            for mutant, times in zip(MUTANTS, caught, strict=True)
        ),
    )
    assert all(caught), dict(zip([mutant.name for mutant in MUTANTS], caught, strict=True))


def _times_caught(mutant: Mutant) -> int:
    suite = LedgerSuite([mutant.profile], mutant=mutant)
    return times_noticed(suite, mutant.caught_by, schedules=MUTANT_SCHEDULES)
