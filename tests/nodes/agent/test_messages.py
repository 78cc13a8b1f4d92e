"""Messages between workers and managers: each has a kind, and fits its size class."""

import inspect
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import Struct

from hyperscale.jobs import messages as commands
from hyperscale.jobs import messages as job_messages
from hyperscale.jobs.messages import (
    AttemptId,
    DeliverResult,
    ListAttemptsReply,
    PartPhase,
    PartView,
)
from hyperscale.nodes.agent.manager_links import ManagerLinks, fit
from hyperscale.plan.status import PartStatus
from hyperscale.wire.connection import Connection
from hyperscale.wire.registry import REGISTRY, MessagePriority
from tests.lab.reports import PartReport, SeriesPoint, StepCounts, StepReport, encoded, read

# Only used as fields of messages.
PARTS = {"AttemptId", "PartView", "PartProgress", "WorkerShare", "HeldCores"}


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
    for struct in (commands.DeliverResult, commands.StopPart, commands.RenewLeases):
        assert REGISTRY.by_type[struct].priority is MessagePriority.CRITICAL


def _report(steps: int, seconds: int) -> PartReport:
    latency = Random(1).randbytes(3000)  # the size of a wide distribution
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


RUN = AttemptId("dc.1-a", "Load", 0, 1)


@pytest.mark.parametrize("kind", ["finished", "here"])
def test_a_message_that_is_too_large_loses_the_histograms_of_its_oldest_seconds(kind: str) -> None:
    report = encoded(_report(20, 600))
    message: DeliverResult | ListAttemptsReply = DeliverResult(
        worker="w1", group=1, attempt_id=RUN, status=PartStatus.COMPLETED, report=report
    )
    if kind == "here":
        view = PartView(attempt_id=RUN, phase=PartPhase.RUNNING, report=report)
        message = ListAttemptsReply(parts=[view])
    assert len(msgspec.msgpack.encode(message)) > REGISTRY.spec_of(message).size
    fitted = fit(message)
    assert REGISTRY.encode(fitted)
    found = fitted.report if isinstance(fitted, DeliverResult) else fitted.parts[0].report
    assert found is not None
    (step, *_) = read(found).steps
    assert [point.second for point in step.series] == list(range(600))
    assert not step.series[0].latency
    assert step.series[-1].latency
    assert step.counts.total == 7
    assert step.latency is not None


def test_a_message_of_very_many_steps_keeps_its_counts() -> None:
    report = encoded(_report(8_000, 1))
    message = DeliverResult(
        worker="w1", group=1, attempt_id=RUN, status=PartStatus.COMPLETED, report=report
    )
    fitted = fit(message)
    assert REGISTRY.encode(fitted)
    assert fitted.report is not None
    assert [step.counts.total for step in read(fitted.report).steps] == [7] * 8_000


class _Server:
    """A peer that receives every message that can be encoded."""

    connections: ClassVar[list[Connection]] = []

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def connection_to(self, _node_id: str) -> "_Server":
        return self

    def send(self, message: Struct) -> None:
        self.sent.append(REGISTRY.encode(message))


def test_a_message_that_is_too_large_is_logged_and_does_not_end_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server: Any = _Server()
    managers = ManagerLinks(server, list)
    finished = DeliverResult(
        worker="w1", group=1, attempt_id=RUN, status=PartStatus.FAILED, report=None
    )
    managers.send("m1", msgspec.structs.replace(finished, provided=[bytes(17_000_000)]))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "over its class LARGE" in record.getMessage()
    managers.send("m1", finished)
    assert len(server.sent) == 1
