"""The simulation of gates: random schedules, and mutants that must be caught."""

import pytest

from tests.simulation.campaign import (
    Mutant,
    campaign,
    is_noticed,
    seconds_per_simulation,
    seeds_of_commit,
    trace_of,
)
from tests.simulation.gates.mutants import MUTANTS
from tests.simulation.gates.profiles import PROFILES
from tests.simulation.gates.suite import GateSuite

MUTANT_SEEDS = 200

# Seeds that found an error in the past, by profile.
FOUND = {
    "refusals": {
        126: "a refusal counts as well if it is the reply to a cancel",
        132: "the same, in a job over several datacenters",
        198941069809: "a refusal that could not be committed is asked for again",
    },
}


@pytest.mark.timeout(300)
def test_random_schedules_violate_no_invariant() -> None:
    tally = campaign(GateSuite(), seeds_of_commit(), seconds=seconds_per_simulation())
    tally.raise_if_failed()
    assert tally.runs >= len(PROFILES)


@pytest.mark.parametrize(
    ("profile", "seed"),
    [(profile, seed) for profile, seeds in FOUND.items() for seed in seeds],
)
def test_seeds_that_found_an_error_pass(profile: str, seed: int) -> None:
    suite = GateSuite([profile])
    suite.run(suite.draw(seed), None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.timeout(120)
def test_every_mutant_is_caught(mutant: Mutant) -> None:
    suite = GateSuite([mutant.profile], cores=mutant.cores)
    assert is_noticed(suite, mutant.caught_by, schedules=MUTANT_SEEDS)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_gives_the_same_trace(profile: str) -> None:
    suite = GateSuite([profile])
    assert trace_of(suite, 7) == trace_of(suite, 7)
