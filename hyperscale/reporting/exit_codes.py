"""The exit codes of the command line, and the only rules that choose one."""

from enum import IntEnum
from typing import Protocol

from hyperscale.errors import HyperscaleError, InputError


class ExitCode(IntEnum):
    PASSED = 0
    NOT_PASSED = 1  # a threshold or a check failed
    BAD_INPUT = 2  # nothing ran
    RUN_FAILED = 3  # failed, partial, cancelled elsewhere or timed out
    INTERRUPTED = 130  # by a signal; partial results are still written


class JudgedRun(Protocol):
    """What the exit code of a run depends on; `RunResult` is one."""

    @property
    def is_completed(self) -> bool: ...
    @property
    def passed(self) -> bool: ...
    @property
    def aborted_by(self) -> str: ...


def exit_code_of(result: JudgedRun, *, was_interrupted: bool = False) -> ExitCode:
    """Return the exit code of a command that ran or followed what `result` describes."""
    if was_interrupted:
        return ExitCode.INTERRUPTED
    if result.aborted_by:  # a verdict on the target, not a failure to run
        return ExitCode.NOT_PASSED
    if not result.is_completed:
        return ExitCode.RUN_FAILED
    return ExitCode.PASSED if result.passed else ExitCode.NOT_PASSED


def exit_code_of_error(error: HyperscaleError) -> ExitCode:
    """Return the exit code of a command that ended with `error`."""
    return ExitCode.BAD_INPUT if isinstance(error, InputError) else ExitCode.RUN_FAILED
