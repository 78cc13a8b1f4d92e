"""Why a workflow fails its run: the one rule behind the verdict, the exit code and every report.

A workflow passes if there is no reason against it. Thresholds and checks say what its author
demands; without any, a test in which nothing succeeded, or whose own code kept raising, has still
proved nothing, and fails unless the workflow says `allow_failures = True`.
"""

from enum import Enum

from msgspec import Struct

from hyperscale._native import CheckReport
from hyperscale.plan import StepKind
from hyperscale.plan.thresholds import thresholds_of
from hyperscale.stats.thresholds import ABORT_AFTER_S, failing_now, judge_all, judges_checks
from hyperscale.stats.workflow import WorkflowStats

RAISED_SHARE_MAX = 0.01
"""The share of iterations in which the test's own code may raise."""

_SHOW = "(hint: 'hyperscale check FILE' shows every request; allow_failures = True accepts that)"
_ALLOW = "(hint: correct the code, or accept it with allow_failures = True)"
_CHECKS = (
    "(hint: 'hyperscale check FILE' shows the responses; a threshold such as "
    '"checks": ">99%" lets some fail)'
)
_ERRORS_NAMED = _STEPS_NAMED = 3


class ReasonKind(Enum):
    """`status`: the workflow did not complete. `threshold`, `check`: one failed. `no_success`: not
    one call succeeded. `raised`: the test's own code raised in more than 1 % of iterations, or of
    the calls of a teardown hook."""

    STATUS = "status"
    THRESHOLD = "threshold"
    CHECK = "check"
    NO_SUCCESS = "no_success"
    RAISED = "raised"


class Reason(Struct, frozen=True, kw_only=True):
    """Why a workflow fails its run."""

    kind: ReasonKind  # What the reason is about.
    text: str  # The reason in words, with its figures.


def reasons_against(
    stats: WorkflowStats, *, is_final: bool = True, failed_as: str | None = None
) -> list[Reason]:
    """Return why a workflow fails its run; while it runs, why it would if it ended now.

    `failed_as` says how it ended, if it did not complete.
    """
    plan, thresholds = stats.plan, thresholds_of(stats.plan)
    reasons = []
    if failed_as is not None:
        reasons.append(Reason(kind=ReasonKind.STATUS, text=failed_as))
    broken = judge_all(stats) if is_final else failing_now(thresholds, stats)
    reasons += [
        Reason(kind=ReasonKind.THRESHOLD, text=verdict.describe())
        for verdict in broken
        if not verdict.passed
    ]
    if not judges_checks(thresholds):
        reasons += [
            Reason(kind=ReasonKind.CHECK, text=_describe_check(stats, check))
            for check in stats.checks()
            if check.failed
        ]
    if plan.allow_failures or failed_as is not None:
        return reasons
    reasons += [Reason(kind=ReasonKind.RAISED, text=text) for text in _raised_teardowns(stats)]
    if not plan.is_test:
        return reasons
    if is_final and not stats.headline_counts().ok:
        reasons.append(Reason(kind=ReasonKind.NO_SUCCESS, text=_describe_failures(stats)))
    raised, iterations = stats.raised, max(stats.iterations, stats.raised)
    is_judged = is_final or stats.counted_s >= ABORT_AFTER_S
    if is_judged and raised > RAISED_SHARE_MAX * iterations:
        share = f"{raised:,} of {iterations:,} iterations"
        text = f"the test's own code raised in {share}{_places(stats)} {_ALLOW}"
        reasons.append(Reason(kind=ReasonKind.RAISED, text=text))
    return reasons


def _raised_teardowns(stats: WorkflowStats) -> list[str]:
    """Return the teardown hooks that raised, in words: what they should remove may be left."""
    texts = []
    for step in stats.plan.steps:
        counts = stats.counts(step.name) if step.kind is StepKind.TEARDOWN else None
        if counts is not None and counts.failed > RAISED_SHARE_MAX * counts.total:
            place = f" at {step.where}" if step.where else ""
            times = f"{counts.failed:,} of {counts.total:,} times"
            texts.append(f"teardown hook {step.name}{place} raised {times} {_ALLOW}")
    return texts


def _describe_check(stats: WorkflowStats, check: CheckReport) -> str:
    places = {step.name: step.where for step in stats.plan.steps if step.kind is StepKind.CHECK}
    place = f" at {places[check.name]}" if places.get(check.name) else ""
    times = f"{check.failed:,} of {check.passed + check.failed:,} times"
    return f"check {check.name}{place} failed {times} {_CHECKS}"


def _describe_failures(stats: WorkflowStats) -> str:
    """Return what became of the calls of a workflow of which none succeeded."""
    counts = stats.headline_counts()
    ends = {"failed": counts.failed, "cut": counts.cut, "without a result": counts.none}
    facts = [f"{n:,} {how}" for how, n in ends.items() if n]
    errors = sorted(counts.errors.items(), key=lambda item: (-item[1], item[0]))
    classes = ", ".join(f"{name} {n:,}" for name, n in errors[:_ERRORS_NAMED])
    text = f"not one call succeeded{_places(stats)}: {', '.join(facts) or 'no call was made'}"
    return f"{text} ({classes}) {_SHOW}" if classes else f"{text} {_SHOW}"


def _places(stats: WorkflowStats) -> str:
    """Return the first test steps with file and line, to follow what they did."""
    steps = [step for step in stats.plan.steps if step.kind is StepKind.TEST and step.where]
    named = [f"{step.name} at {step.where}" for step in steps[:_STEPS_NAMED]]
    more = [f"{len(steps) - _STEPS_NAMED} more"] if len(steps) > _STEPS_NAMED else []
    return f" ({', '.join(named + more)})" if named else ""
