"""The metrics of a worker: its cores, attempts and executors, and the load it has generated."""

from collections import Counter

from hyperscale._native import Report
from hyperscale.execution.box import BOX_LIMITS
from hyperscale.execution.pooled_executor import ExecutorCounts, ExecutorEnd
from hyperscale.jobs.agent.core import Agent
from hyperscale.jobs.agent.events import (
    AgentEvent,
    AttemptPrepareFailed,
    PlaceEnded,
    PlaceReported,
)
from hyperscale.jobs.messages import AttemptId, PartPhase
from hyperscale.telemetry.metrics import Family, by, counter, gauge


class LoadCounts:
    """What the executors of a worker have counted since the worker started, over all attempts.

    Reports of executors are cumulative, so only the growth since the last one is added.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.calls = 0
        self.failed_calls = 0
        # By attempt and place: requests, calls and failed calls of the last report.
        self._reported: dict[tuple[AttemptId, int], tuple[int, int, int]] = {}

    def note(self, event: AgentEvent) -> None:
        """Count what a report adds; forget attempts that have ended."""
        match event:
            case PlaceReported(attempt_id=attempt_id, place=place, report=report):
                self._add((attempt_id, place), report)
            case PlaceEnded(attempt_id=attempt_id, place=place, report=report):
                if report is not None:
                    self._add((attempt_id, place), report)
                self._reported.pop((attempt_id, place), None)
            case AttemptPrepareFailed(attempt_id=attempt_id):
                for key in [key for key in self._reported if key[0] == attempt_id]:
                    del self._reported[key]

    def _add(self, key: tuple[AttemptId, int], report: Report) -> None:
        before = self._reported.get(key, (0, 0, 0))
        now = self._reported[key] = (report.sent, report.actions, report.failed)
        self.requests += now[0] - before[0]
        self.calls += now[1] - before[1]
        self.failed_calls += now[2] - before[2]


def agent_metrics(
    agent: Agent, load: LoadCounts, executors: ExecutorCounts, *, results_sent: int, boxed: str
) -> list[Family]:
    """Read the counts of a worker's parts."""
    phases = Counter(agent.attempts.values())
    in_force = boxed.split(", ") if boxed else []
    number = {phase.value: phases[phase] for phase in PartPhase if phase is not PartPhase.UNKNOWN}
    return [
        gauge("hyperscale_worker_cores", "Cores this worker offers", agent.total_cores),
        gauge("hyperscale_worker_cores_free", "Free cores of this worker", agent.free_cores),
        gauge(
            "hyperscale_worker_attempts",
            "Attempts on this worker, by phase",
            *by("phase", number, number),
        ),
        counter(
            "hyperscale_worker_results_sent_total",
            "Results of attempts sent to managers, repetitions included",
            results_sent,
        ),
        counter(
            "hyperscale_load_requests_total",
            "Requests that tests on this worker have sent to their targets",
            load.requests,
        ),
        counter(
            "hyperscale_load_calls_total",
            "Calls of steps that have finished on this worker, failed ones included",
            load.calls,
        ),
        counter(
            "hyperscale_load_failed_calls_total",
            "Calls of steps that have failed on this worker",
            load.failed_calls,
        ),
        gauge(
            "hyperscale_executors_sandbox",
            "1 for everything that the sandbox of this worker's executors limits",
            *by("limits", dict.fromkeys(BOX_LIMITS, 0) | dict.fromkeys(in_force, 1), BOX_LIMITS),
        ),
        gauge("hyperscale_executors", "Executor processes of this worker", executors.running),
        counter(
            "hyperscale_executors_started_total",
            "Executor processes that this worker has started",
            executors.started,
        ),
        counter(
            "hyperscale_executors_ended_total",
            "Executor processes that have ended, by cause",
            *by("cause", executors.ended, ExecutorEnd),
        ),
    ]
