"""The long run of the ledger. Writes what it found to benchmarks/results."""

import platform
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation.campaign import Failure, jobs_of_soak, parallel_campaign, seeds_of_commit
from tests.simulation.kernel import Violation
from tests.simulation.ledger.mutants import MUTANTS, Mutant
from tests.simulation.ledger.schedules import PROFILES
from tests.simulation.ledger.suite import LedgerSuite

pytestmark = pytest.mark.soak

RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "soak-ledger.txt"
SCHEDULES = 10_200
MUTANT_SCHEDULES = 80


@pytest.mark.timeout(10_800)
def test_ten_thousand_schedules_violate_nothing_and_every_mutant_is_caught() -> None:
    suite = LedgerSuite()
    processes = jobs_of_soak()
    with get_context("fork").Pool(processes) as pool:
        caught = pool.map(_times_caught, MUTANTS, chunksize=1)
    first = next(seeds_of_commit())
    seeds = range(first, first + SCHEDULES)
    tally = parallel_campaign(suite, seeds, jobs=processes, on_failure=_say)
    kernel = platform.release().split("-")[0]
    lines = (
        "The ledger in the simulator: real cores and job machines, crashable disks, bad links; "
        "invariants after every event, linearizable histories, progress once healed",
        f"{tally.runs} schedules from seed {first} on ({', '.join(PROFILES)}), "
        f"{len(tally.failures)} failed, {tally.seconds:.0f} s, {processes} processes",
        *suite.summarise(tally.outcomes),
        "",
        f"Mutants, caught in so many of {MUTANT_SCHEDULES} schedules:",
        *(
            f"  {mutant.name}: {times} (profile {mutant.profile})"
            for mutant, times in zip(MUTANTS, caught, strict=True)
        ),
        "",
        f"({platform.system()} {kernel}, Python {platform.python_version()})",
    )
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    tally.raise_if_failed()
    assert all(caught), dict(zip([mutant.name for mutant in MUTANTS], caught, strict=True))


def _say(failure: Failure) -> None:
    print(f"seed {failure.seed}: {failure.message}", flush=True)  # noqa: T201  it takes long


def _times_caught(mutant: Mutant) -> int:
    suite = LedgerSuite([mutant.profile], mutant=mutant)
    return sum(_is_caught(suite, mutant, seed) for seed in range(MUTANT_SCHEDULES))


def _is_caught(suite: LedgerSuite, mutant: Mutant, seed: int) -> bool:
    try:
        suite.run(suite.draw(seed), None)
    except Violation as violation:
        return any(words in str(violation) for words in mutant.caught_by)
    return False
