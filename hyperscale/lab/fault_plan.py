"""A seeded plan of trouble for a local cluster: who is killed, paused or restarted, and when.

Pure: the same seed and the same nodes give the same plan. Never more than a minority of the
managers and all workers but one at a time, so that a job can be carried through.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

PAUSE_S_MAX = 12.0
_LEAD_S = 1.0  # the load has begun by then
_KINDS_MANAGER = ("kill", "kill", "pause", "restart")
_KINDS_WORKER = ("kill", "kill", "pause", "pause_all", "restart")


class Kind(Enum):
    KILL = "kill"  # SIGKILL, started again after `away_s`
    PAUSE = "pause"  # SIGSTOP of the node's process for `away_s`
    PAUSE_ALL = "pause_all"  # the same, its executors with it
    RESTART = "restart"  # SIGTERM, started again `away_s` after it has ended


@dataclass(frozen=True, slots=True)
class Trouble:
    at_s: float
    kind: Kind
    node: str
    away_s: float

    def describe(self) -> str:
        match self.kind:
            case Kind.KILL:
                what = f"kill {self.node}, back after {self.away_s:.1f} s"
            case Kind.PAUSE:
                what = f"pause {self.node} for {self.away_s:.1f} s"
            case Kind.PAUSE_ALL:
                what = f"pause {self.node} and its executors for {self.away_s:.1f} s"
            case Kind.RESTART:
                what = f"restart {self.node}"
        return f"{self.at_s:5.1f} s  {what}"


def make_plan(
    seed: int, managers: Sequence[str], workers: Sequence[str], duration_s: float
) -> list[Trouble]:
    """Troubles in order of time, all over by the end of the load or not long after."""
    rng = random.Random(seed)  # noqa: S311  a seed makes a plan, not a secret
    plan: list[Trouble] = []
    at_s = _LEAD_S + rng.uniform(0.0, 2.0)
    while at_s < duration_s - 1.0:
        is_worker = bool(workers) and rng.random() < 0.5
        tier = workers if is_worker else managers
        kind = Kind(rng.choice(_KINDS_WORKER if is_worker else _KINDS_MANAGER))
        away_s = _away_s(kind, rng)
        most = len(tier) - 1 if is_worker else (len(tier) - 1) // 2
        busy = {each.node for each in plan if each.node in tier and _until_s(each) > at_s}
        free = [node for node in tier if node not in busy]
        if len(busy) < most and free:
            plan.append(Trouble(round(at_s, 2), kind, rng.choice(free), round(away_s, 2)))
        at_s += rng.expovariate(1 / 2.5) + 0.3
    return plan


def _away_s(kind: Kind, rng: random.Random) -> float:
    match kind:
        case Kind.PAUSE | Kind.PAUSE_ALL:
            return rng.choice((rng.uniform(0.5, 4.0), rng.uniform(4.0, PAUSE_S_MAX)))
        case Kind.KILL:
            return rng.uniform(0.2, 4.0)
        case Kind.RESTART:
            return rng.uniform(0.0, 1.0)


def _until_s(trouble: Trouble) -> float:
    """When the node is certainly itself again: time to start, join and catch up is added."""
    return trouble.at_s + trouble.away_s + (4.0 if trouble.kind is not Kind.PAUSE else 2.0)
