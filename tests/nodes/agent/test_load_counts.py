"""Counters of the load that a worker has generated, from the cumulative reports of executors."""

from hyperscale._native import Report
from hyperscale.jobs.agent.events import PlaceEnded, PlaceReported
from hyperscale.jobs.messages import AttemptId
from hyperscale.nodes.agent.agent_metrics import LoadCounts
from hyperscale.plan.status import PartStatus
from tests.lab.job_builders import report

FIRST, SECOND = (AttemptId("dc.1-a", "Load", 0, attempt) for attempt in (1, 2))


def told(total: int, failed: int = 0) -> Report:
    return Report.decode(report(total=total, failed=failed, sent=2 * total))


def test_reports_of_all_attempts_and_places_add_up_and_never_count_twice() -> None:
    load = LoadCounts()
    load.note(PlaceReported(FIRST, 0, told(10)))
    load.note(PlaceReported(FIRST, 0, told(10)))
    load.note(PlaceReported(FIRST, 1, told(5, failed=2)))
    load.note(PlaceEnded(FIRST, 0, PartStatus.COMPLETED, report=told(12, failed=1)))
    load.note(PlaceEnded(FIRST, 1, PartStatus.FAILED, report=None))  # died: its last report stays
    load.note(PlaceReported(SECOND, 1, told(4)))
    assert (load.requests, load.calls, load.failed_calls) == (42, 21, 3)
