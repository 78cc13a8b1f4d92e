"""The job simulation with thousands of seeds; writes its report to benchmarks/results."""

import pytest

from tests.simulation.campaign import soak
from tests.simulation.jobs.mutants import MUTANTS
from tests.simulation.jobs.suite import JobSuite


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_thousands_of_schedules_violate_nothing_and_every_mutant_is_caught() -> None:
    soak(
        JobSuite,
        MUTANTS,
        file="soak-jobs.txt",
        about="Job leaders, allocator and agents in the simulator: invariants at every event, all "
        "accounted for at the end",
        schedules=5_400,
        mutant_schedules=100,
    )
