"""Jobs on the wire: every struct that travels has a number, and fits."""

import inspect
from random import Random

import msgspec
import pytest
from msgspec import Struct

from hyperscale.jobs import commands
from hyperscale.jobs.commands import (
    PartFinished,
    PartPhase,
    PartStatus,
    PartView,
    RunId,
    RunsHere,
)
from hyperscale.nodes import job_messages
from hyperscale.nodes.agent.fitting import fit
from hyperscale.stats.report import PartReport, SeriesPoint, StepCounts, StepReport
from hyperscale.wire.registry import REGISTRY, Priority

# Only ever fields of others.
PARTS = {"RunId", "PartView", "PartProgress", "WorkerShare", "HeldCores"}


def test_every_command_is_a_message() -> None:
    structs = {
        name: each
        for name, each in inspect.getmembers(commands, inspect.isclass)
        if issubclass(each, Struct) and each.__module__ == commands.__name__
    }
    missing = {name for name, each in structs.items() if each not in REGISTRY.by_type}
    assert missing == PARTS
    for each in structs.values():
        spec = REGISTRY.by_type.get(each)
        assert spec is None or 400 <= spec.kind < 450
    assert job_messages.FetchBlob in REGISTRY.by_type


def test_results_stops_and_leases_are_never_shed() -> None:
    for struct in (commands.PartFinished, commands.StopPart, commands.RenewLeases):
        assert REGISTRY.by_type[struct].priority is Priority.CRITICAL


def _report(steps: int, seconds: int) -> PartReport:
    latency = Random(1).randbytes(3000)  # as a wide distribution would take
    return PartReport(
        workflow="Load",
        slot=0,
        sequence=1,
        elapsed_s=float(seconds),
        vus=1,
        iterations=1,
        steps=[
            StepReport(
                name=f"step {n}",
                counts=StepCounts(total=7),
                latency=latency,
                series=[
                    SeriesPoint(second=second, total=1, failed=0, latency=latency)
                    for second in range(seconds)
                ],
            )
            for n in range(steps)
        ],
    )


RUN = RunId("dc.1-a", "Load", 0, 1)


@pytest.mark.parametrize("kind", ["finished", "here"])
def test_a_message_that_is_too_large_sheds_its_oldest_seconds(kind: str) -> None:
    report = _report(20, 600)
    message: Struct = PartFinished(
        worker="w1", group=1, run=RUN, status=PartStatus.COMPLETED, report=report
    )
    if kind == "here":
        view = PartView(run=RUN, phase=PartPhase.RUNNING, cores=1, report=report)
        message = RunsHere(worker="w1", parts=[view])
    assert len(msgspec.msgpack.encode(message)) > REGISTRY.spec_of(message).size
    assert REGISTRY.encode(fit(message))
    assert report.steps[0].series[-1].second == 599
    assert report.steps[0].counts.total == 7
    assert report.steps[0].latency is not None
