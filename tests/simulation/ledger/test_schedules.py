"""The ledger under faults: random schedules, kept scenarios, and mutants that must be caught."""

from pathlib import Path

import pytest

from tests.simulation.campaign import campaign, is_noticed, seconds_per_simulation, seeds_of_commit
from tests.simulation.ledger.mixed_versions import MIXED, UNGATED, newer_features
from tests.simulation.ledger.mutants import MUTANTS, Mutant
from tests.simulation.ledger.schedules import PROFILES, SCENARIOS, draw, load_scenario, run
from tests.simulation.ledger.suite import LedgerSuite
from tests.simulation.trace import Trace

MUTANT_SEEDS = 80
MIXED_SEEDS = 12


@pytest.mark.timeout(300)
def test_random_schedules_lose_nothing_and_make_progress_once_healed() -> None:
    suite = LedgerSuite()
    tally = campaign(suite, seeds_of_commit(), seconds=seconds_per_simulation())
    tally.raise_if_failed()
    assert tally.runs >= 1


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.json")), ids=lambda path: path.stem)
def test_a_schedule_that_once_failed_passes(path: Path) -> None:
    run(load_scenario(path))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    suite = LedgerSuite([mutant.profile], mutant=mutant)
    assert is_noticed(suite, mutant.caught_by, schedules=MUTANT_SEEDS)


@pytest.mark.parametrize("name", PROFILES)
def test_the_same_seed_gives_the_same_trace(name: str) -> None:
    traces = [Trace(), Trace()]
    for trace in traces:
        run(draw(PROFILES[name], 11), trace=trace)
    assert traces[0].digest == traces[1].digest
    assert traces[0].count > 1_000


def test_replicas_of_two_versions_have_the_same_state() -> None:
    suite = LedgerSuite(["strikes", "slots"], mutant=MIXED)
    with newer_features():
        tally = campaign(suite, range(MIXED_SEEDS), seconds=60.0)
    tally.raise_if_failed()
    assert tally.runs == MIXED_SEEDS


def test_without_the_gate_replicas_of_two_versions_differ() -> None:
    suite = LedgerSuite(["strikes"], mutant=UNGATED)
    with newer_features():
        assert is_noticed(suite, UNGATED.caught_by, schedules=MIXED_SEEDS)


def test_a_schedule_is_drawn_from_its_seed_alone() -> None:
    for profile in PROFILES.values():
        assert draw(profile, 7) == draw(profile, 7)
        assert draw(profile, 7) != draw(profile, 8)
