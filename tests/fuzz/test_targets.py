"""A short run of every fuzz target, and everything a long one ever found."""

from pathlib import Path

import pytest

from tests.fuzz.mutate import fuzz
from tests.fuzz.targets import TARGETS, seeds

FOUND = Path(__file__).parent / "found"


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing(name: str) -> None:
    assert list(seeds(name)), "a target without valid input to start from"
    assert fuzz(name, seconds=30, seed=1, runs_max=600) == 600


def test_inputs_that_once_failed_pass() -> None:
    for path in sorted(FOUND.glob("*.bin")):
        TARGETS[path.name.partition("-")[0]](path.read_bytes())
