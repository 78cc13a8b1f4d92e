"""Many schedules of one suite, and what is said of the ones that fail.

    python -m tests.simulation run   --schedules 5000 --jobs 2
    python -m tests.simulation replay everything-1234          the same run again, with its trace
    python -m tests.simulation keep   everything-1234 a-name "why it matters"

A suite turns a seed into a plan (data), plays it, and raises `Violation` where an invariant does
not hold. The first run of a seed keeps no trace, which is fast; a failing one is run again with
a trace, and fails in the same way: that it does is checked.
"""

import gc
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as count_from
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

from tests.simulation.kernel import Violation
from tests.simulation.trace import Trace

TRACE_LINES = 60
SECONDS_VARIABLE = "HYPERSCALE_SIM_SECONDS"
JOBS_VARIABLE = "SOAK_JOBS"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


class Suite(Protocol):
    """What a core brings to be simulated."""

    name: str

    def draw(self, seed: int) -> Any:
        """The plan of a seed. Same seed, same plan."""

    def run(self, plan: Any, trace: Trace | None) -> Any:
        """Plays a plan; what was measured. Raises `Violation`."""

    def describe(self, plan: Any) -> str:
        """A plan for people."""

    def summarise(self, outcomes: list[Any]) -> list[str]:
        """What was measured over many runs, in lines."""


class ProfileSuite:
    """A suite whose seeds alternate between profiles. `cores` are those under test, or mutants."""

    tier: str
    profiles: Mapping[str, Any]

    def __init__(self, profiles: Iterable[str] = (), *, cores: Any = None) -> None:
        self._profiles = [self.profiles[name] for name in profiles or self.profiles]
        self._cores = cores
        is_one = len(self._profiles) == 1
        self.name = f"{self.tier}/{self._profiles[0].name}" if is_one else self.tier

    def profile_of(self, seed: int) -> Any:
        return self._profiles[seed % len(self._profiles)]

    @staticmethod
    def summarise_jobs(outcomes: list[Any]) -> list[str]:
        """How jobs ended, in how much virtual time."""
        statuses: Counter[str] = sum((Counter(each.statuses) for each in outcomes), Counter())
        return [
            f"jobs: {sum(outcome.jobs for outcome in outcomes)}, as "
            + ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())),
            f"events: {sum(outcome.events for outcome in outcomes)}, "
            f"virtual hours: {sum(outcome.virtual_s for outcome in outcomes) / 3600:.1f}",
        ]


@dataclass(frozen=True)
class Mutant:
    """Cores with one broken rule, which schedules of a profile must notice."""

    name: str
    cores: Any
    profile: str
    caught_by: tuple[str, ...]
    """Texts of violations, of which one must occur."""


@dataclass
class Failure:
    seed: int
    message: str
    report: str


@dataclass
class Tally:
    """What a campaign came to."""

    runs: int = 0
    seconds: float = 0.0
    outcomes: list[Any] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def raise_if_failed(self) -> None:
        if self.failures:
            shown = "\n\n".join(failure.report for failure in self.failures[:3])
            raise AssertionError(f"{len(self.failures)} of {self.runs} runs failed\n\n{shown}")


def play(suite: Suite, seed: int) -> Any | Failure:
    """One schedule, fast; with its trace if it fails."""
    gc.disable()  # a run is short and its garbage has few cycles
    try:
        return suite.run(suite.draw(seed), None)
    except Violation as violation:
        return _explain(suite, seed, str(violation))
    finally:
        gc.enable()


def is_noticed(suite: Suite, words: tuple[str, ...], *, schedules: int) -> bool:
    """Whether one of so many schedules fails with one of the words: what a mutant must come to."""
    return any(_notices(suite, words, seed) for seed in range(schedules))


def times_noticed(suite: Suite, words: tuple[str, ...], *, schedules: int) -> int:
    """How many of so many schedules do."""
    return sum(_notices(suite, words, seed) for seed in range(schedules))


def _notices(suite: Suite, words: tuple[str, ...], seed: int) -> bool:
    try:
        suite.run(suite.draw(seed), None)
    except Violation as violation:
        return any(each in str(violation) for each in words)
    return False


def _explain(suite: Suite, seed: int, message: str) -> Failure:
    plan, trace = suite.draw(seed), Trace()
    try:
        suite.run(plan, trace)
        again = "it did NOT fail when it was run again: the run is not deterministic"
    except Violation as violation:
        again = "" if str(violation) == message else f"again, but differently: {violation}"
    report = "\n".join(
        (
            f"{suite.name} seed {seed}: {message}",
            again or f"replay: python -m tests.simulation replay {suite.name}-{seed}",
            suite.describe(plan),
            f"last {TRACE_LINES} of {trace.count} trace entries:",
            trace.tail(TRACE_LINES),
        )
    )
    return Failure(seed, message, report)


def campaign(
    suite: Suite, seeds: Iterable[int], *, seconds: float | None = None, failures_max: int = 5
) -> Tally:
    """Play seeds until they or the `seconds` run out, or enough have failed."""
    tally = Tally()
    began_s = time.monotonic()
    for seed in seeds:
        _count(tally, play(suite, seed))
        tally.seconds = time.monotonic() - began_s
        is_over = seconds is not None and tally.seconds > seconds
        if is_over or len(tally.failures) >= failures_max:
            break
    return tally


def parallel_campaign(
    suite: Suite,
    seeds: Iterable[int],
    *,
    jobs: int,
    on_failure: Callable[[Failure], None] | None = None,
) -> Tally:
    """All seeds, over several processes; `on_failure` hears of one as soon as it is found."""
    tally = Tally()
    began_s = time.monotonic()
    with get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        tasks = ((suite, seed) for seed in seeds)
        for result in pool.imap_unordered(_play_one, tasks, chunksize=8):
            _count(tally, result)
            tally.seconds = time.monotonic() - began_s
            if on_failure is not None and isinstance(result, Failure):
                on_failure(result)
    return tally


def _play_one(task: tuple[Suite, int]) -> Any | Failure:
    return play(*task)


def _count(tally: Tally, result: Any | Failure) -> None:
    tally.runs += 1
    (tally.failures if isinstance(result, Failure) else tally.outcomes).append(result)


def soak(
    suite: type[ProfileSuite],
    mutants: Sequence[Mutant],
    *,
    file: str,
    about: str,
    schedules: int,
    mutant_schedules: int,
) -> None:
    """Play many seeds and every mutant; write what was found to a results file."""
    whole: Any = suite()
    processes = jobs_of_soak()
    first = next(seeds_of_commit())
    seeds = range(first, first + schedules)
    tally = parallel_campaign(whole, seeds, jobs=processes, on_failure=say)
    tasks = [(suite, mutant, mutant_schedules) for mutant in mutants]
    with get_context("fork").Pool(processes) as pool:
        caught = pool.map(_times_caught, tasks, chunksize=1)
    write_result(
        file,
        about,
        f"{tally.runs} schedules from seed {first} on ({', '.join(suite.profiles)}), "
        f"{len(tally.failures)} failed, {tally.seconds:.0f} s, {processes} processes",
        *whole.summarise(tally.outcomes),
        "",
        f"Mutants, caught in so many of {mutant_schedules} schedules:",
        *(
            f"  {mutant.name}: {times} (profile {mutant.profile}, "
            f"by {' or '.join(map(repr, mutant.caught_by))})"
            for mutant, times in zip(mutants, caught, strict=True)
        ),
    )
    tally.raise_if_failed()
    assert all(caught), dict(zip([mutant.name for mutant in mutants], caught, strict=True))


def _times_caught(task: tuple[type[ProfileSuite], Mutant, int]) -> int:
    suite, mutant, schedules = task
    one: Any = suite([mutant.profile], cores=mutant.cores)
    return times_noticed(one, mutant.caught_by, schedules=schedules)


def trace_of(suite: Suite, seed: int) -> str:
    """Return the digest of a run's trace: the same seed must give the same."""
    trace = Trace()
    suite.run(suite.draw(seed), trace)
    return trace.digest


def jobs_of_soak() -> int:
    """How many processes the long runs take: all cores this one may use, unless told."""
    return int(os.environ.get(JOBS_VARIABLE, len(os.sched_getaffinity(0))))


def say(failure: Failure) -> None:
    """At once, as a long run takes long."""
    print(f"seed {failure.seed}: {failure.message}", flush=True)  # noqa: T201


def write_result(name: str, *lines: str) -> None:
    """Keeps what a long run found, and where it was run."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    kernel = platform.release().split("-")[0]
    where = f"({platform.system()} {kernel}, Python {platform.python_version()})"
    (RESULTS / name).write_text("\n".join((*lines, "", where)) + "\n")


def seconds_per_simulation() -> float:
    """How long a simulation may take within the ordinary tests."""
    return float(os.environ.get(SECONDS_VARIABLE, "60"))


def seeds_of_commit() -> Iterator[int]:
    """Other seeds for every commit, the same for every run of one."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout
        return count_from(int(head[:7], 16) * 1_000)
    except (OSError, subprocess.CalledProcessError):
        return count_from(1)  # no history here: then always the same


def quantiles(values: list[float], marks: tuple[float, ...] = (0.5, 0.99, 0.999, 1.0)) -> str:
    """Some quantiles of what was measured, for people."""
    if not values:
        return "none"
    ranked = sorted(values)
    shown = [f"{ranked[int(mark * (len(ranked) - 1))]:.2f}" for mark in marks]
    names = ["max" if mark == 1.0 else f"p{mark * 100:g}" for mark in marks]
    return ", ".join(f"{n} {v}" for n, v in zip(names, shown, strict=True)) + f" (n={len(ranked)})"
