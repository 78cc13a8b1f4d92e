"""The verdict on a result: how the run, its workflows, thresholds and checks stand, and why.

Every report and the summary ask here, so that no two of them disagree.
"""

from collections.abc import Sequence

from hyperscale.reporting.results import (
    CheckResult,
    RunResult,
    RunStatus,
    ThresholdResult,
    WorkflowResult,
)
from hyperscale.stats.reasons import ReasonKind
from hyperscale.stats.standing import Standing, standing_of, standing_of_check


def thresholds_of(workflow: WorkflowResult, result: RunResult) -> list[ThresholdResult]:
    return [each for each in result.thresholds if each.workflow == workflow.name]


def faults_of(workflow: WorkflowResult) -> list[str]:
    """Return why a workflow that completed did not pass, as sentences; empty if it passed."""
    return [reason.text for reason in workflow.reasons if reason.kind is not ReasonKind.STATUS]


def measured(threshold: ThresholdResult) -> str:
    if threshold.value is None:
        return "no samples"
    return f"{threshold.value:,.4g}{threshold.unit}"


def workflow_standing(workflow: WorkflowResult) -> Standing:
    return standing_of(workflow.status.value, has_faults=bool(workflow.reasons))


def run_standing(result: RunResult) -> Standing:
    """Return how the run stands; one that its own threshold ended early has failed."""
    if result.aborted_by:
        return Standing.FAILED
    return standing_of(result.status.value, has_faults=not result.passed)


def threshold_standing(threshold: ThresholdResult) -> Standing:
    return Standing.PASSED if threshold.passed else Standing.FAILED


def check_standing(check: CheckResult, thresholds: Sequence[ThresholdResult]) -> Standing:
    """Return how a check stands; `thresholds` are those of its workflow."""
    judged = [threshold.passed for threshold in thresholds if threshold.name == "checks"]
    return standing_of_check(check.passed, check.failed, is_allowed=bool(judged) and all(judged))


def reasons_of(result: RunResult) -> list[str]:
    """Return why the run did not pass, one reason for each workflow and fault; empty if it did."""
    reasons = []
    is_one_of_many = len(result.workflows) > 1
    for workflow in result.workflows:
        if workflow.status is RunStatus.COMPLETED:
            found = faults_of(workflow)
        else:
            found = [workflow.error or workflow.status.value]
        prefix = f"{workflow.name}: " if is_one_of_many else ""
        reasons += [f"{prefix}{reason}" for reason in found]
    return reasons
