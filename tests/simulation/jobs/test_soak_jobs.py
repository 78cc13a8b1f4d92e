"""The long run of the job simulation. Writes what it found to benchmarks/results."""

import platform
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation.campaign import campaign, jobs_of_soak, parallel_campaign, seeds_of_commit
from tests.simulation.jobs.mutants import MUTANTS, Mutant
from tests.simulation.jobs.schedules import PROFILES
from tests.simulation.jobs.suite import JobSuite

pytestmark = pytest.mark.soak

RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "soak-jobs.txt"
SCHEDULES = 5_400
MUTANT_SCHEDULES = 100


@pytest.mark.timeout(7_200)
def test_thousands_of_schedules_violate_nothing_and_every_mutant_is_caught() -> None:
    suite = JobSuite()
    processes = jobs_of_soak()
    first = next(seeds_of_commit())
    tally = parallel_campaign(suite, range(first, first + SCHEDULES), jobs=processes)
    with get_context("fork").Pool(processes) as pool:
        caught = pool.map(_times_caught, MUTANTS)
    kernel = platform.release().split("-")[0]
    lines = (
        "Job leaders, allocator and agents in the simulator: invariants at every event, "
        "all accounted for at the end",
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
        "",
        f"({platform.system()} {kernel}, Python {platform.python_version()})",
    )
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    tally.raise_if_failed()
    assert all(caught), dict(zip([mutant.name for mutant in MUTANTS], caught, strict=True))


def _times_caught(mutant: Mutant) -> int:
    suite = JobSuite([mutant.profile], cores=mutant.cores)
    tally = campaign(suite, range(MUTANT_SCHEDULES), failures_max=MUTANT_SCHEDULES)
    return sum(
        any(words in failure.message for words in mutant.caught_by) for failure in tally.failures
    )
