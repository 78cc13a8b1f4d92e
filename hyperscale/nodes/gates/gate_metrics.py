"""Metrics of a gate: its state, the datacenters as it sees them, and the jobs that it owns."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from hyperscale.gates.committed.state import GlobalJob
from hyperscale.gates.datacenters.monitor import DatacenterView, Reachability
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.telemetry.metrics import Family, by, gauge


class GateState(StrEnum):
    """What a gate does, as operators see it."""

    SYNCING = "syncing"  # it has not joined its ledger, or reaches no leader: it is not ready
    ACTIVE = "active"
    DRAINING = "draining"  # other gates take over its votes


def gate_metrics(
    state: GateState, views: Mapping[str, DatacenterView], owned: Iterable[GlobalJob]
) -> list[Family]:
    """Return the metrics; `owned` are the jobs of groups that this gate leads."""
    seen = {name: view for name, view in views.items() if view.figures is not None}
    reachable = {
        name: float(view.reachability is Reachability.REACHABLE) for name, view in views.items()
    }
    free = {name: view.figures.available_cores for name, view in seen.items() if view.figures}
    rtts = {name: view.rtt_s for name, view in seen.items() if view.rtt_s is not None}
    jobs = Counter(job.status.value for job in owned)
    return [
        gauge(
            "hyperscale_gate_state",
            "1 for the state that the gate is in",
            *by("state", Counter({state: 1}), GateState),
        ),
        gauge(
            "hyperscale_datacenter_reachable",
            "1 if the gate reaches the datacenter",
            *by("datacenter", reachable, reachable),
        ),
        gauge(
            "hyperscale_datacenter_health",
            "Class of the datacenter: 0 healthy, 1 busy, 2 degraded, 3 unhealthy",
            *by("datacenter", {name: int(view.health) for name, view in views.items()}, views),
        ),
        gauge(
            "hyperscale_datacenter_free_cores",
            "Cores of the datacenter that run nothing",
            *by("datacenter", free, free),
        ),
        gauge(
            "hyperscale_datacenter_rtt_seconds",
            "Median round trip to managers of the datacenter",
            *by("datacenter", rtts, rtts),
        ),
        gauge(
            "hyperscale_global_jobs",
            "Jobs over datacenters that this gate owns, by status",
            *by("status", jobs, _STATUSES),
        ),
    ]


_STATUSES = [status.value for status in JobStatus]
