"""A result as JUnit XML: what CI systems show as passed and failed tests.

A workflow is a test suite. Its run, each of its thresholds and each of its checks is a test
case. A run that went wrong is an error, a limit or check that did not hold a failure.
"""

from collections.abc import Iterable
from pathlib import PurePath
from textwrap import indent
from xml.etree import ElementTree as ET

from hyperscale.reporting.results import (
    CheckResult,
    RunResult,
    RunStatus,
    StepResult,
    ThresholdResult,
    WorkflowResult,
)
from hyperscale.reporting.samples import describe_sample
from hyperscale.reporting.verdict import check_standing, thresholds_of
from hyperscale.reporting.xml_report import document, element, xml_text
from hyperscale.stats.reasons import ReasonKind
from hyperscale.stats.standing import Standing

# Reasons that are neither a threshold nor a check, which are test cases of their own.
_OF_THE_RUN = (ReasonKind.NO_SUCCESS, ReasonKind.RAISED)


def encode_junit(result: RunResult) -> bytes:
    root = element(None, "testsuites", {"name": result.file})
    suites = [_suite(root, result, workflow) for workflow in result.workflows]
    _count(root, (case for suite in suites for case in suite.iter("testcase")))
    del root.attrib["skipped"]  # suites have it, their parent does not
    root.set("time", f"{result.elapsed_seconds:.3f}")
    return document(root)


def _suite(root: ET.Element, result: RunResult, workflow: WorkflowResult) -> ET.Element:
    suite = element(
        root,
        "testsuite",
        {
            "name": workflow.name,
            # JUnit's own format has no time zone.
            "timestamp": result.started_at.partition(".")[0].removesuffix("Z"),
            "hostname": "localhost",
            "time": f"{workflow.elapsed_seconds:.3f}",
        },
    )
    classname = f"{PurePath(result.file).stem}.{workflow.name}"
    run = _case(suite, classname, "run", f"{workflow.elapsed_seconds:.3f}")
    if workflow.status is not RunStatus.COMPLETED:
        message = f"{workflow.status.value}: {workflow.error or 'no reason given'}"
        _outcome(run, "error", message, "status")
    else:
        faults = [reason for reason in workflow.reasons if reason.kind in _OF_THE_RUN]
        if faults:
            message = "; ".join(reason.text for reason in faults)
            _outcome(run, "failure", message, faults[0].kind.value)
    if failures := [text for step in workflow.steps for text in _failures(step)]:
        element(run, "system-out", {}).text = xml_text("\n".join(failures))
    own = thresholds_of(workflow, result)
    for threshold in own:
        _threshold_case(suite, classname, threshold)
    for check in workflow.checks:
        _check_case(suite, classname, check, check_standing(check, own))
    _count(suite, suite.iter("testcase"))
    return suite


def _failures(step: StepResult) -> Iterable[str]:
    for each in step.failures:
        yield f"{step.name}: {each.count} failed: {each.error}: {each.message}"
        if each.sample is not None:
            yield indent(describe_sample(each.sample), "    ")


def _case(suite: ET.Element, classname: str, name: str, elapsed: str = "0") -> ET.Element:
    attributes = {"classname": classname, "name": name, "time": elapsed}
    return element(suite, "testcase", attributes)


def _threshold_case(suite: ET.Element, classname: str, threshold: ThresholdResult) -> None:
    case = _case(suite, classname, f"threshold {threshold.name} {threshold.limit}")
    if threshold.passed:
        return
    message = "there were no samples"
    if threshold.value is not None:
        message = f"was {threshold.value:.6g}{threshold.unit}, limit {threshold.limit}"
    _outcome(case, "failure", message, "threshold")


def _check_case(suite: ET.Element, classname: str, check: CheckResult, standing: Standing) -> None:
    case = _case(suite, classname, f"check {check.name}")
    message = f"{check.failed} of {check.passed + check.failed} failed"
    if check.first_failure:
        message += f"; the first: {check.first_failure}"
    match standing:
        case Standing.FAILED:
            _outcome(case, "failure", message, "check")
        case Standing.ALLOWED:
            element(case, "system-out", {}).text = xml_text(message)
        case Standing.NEVER_RAN:
            element(case, "skipped", {"message": standing})


def _outcome(case: ET.Element, tag: str, message: str, kind: str) -> None:
    element(case, tag, {"message": message, "type": kind}).text = xml_text(message)


def _count(node: ET.Element, cases: Iterable[ET.Element]) -> None:
    cases = list(cases)
    node.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        node.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
