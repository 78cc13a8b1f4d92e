"""`hyperscale check FILE`: one careful pass through a test, with everything it sends shown."""

import argparse
import asyncio
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from hyperscale.cli.parser import Parser
from hyperscale.reporting.exit_codes import ExitCode

if TYPE_CHECKING:
    from hyperscale.plan import Plan
    from hyperscale.reporting.results import RunResult, WorkflowResult
    from hyperscale.runner.drive import RunEnding
    from hyperscale.runner.source import LoadedTest
    from hyperscale.stats.view import RunView
    from hyperscale.ui.api import Mode

_DESCRIPTION = """\
Validates a test file, then runs each workflow once with one virtual user, in order of their
dependencies, and shows every request and response. Thresholds are not judged.
"""
_EPILOG = """\
examples:
  hyperscale check shop.py
  hyperscale check shop.py --only Login

exit codes: 0 every step passed, 1 a step or check failed, 2 the file is wrong (nothing ran),
3 a workflow could not be run
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "check",
        help="run each workflow of a test file once and show every request and response",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="the test file")
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="extend",
        nargs="+",
        default=[],
        help="check these workflows and what they depend on",
    )


def run(args: argparse.Namespace) -> int:
    from hyperscale.graph import Overrides
    from hyperscale.runner.source import LoadedTest, load_test_file

    job = load_test_file(args.file, Overrides(vus=1, only=args.only))
    for warning in job.plan.warnings:
        print(f"warning: {warning}")
    ending = asyncio.run(_check(LoadedTest(_once(job.plan), job.code)))
    _summarise(ending.result)
    if ending.exit_code in (ExitCode.RUN_FAILED, ExitCode.INTERRUPTED):
        return ending.exit_code
    return 1 if any(_has_failed(workflow) for workflow in ending.result.workflows) else 0


async def _check(job: "LoadedTest") -> "RunEnding":
    from hyperscale.runner.drive import RunOptions, drive
    from hyperscale.runner.source import resolve_hosts

    await resolve_hosts(job.plan)
    # One executor: workflows come one after the other, so what they show does not mix.
    return await drive(job, RunOptions(workers=1, static=False, trace=True), _Transcript())


def _once(plan: "Plan") -> "Plan":
    import msgspec

    replace = msgspec.structs.replace
    return replace(
        plan,
        workflows=tuple(
            replace(workflow, vus=1, iterations=1, interval_s=None, thresholds=())
            for workflow in plan.workflows
        ),
    )


def _has_failed(workflow: "WorkflowResult") -> bool:
    return any(step.failed for step in workflow.steps) or any(c.failed for c in workflow.checks)


def _summarise(result: "RunResult") -> None:
    for workflow in result.workflows:
        print(f"== {workflow.name}: {workflow.status.value}")
        if workflow.error:
            print(f"   {workflow.error}")
        for step in workflow.steps:
            print(f"   {step.name}: {_verdict(step.ok, step.failed, step.errors)}")
        for check in workflow.checks:
            said = f" ({check.first_failure})" if check.first_failure else ""
            print(f"   {check.name}: {_verdict(check.passed, check.failed, {})}{said}")
    sys.stdout.flush()


def _verdict(ok: int, failed: int, errors: dict[str, int]) -> str:
    if failed:
        return f"failed: {', '.join(errors)}" if errors else "failed"
    return "ok" if ok else "did not run"


class _Transcript:
    """A UI that shows what workflows print, which with tracing on is every exchange."""

    mode: "Mode" = "ci"

    def __init__(self) -> None:
        self._source = ""

    def __enter__(self) -> "_Transcript":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return

    def update(self, view: "RunView") -> None:
        del view

    def log(self, text: str, *, source: str = "output") -> None:
        if source != self._source:
            self._source = source
            print(f"== {source}")
        sys.stdout.write(text)
        sys.stdout.flush()

    def finish(self, result: "RunResult") -> None:
        del result
