"""`hyperscale check FILE`: run each workflow briefly and show every request and response."""

import argparse
import asyncio
import dataclasses
import sys

import msgspec

from hyperscale.cli.load_flags import (
    add_file_argument,
    add_only_flag,
    add_parameter_flag,
    parameters_of,
)
from hyperscale.graph import Overrides
from hyperscale.plan import Plan
from hyperscale.reporting.exit_codes import ExitCode
from hyperscale.reporting.results import RunResult
from hyperscale.runner.drive import RunEnding, RunOptions, drive
from hyperscale.runner.source import LoadedTest, load_test_file, resolve_hosts
from hyperscale.ui.api import Mode, SilentUi

DESCRIPTION = """\
Validate a test file, then run each workflow with two virtual users (or one, if it has only one),
an iteration for each, in the order of their dependencies, and show every request and response.
Thresholds are not evaluated.
"""
EPILOG = """\
examples:
  hyperscale check shop.py
  hyperscale check shop.py --only Login
  hyperscale check shop.py --set base=https://staging.test

exit codes: 0 every step and check passed, 1 a step or check failed, 2 invalid input (nothing ran),
3 a workflow could not be run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_argument(parser)
    add_only_flag(parser)
    add_parameter_flag(parser)


def run(args: argparse.Namespace) -> int:
    test = load_test_file(args.file, Overrides(only=args.only), parameters_of(args))
    for warning in test.plan.warnings:
        print(f"warning: {warning}")
    for workflow in test.plan.workflows:
        way = f"in Python: {workflow.in_python}" if workflow.in_python else "natively"
        print(f"{workflow.name} runs {way}")
    ending = asyncio.run(_check(dataclasses.replace(test, plan=_brief(test.plan), reporters=())))
    _print_summary(ending.result)
    if ending.exit_code in (ExitCode.RUN_FAILED, ExitCode.INTERRUPTED):
        return ending.exit_code
    has_failed = any(
        any(step.failed for step in workflow.steps) or any(c.failed for c in workflow.checks)
        for workflow in ending.result.workflows
    )
    return ExitCode.NOT_PASSED if has_failed else ExitCode.PASSED


async def _check(test: LoadedTest) -> RunEnding:
    await resolve_hosts(test.plan)
    # One executor runs one workflow after the other, so that their output does not mix.
    options = RunOptions(workers=1, share_cores=False, static=False, trace=True)
    return await drive(test, options, _Transcript())


def _brief(plan: Plan) -> Plan:
    """Return the plan with as few users and iterations as show every mistake.

    With two users, a test that works only for its first user fails here too.
    """
    replace = msgspec.structs.replace
    users = {workflow.name: min(2, workflow.vus) for workflow in plan.workflows}
    return replace(
        plan,
        workflows=tuple(
            replace(
                workflow,
                vus=users[workflow.name],
                iterations=users[workflow.name],
                iterations_per_vu=None,
                interval_s=None,
                think_s=None,
                stages=(),
                is_open=False,
                warmup_s=0.0,
                thresholds=(),
                # Every alternative is shown, and not only those that would be drawn.
                steps=tuple(replace(step, weight=None) for step in workflow.steps),
            )
            for workflow in plan.workflows
        ),
    )


def _print_summary(result: RunResult) -> None:
    for workflow in result.workflows:
        print(f"== {workflow.name}: {workflow.status.value}")
        if workflow.error:
            print(f"   {workflow.error}")
        for step in workflow.steps:
            print(f"   {step.name}: {_verdict(step.ok, step.failed, step.errors)}")
        for check in workflow.checks:
            reason = f" ({check.first_failure})" if check.first_failure else ""
            print(f"   {check.name}: {_verdict(check.passed, check.failed, {})}{reason}")
    sys.stdout.flush()


def _verdict(ok: int, failed: int, errors: dict[str, int]) -> str:
    if failed:
        return f"failed: {', '.join(errors)}" if errors else "failed"
    return "ok" if ok else "did not run"


class _Transcript(SilentUi):
    """A UI that prints the output of workflows; with tracing on, that is every exchange."""

    mode: Mode = "ci"

    def __init__(self) -> None:
        self._source = ""

    def log(self, text: str, *, source: str = "output") -> None:
        if source != self._source:
            self._source = source
            print(f"== {source}")
        sys.stdout.write(text)
        sys.stdout.flush()
