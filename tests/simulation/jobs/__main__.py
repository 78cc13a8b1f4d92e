"""One schedule again, with its trace: `python -m tests.simulation.jobs isolation 33 [about …]`."""

# ruff: noqa: T201  printing is what a command does

import sys

from tests.simulation.jobs.suite import JobSuite
from tests.simulation.kernel import Violation
from tests.simulation.trace import Trace

_LINES = 200


def main(profile: str, seed: str, *about: str) -> None:
    suite = JobSuite([profile])
    plan, trace = suite.draw(int(seed)), Trace(1_000_000)
    verdict = "nothing wrong"
    try:
        suite.run(plan, trace)
    except Violation as violation:
        verdict = str(violation)
    print(trace.tail(_LINES, about=about))
    print(suite.describe(plan))
    print(f"digest {trace.digest}: {verdict}")


if __name__ == "__main__":
    main(*sys.argv[1:])
