"""The long runs of membership. Each writes what it found to benchmarks/results."""

from itertools import product
from multiprocessing import get_context

import pytest

from tests.simulation.campaign import (
    jobs_of_soak,
    parallel_campaign,
    quantiles,
    say,
    seeds_of_commit,
    times_noticed,
    write_result,
)
from tests.simulation.fleet.lifeguard import (
    DETECTORS,
    INTERVAL_S,
    MEMBERS,
    PAPER_SUSPICION_S,
    interval,
    threshold,
)
from tests.simulation.fleet.mutants import MUTANTS, Mutant
from tests.simulation.fleet.schedules import PROFILES
from tests.simulation.fleet.suite import FleetSuite

pytestmark = pytest.mark.soak

SCHEDULES = 5_200
MUTANT_SCHEDULES = 40
JOBS = jobs_of_soak()

INTERVALS = (  # slow members, blocked for, free for
    (4, 8.192, 1.024),
    (4, 32.768, 4.096),
    (16, 8.192, 0.064),
    (16, 16.384, 1.024),
    (32, 8.192, 0.256),
    (32, 32.768, 4.096),
)
THRESHOLDS = ((1, 1), (4, 2), (16, 3), (32, 4))  # slow members, seed
FEWER = 50


@pytest.mark.timeout(10_800)
def test_thousands_of_schedules_violate_nothing_and_every_mutant_is_caught() -> None:
    suite = FleetSuite()
    first = next(seeds_of_commit())
    seeds = range(first, first + SCHEDULES)
    tally = parallel_campaign(suite, seeds, jobs=JOBS, on_failure=say)
    with get_context("fork").Pool(JOBS) as pool:
        caught = pool.map(_times_caught, MUTANTS)
    write_result(
        "soak-membership.txt",
        "Membership in the simulator: invariants after every event, bounds, one view healed",
        f"{tally.runs} schedules from seed {first} on ({', '.join(PROFILES)}), "
        f"{len(tally.failures)} failed, {tally.seconds:.0f} s with {_processes()}",
        *suite.summarise(tally.outcomes),
        "",
        f"Mutants, caught in so many of {MUTANT_SCHEDULES} schedules:",
        *(
            f"  {mutant.name}: {times} (profile {mutant.profile}, by '{mutant.caught_by}')"
            for mutant, times in zip(MUTANTS, caught, strict=True)
        ),
    )
    tally.raise_if_failed()
    assert all(caught), dict(zip([mutant.name for mutant in MUTANTS], caught, strict=True))


def _processes() -> str:
    return "one process" if JOBS == 1 else f"{JOBS} processes"


def _times_caught(mutant: Mutant) -> int:
    suite = FleetSuite([mutant.profile], core=mutant.core, drains=mutant.drains)
    return times_noticed(suite, (mutant.caught_by,), schedules=MUTANT_SCHEDULES)


@pytest.mark.timeout(10_800)
def test_slow_members_cause_no_false_positives_at_healthy_ones() -> None:
    with get_context("fork").Pool(JOBS, maxtasksperchild=1) as pool:
        counts = pool.starmap(_interval, product(range(len(DETECTORS)), INTERVALS), chunksize=1)
        latencies = pool.starmap(
            _threshold, product(range(len(DETECTORS)), THRESHOLDS), chunksize=1
        )
    blocked = ", ".join(str(count) for count, _ in THRESHOLDS)
    lines = [
        f"The Lifeguard paper's set-up (arXiv 1707.00788): {MEMBERS} members, some of them slow",
        "",
        f"False positives over {INTERVAL_S:.0f} s: healthy members declared dead, at anyone (FP) "
        "and at healthy",
        "members only (FP-), summed over (slow members, blocked s, free s) =",
        "  " + " ".join(str(each) for each in INTERVALS),
        "",
        f"{'':30}{'FP':>9}{'FP-':>9}{'FP- % of SWIM':>15}",
    ]
    totals = []
    for at, detector in enumerate(DETECTORS):
        mine = counts[at * len(INTERVALS) : (at + 1) * len(INTERVALS)]
        totals.append((sum(fp for fp, _ in mine), sum(healthy for _, healthy in mine)))
        share = 100 * totals[at][1] / max(1, totals[0][1])
        lines.append(f"{detector.name:30}{totals[at][0]:>9}{totals[at][1]:>9}{share:>15.2f}")
    lines += [
        f"{'the paper (Table IV), SWIM':30}{'':>18}{100:>15.2f}",
        f"{'the paper, Lifeguard':30}{'':>18}{1.9:>15.2f}  (FP 50 to 100 times fewer)",
        "",
        f"Seconds until members blocked for good ({blocked} of them) are declared dead at",
        "healthy members: by the first, by the last of them",
    ]
    for at, detector in enumerate(DETECTORS):
        pairs = [
            pair
            for each in latencies[at * len(THRESHOLDS) : (at + 1) * len(THRESHOLDS)]
            for pair in each
        ]
        lines.append(f"{detector.name:30}first {quantiles([first for first, _ in pairs])}")
        lines.append(f"{'':30}last  {quantiles([last for _, last in pairs])}")
    lines += [
        f"{'the paper':30}a suspicion of {PAPER_SUSPICION_S} s at {MEMBERS} members for SWIM, and "
        "with Lifeguard",
        f"{'':30}a modestly longer latency; both detectors are run above with its numbers",
    ]
    write_result("lifeguard.txt", *lines)
    off, ours = totals[2][1], totals[3][1]
    assert ours == 0 or ours * FEWER <= off
    swim = totals[0][1]
    assert swim > 0, "the slow members disturbed nobody: the set-up shows nothing"


def _interval(detector: int, setting: tuple[int, float, float]) -> tuple[int, int]:
    slow, blocked_s, free_s = setting
    return interval(DETECTORS[detector], slow=slow, blocked_s=blocked_s, free_s=free_s, seed=slow)


def _threshold(detector: int, setting: tuple[int, int]) -> list[tuple[float, float]]:
    slow, seed = setting
    return threshold(DETECTORS[detector], slow=slow, seed=seed)
