"""A seeded plan of faults for a local cluster: which node is killed, paused or restarted, and when.

Pure: the same seed and the same nodes give the same plan. At any time a majority of the managers
and at least one worker are up, so that the job can end.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

PAUSE_S_MAX = 12.0
_LEAD_S = 1.0  # by then the load has started


class FaultKind(Enum):
    """What happens to a node."""

    KILL = "kill"  # SIGKILL, restarted after `away_s`
    PAUSE = "pause"  # SIGSTOP of the node's process for `away_s`
    PAUSE_ALL = "pause_all"  # SIGSTOP of the node and its executors for `away_s`
    RESTART = "restart"  # SIGTERM, restarted `away_s` after the node has ended


_MANAGER_FAULTS = (FaultKind.KILL, FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)
_WORKER_FAULTS = (
    FaultKind.KILL,
    FaultKind.KILL,
    FaultKind.PAUSE,
    FaultKind.PAUSE_ALL,
    FaultKind.RESTART,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one node, `at_s` after the job was submitted."""

    at_s: float
    kind: FaultKind
    node: str
    away_s: float

    def describe(self) -> str:
        """Return the fault as a line for people."""
        match self.kind:
            case FaultKind.KILL:
                what = f"kill {self.node}, restart it after {self.away_s:.1f} s"
            case FaultKind.PAUSE:
                what = f"pause {self.node} for {self.away_s:.1f} s"
            case FaultKind.PAUSE_ALL:
                what = f"pause {self.node} and its executors for {self.away_s:.1f} s"
            case FaultKind.RESTART:
                what = f"restart {self.node}"
        return f"{self.at_s:5.1f} s  {what}"


def make_plan(
    seed: int, managers: Sequence[str], workers: Sequence[str], duration_s: float
) -> list[Fault]:
    """Return faults in order of time, all over by the end of the load or shortly after."""
    rng = random.Random(seed)  # noqa: S311  a seed makes a plan, not a secret
    plan: list[Fault] = []
    at_s = _LEAD_S + rng.uniform(0.0, 2.0)
    while at_s < duration_s - 1.0:
        is_worker = bool(workers) and rng.random() < 0.5
        tier = workers if is_worker else managers
        kind = rng.choice(_WORKER_FAULTS if is_worker else _MANAGER_FAULTS)
        away_s = _away_s(kind, rng)
        most = len(tier) - 1 if is_worker else (len(tier) - 1) // 2
        busy = {each.node for each in plan if each.node in tier and _over_at_s(each) > at_s}
        free = [node for node in tier if node not in busy]
        if len(busy) < most and free:
            plan.append(Fault(round(at_s, 2), kind, rng.choice(free), round(away_s, 2)))
        at_s += rng.expovariate(1 / 2.5) + 0.3
    return plan


def _away_s(kind: FaultKind, rng: random.Random) -> float:
    match kind:
        case FaultKind.PAUSE | FaultKind.PAUSE_ALL:
            return rng.choice((rng.uniform(0.5, 4.0), rng.uniform(4.0, PAUSE_S_MAX)))
        case FaultKind.KILL:
            return rng.uniform(0.2, 4.0)
        case FaultKind.RESTART:
            return rng.uniform(0.0, 1.0)


def _over_at_s(fault: Fault) -> float:
    """Return when the node has certainly recovered: started, joined and caught up."""
    return fault.at_s + fault.away_s + (4.0 if fault.kind is not FaultKind.PAUSE else 2.0)
