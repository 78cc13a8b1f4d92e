"""Where soak tests of clusters leave what they found: benchmarks/results/soak-cluster.txt."""

from pathlib import Path

from tests.nodes.report import Report

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "soak-cluster.txt"


def report() -> Report:
    return Report(RESULTS)
