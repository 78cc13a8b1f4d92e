"""Changes of the load of a running workflow, and the shape that follows from them.

A *change* scales the load, pauses it or resumes it. The *own time* of a workflow is the time since
its load began. Its *place* in its shape is its own time without the time it was paused: a paused
workflow stays where it is, and goes on from there. Scaling replaces the rest of the shape: the load
goes from where it is to the new target, and stays there until the workflow ends.

Pure functions of the plan and of the changes so far: whoever knows both, knows how many users or
which rate there should be at any time.
"""

import math
from collections.abc import Collection, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.errors import InputError
from hyperscale.plan.model import WorkflowPlan
from hyperscale.plan.shapes import TARGET_MAX, Shape, StagePlan, constant
from hyperscale.plan.share import apportion

_INSTANT_S = 1e-9


class ChangeKind(Enum):
    SCALE = "scale"
    PAUSE = "pause"
    RESUME = "resume"


class LoadChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that was asked for, of a run or job."""

    id: str  # unique: the same change twice is one
    kind: ChangeKind
    workflow: str = ""  # of SCALE; empty: the one that runs, or those that share a total
    # One of them for SCALE, for all cores and workers together.
    vus: int | None = None
    rate: float | None = None  # iterations per second
    over_s: float = 0.0  # how long it takes to get there
    by: str = ""

    def describe(self) -> str:
        """Return the change in words."""
        if self.kind is not ChangeKind.SCALE:
            return "the load is paused" if self.kind is ChangeKind.PAUSE else "the load goes on"
        target = f"{self.rate:g}/s" if self.vus is None else f"{self.vus:,} users"
        over = f" over {self.over_s:g} s" if self.over_s else ""
        return f"{self.workflow or 'the load'} goes to {target}{over}"


class AppliedChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of one workflow, and when in its own time it was made."""

    kind: ChangeKind
    at_s: float
    target: float = 0.0  # of SCALE: users, or iterations per second
    over_s: float = 0.0  # of SCALE: how long it takes to get there
    by: str = ""


class LoadSchedule:
    """The shape of a workflow with the changes made so far."""

    def __init__(self, plan: WorkflowPlan, changes: Sequence[AppliedChange] = ()) -> None:
        self.duration_s = plan.duration_s
        self._pauses: list[tuple[float, float | None]] = []  # from, until
        stages = plan.stages
        for change in changes:
            match change.kind:
                case ChangeKind.PAUSE if not self.is_paused:
                    self._pauses.append((change.at_s, None))
                case ChangeKind.RESUME if self.is_paused:
                    self._pauses[-1] = (self._pauses[-1][0], change.at_s)
                case ChangeKind.SCALE:
                    stages = scaled(
                        stages or constant(plan.vus, plan.duration_s),
                        self.place_s(change.at_s),
                        target=change.target,
                        over_s=change.over_s,
                    )
        self.stages = stages
        """In time of the place; empty if the users are the same all the time."""
        self.vus = plan.vus if plan.is_open else max(plan.vus, round(Shape(stages).peak))
        """The most users there are at once."""

    @property
    def is_paused(self) -> bool:
        return bool(self._pauses) and self._pauses[-1][1] is None

    def paused_s(self, at_s: float) -> float:
        """Return for how long the workflow was paused up to an instant of its own time."""
        return sum(
            max(0.0, (at_s if until_s is None else min(until_s, at_s)) - from_s)
            for from_s, until_s in self._pauses
        )

    def place_s(self, at_s: float) -> float:
        """Return the place at an instant of its own time."""
        return at_s - self.paused_s(at_s)

    def at_s(self, place_s: float) -> float | None:
        """Return the instant of its own time at which it gets beyond a place; None: it is paused
        before."""
        at_s = place_s
        for from_s, until_s in self._pauses:
            if at_s < from_s:
                break
            if until_s is None:
                return None
            at_s += max(0.0, until_s - from_s)
        return at_s

    def target_at(self, place_s: float) -> float:
        """Return the users, or the rate, at a place."""
        return Shape(self.stages).value_at(place_s) if self.stages else float(self.vus)

    def remaining_s(self, at_s: float) -> float | None:
        """Return how long the load goes on after an instant of its own time; None: it is paused."""
        end_s = self.at_s(self.duration_s)
        return None if end_s is None else max(0.0, end_s - at_s)


def applied(
    change: LoadChange, plans: Sequence[WorkflowPlan], live: Collection[str], *, is_paused: bool
) -> dict[str, float]:
    """Return the workflows that a change is for, and the target of each (0 unless it scales).

    `live` are the workflows that have not ended. Raises InputError if the change does not fit.
    """
    _check(change)
    running = [plan for plan in plans if plan.name in live and plan.is_timed]
    if change.kind is not ChangeKind.SCALE:
        wants_pause = change.kind is ChangeKind.PAUSE
        if wants_pause == is_paused:
            raise InputError(
                "the load is paused already" if is_paused else "the load is not paused"
            )
        if not running:
            raise InputError("no workflow is left whose load can be changed")
        return {plan.name: 0.0 for plan in running}
    chosen = _chosen(change, plans, running)
    for plan in chosen:
        _check_fits(change, plan)
    total = change.rate if change.vus is None else float(change.vus)
    assert total is not None  # `_check` has looked
    weights = [plan.weight or 1.0 for plan in chosen]
    if change.vus is not None:
        users = apportion(change.vus, weights)
        return {plan.name: float(each) for plan, each in zip(chosen, users, strict=True)}
    whole = sum(weights)
    return {plan.name: total * each / whole for plan, each in zip(chosen, weights, strict=True)}


def _check(change: LoadChange) -> None:
    """Check a change by itself. Raises InputError."""
    given = [each for each in (change.vus, change.rate) if each is not None]
    if change.kind is not ChangeKind.SCALE:
        if given or change.workflow or change.over_s:
            raise InputError(f"a {change.kind.value} has no target: it is for all workflows")
        return
    if len(given) != 1:
        raise InputError("give the new number of users or the new rate, and not both")
    if not 0 <= given[0] <= TARGET_MAX:
        raise InputError(f"{given[0]:,} is no target", hint=f"0 to {TARGET_MAX:,}")
    if not (math.isfinite(change.over_s) and change.over_s >= 0):
        raise InputError(f"the load cannot change over {change.over_s:g} s")


def _chosen(
    change: LoadChange, plans: Sequence[WorkflowPlan], running: Sequence[WorkflowPlan]
) -> Sequence[WorkflowPlan]:
    if change.workflow:
        if change.workflow not in {plan.name for plan in plans}:
            names = ", ".join(plan.name for plan in plans)
            raise InputError(f"there is no workflow {change.workflow}", hint=f"it has {names}")
        chosen = [plan for plan in running if plan.name == change.workflow]
        if not chosen:
            raise InputError(f"{change.workflow} has ended, or has no load over time")
        return chosen
    if not running:
        raise InputError("no workflow is left whose load can be changed")
    if len(running) > 1 and any(plan.weight is None for plan in running):
        names = ", ".join(plan.name for plan in running)
        raise InputError("there are several workflows", hint=f"name one of {names}")
    return running


def _check_fits(change: LoadChange, plan: WorkflowPlan) -> None:
    if plan.is_counted:
        hint = "it can be paused and resumed"
        raise InputError(f"{plan.name} ends after its iterations: it cannot be scaled", hint=hint)
    if plan.is_open and change.vus is not None:
        raise InputError(f"{plan.name} has a rate and no fixed users", hint="give a rate: 500/s")
    if not plan.is_open and change.rate is not None:
        raise InputError(f"{plan.name} has users and no rate", hint="give a number of users")


def scaled(
    stages: Sequence[StagePlan], place_s: float, *, target: float, over_s: float
) -> tuple[StagePlan, ...]:
    """Return the stages with another target from a place on, reached in `over_s`, for the rest of
    their duration."""
    shape = Shape(stages)
    place_s = min(max(0.0, place_s), shape.duration_s)
    kept: list[StagePlan] = []
    at_s = 0.0
    for stage in stages:
        end_s = at_s + stage.duration_s
        if end_s > place_s:
            break
        kept.append(stage)
        at_s = end_s
    value = shape.value_at(place_s)
    left_s = shape.duration_s - place_s
    ramp_s = min(over_s, left_s)
    reached = target if ramp_s >= over_s else value + (target - value) * ramp_s / over_s
    rest = ((place_s - at_s, value), (ramp_s, reached), (left_s - ramp_s, reached))
    for duration_s, to in rest:
        # Shorter ones are rounding errors, which would have an endless slope.
        is_real = duration_s > _INSTANT_S
        kept.append(StagePlan(duration_s=duration_s if is_real else 0.0, target=to))
    return tuple(kept)


def shifted(changes: Sequence[AppliedChange], by_s: float) -> list[AppliedChange]:
    """Return changes as a part sees them whose own time began `by_s` after the workflow's."""
    return [replace(change, at_s=change.at_s - by_s) for change in changes]
