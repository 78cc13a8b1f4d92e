"""The three signals of a node (live, ready, progress) and how to route work to it.

| live | ready | progress | decision |
|---|---|---|---|
| no | any | any | EVICT |
| yes | any | stuck | DRAIN |
| yes | no | other | HOLD |
| yes | yes | stalled | INVESTIGATE |
| yes | yes | progressing, idle | ROUTE |

A node that is not ready is not dead: it is full, overloaded or leaving. Progress counts finished
actions, because a workflow may run for hours before it completes. Times are those of the receiver:
the clocks of other machines mean nothing here.
"""

from enum import StrEnum

from hyperscale.wire.admission import OverloadLevel

STALLED_S = 30.0
STUCK_S = 120.0


def why_not_ready(
    *, has_joined: bool, is_leaving: bool, overload: OverloadLevel
) -> tuple[str, ...]:
    """Return the reasons why a node should get no work; empty if it is ready."""
    reasons = (
        ("no manager is known", not has_joined),
        ("draining", is_leaving),
        ("overloaded", overload is OverloadLevel.OVERLOADED),
    )
    return tuple(reason for reason, holds in reasons if holds)


class WorkProgress(StrEnum):
    IDLE = "idle"  # no work is assigned
    PROGRESSING = "progressing"
    STALLED = "stalled"  # no action finished for `STALLED_S`
    STUCK = "stuck"  # no action finished for `STUCK_S`


class ProgressMeter:
    """The progress of one node, from what it reports."""

    def __init__(self) -> None:
        self._assigned = 0
        self._actions: int | None = None
        self._moved_s: float | None = None  # when work was assigned or an action finished

    def report(self, *, assigned: int, actions: int, now_s: float) -> None:
        """Take a report. `actions` counts up for the life of the node; any change is progress."""
        is_new_work = assigned > 0 and self._assigned == 0
        if is_new_work or actions != self._actions:
            self._moved_s = now_s
        self._assigned = assigned
        self._actions = actions

    def state(self, *, now_s: float) -> WorkProgress:
        if not self._assigned or self._moved_s is None:
            return WorkProgress.IDLE
        still_s = now_s - self._moved_s
        if still_s >= STUCK_S:
            return WorkProgress.STUCK
        return WorkProgress.STALLED if still_s >= STALLED_S else WorkProgress.PROGRESSING


class RoutingDecision(StrEnum):
    ROUTE = "route"
    INVESTIGATE = "investigate"
    HOLD = "hold"
    DRAIN = "drain"
    EVICT = "evict"


def routing_decision(*, is_live: bool, is_ready: bool, progress: WorkProgress) -> RoutingDecision:
    """Return the gravest decision that applies."""
    if not is_live:
        return RoutingDecision.EVICT
    if progress is WorkProgress.STUCK:
        return RoutingDecision.DRAIN
    if not is_ready:
        return RoutingDecision.HOLD
    if progress is WorkProgress.STALLED:
        return RoutingDecision.INVESTIGATE
    return RoutingDecision.ROUTE
