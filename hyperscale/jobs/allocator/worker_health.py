"""Whether workers get parts: the routing decision of each, and its reason.

A worker is held if it says that it cannot work (draining, unfit, overloaded), if members suspect
it, or if it has not announced its cores for `SILENT_S`, although workers do so each second. One
with an executor that does not report is drained: it keeps its parts and gets no others. One whose
actions do not finish gets parts after the others. Dead workers are not here: the pool drops them,
and job leaders give their parts to others.
"""

from collections.abc import Mapping
from typing import NamedTuple

from hyperscale.health.signals import RoutingDecision, WorkProgress, routing_decision
from hyperscale.jobs.messages import AnnounceCores

SILENT_S = 3.0
_ASLEEP_S = 2.0
"""Verdicts are made each second. After a longer pause the allocator itself was suspended, and has
not read what workers sent meanwhile."""


class RoutingVerdict(NamedTuple):
    decision: RoutingDecision = RoutingDecision.ROUTE
    reason: str = ""


GETS_PARTS = (RoutingDecision.ROUTE, RoutingDecision.INVESTIGATE)
_WELL = RoutingVerdict()


class WorkerVerdicts:
    """The verdict on every worker that has announced its cores."""

    def __init__(self) -> None:
        self._verdicts: dict[str, RoutingVerdict] = {}
        self._heard_s: dict[str, float] = {}
        self._suspects: set[str] = set()
        self._judged_s: float | None = None

    def __getitem__(self, worker: str) -> RoutingVerdict:
        return self._verdicts.get(worker, _WELL)

    def gets_parts(self, worker: str) -> bool:
        return self[worker].decision in GETS_PARTS

    def comes_last(self, worker: str) -> bool:
        return self[worker].decision is RoutingDecision.INVESTIGATE

    def heard(self, worker: str, *, now_s: float) -> None:
        """Note that a worker has announced its cores."""
        self._heard_s[worker] = now_s

    def suspected(self, worker: str, *, is_suspect: bool) -> None:
        """Note whether members suspect that a worker is dead."""
        if is_suspect:
            self._suspects.add(worker)
        else:
            self._suspects.discard(worker)

    def forget(self, worker: str) -> None:
        """Drop a worker that is dead or has left."""
        self._verdicts.pop(worker, None)
        self._heard_s.pop(worker, None)
        self._suspects.discard(worker)

    def judge(
        self, workers: Mapping[str, AnnounceCores], *, now_s: float
    ) -> dict[str, RoutingVerdict]:
        """Judge every worker; return the verdicts whose decision has changed."""
        judged_s, self._judged_s = self._judged_s, now_s
        if judged_s is not None and now_s > judged_s + _ASLEEP_S:
            asleep_s = now_s - judged_s
            for name, heard_s in self._heard_s.items():
                self._heard_s[name] = min(now_s, heard_s + asleep_s)
        changed: dict[str, RoutingVerdict] = {}
        for name, cores in workers.items():
            before = self[name]
            verdict = self._verdicts[name] = self._judge(cores, now_s)
            if verdict.decision is not before.decision:
                changed[name] = verdict
        return changed

    def _judge(self, cores: AnnounceCores, now_s: float) -> RoutingVerdict:
        reasons = list(cores.unfit)
        if cores.draining:
            reasons.append("it is draining")
        if cores.overloaded:
            reasons.append(cores.overloaded)
        if cores.worker in self._suspects:
            reasons.append("other nodes cannot reach it")
        if now_s >= self._heard_s.get(cores.worker, now_s) + SILENT_S:
            reasons.append(f"it has not announced its cores for {SILENT_S:g} s")
        decision = routing_decision(is_live=True, is_ready=not reasons, progress=cores.progress)
        if cores.progress in (WorkProgress.STUCK, WorkProgress.STALLED):
            reasons.append(cores.still)
        return RoutingVerdict(decision, "; ".join(reasons))
