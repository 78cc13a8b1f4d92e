"""The job simulation: random schedules, and mutants that must be caught."""

import pytest

from tests.simulation.campaign import (
    Mutant,
    campaign,
    is_noticed,
    seconds_per_simulation,
    seeds_of_commit,
    trace_of,
)
from tests.simulation.jobs.mutants import MUTANTS
from tests.simulation.jobs.profiles import PROFILES
from tests.simulation.jobs.suite import JobSuite

MUTANT_SEEDS = 400  # a broken rule may need many schedules to show

# Seeds that found an error in the past, by profile.
FOUND = {
    "workers": {
        5: "the age of a delayed report is that of its content",
        11: "unused grants expire although workers keep announcing cores",
        29: "an attempt of a restarted worker does not end with the old process",
    },
    "isolation": {
        33: "a resumed machine generates no load beside the next attempt",
        27: "the same, with two cores",
        382: "a workflow planned for one grant is not dispatched by another",
    },
    "everything": {
        447: "a workflow is not dispatched with an expired grant",
        218178824931: "a checkpoint without new reports does not renew their age",
        142965879163: "a worker repeats that it does not know an attempt",
        146561058283: "the age of a delayed first report is its upper bound",
    },
    "stubborn": {
        218178826133: "the age of statistics is that of the last report, across leaders",
        235336450019: "parts release their cores if another part of the workflow gets none",
    },
    "allocators": {
        911317: "two exclusive workflows do not wait for each other's cores",
    },
    "blackout": {
        146561055142: "load counts from the start command, not from its reply",
    },
    "leaders": {
        23: "an attempt unknown to its worker costs no retry and leaves no gap",
    },
    "crashes": {
        27: "a worker that restarts before its death is detected is not lost",
        64: "a job survives a moment without workers",
    },
}


@pytest.mark.timeout(300)
def test_random_schedules_violate_no_invariant_and_no_bound() -> None:
    tally = campaign(JobSuite(), seeds_of_commit(), seconds=seconds_per_simulation())
    tally.raise_if_failed()
    assert tally.runs >= len(PROFILES)
    assert any(outcome.shared for outcome in tally.outcomes)


@pytest.mark.parametrize(
    ("profile", "seed"),
    [(profile, seed) for profile, seeds in FOUND.items() for seed in seeds],
)
def test_seeds_that_found_an_error_pass(profile: str, seed: int) -> None:
    suite = JobSuite([profile])
    suite.run(suite.draw(seed), None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.timeout(120)
def test_every_mutant_is_caught(mutant: Mutant) -> None:
    suite = JobSuite([mutant.profile], cores=mutant.cores)
    assert is_noticed(suite, mutant.caught_by, schedules=MUTANT_SEEDS)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_gives_the_same_trace(profile: str) -> None:
    suite = JobSuite([profile])
    assert trace_of(suite, 7) == trace_of(suite, 7)
