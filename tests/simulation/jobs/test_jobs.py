"""Running jobs under faults: random schedules, and mutants that must be caught."""

import pytest

from tests.simulation.campaign import campaign, is_noticed, seconds_per_simulation, seeds_of_commit
from tests.simulation.jobs.mutants import MUTANTS, Mutant
from tests.simulation.jobs.schedules import PROFILES
from tests.simulation.jobs.suite import JobSuite
from tests.simulation.trace import Trace

MUTANT_SEEDS = 400  # a rule may be broken for long before it matters

# Seeds that once showed something, by profile; each stays right.
FOUND = {
    "workers": {
        5: "a report that was long under way is as old as it says",
        11: "grants nobody used are taken back, also while workers keep telling",
        29: "a run of the new process does not die with the old one",
    },
    "isolation": {
        33: "a machine that stood still does not wake up beside its successor",
        27: "the same, with two cores",
        382: "a workflow planned for one grant is not dispatched by another",
    },
    "everything": {
        447: "nor with a grant that was taken back meanwhile",
        218178824931: "a checkpoint without news is no news",
        142965879163: "a worker that lacks a run says so until it is heard",
        146561058283: "a first report that was long under way is as old as it may be",
    },
    "stubborn": {
        218178826133: "what is known of a run is as old as its last report, whoever leads",
        235336450019: "parts do not hold cores for ever while another of theirs finds none",
    },
    "allocators": {
        911317: "two that must be alone do not wait for each other's cores for ever",
    },
    "blackout": {
        146561055142: "load begins when it is told to, not when that is answered",
    },
    "leaders": {
        23: "a run its worker was never told of costs no retry and leaves no gap",
    },
    "crashes": {
        27: "a worker back before its leader knows is not taken for dead",
        64: "no workers for a moment is not no workers",
    },
}


@pytest.mark.timeout(300)
def test_random_schedules_violate_no_invariant_and_no_bound() -> None:
    tally = campaign(JobSuite(), seeds_of_commit(), seconds=seconds_per_simulation())
    tally.raise_if_failed()
    assert tally.runs >= len(PROFILES)


@pytest.mark.parametrize(
    ("profile", "seed"),
    [(profile, seed) for profile, seeds in FOUND.items() for seed in seeds],
)
def test_what_once_went_wrong_stays_right(profile: str, seed: int) -> None:
    suite = JobSuite([profile])
    suite.run(suite.draw(seed), None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.timeout(120)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    suite = JobSuite([mutant.profile], cores=mutant.cores)
    assert is_noticed(suite, mutant.caught_by, schedules=MUTANT_SEEDS)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_is_the_same_run(profile: str) -> None:
    suite = JobSuite([profile])
    digests = set()
    for _ in range(2):
        trace = Trace()
        suite.run(suite.draw(7), trace)
        digests.add(trace.digest)
    assert len(digests) == 1
