"""The exit codes of the command line, and the only rules that choose one."""

from enum import IntEnum

from hyperscale.errors import HyperscaleError, InputError


class ExitCode(IntEnum):
    PASSED = 0
    NOT_PASSED = 1  # there is a reason against a workflow: `stats.reasons`
    BAD_INPUT = 2  # nothing ran
    RUN_FAILED = 3  # failed, partial, cancelled elsewhere or timed out
    INTERRUPTED = 130  # by a signal; partial results are still written


def exit_code_of_run(*, is_completed: bool, passed: bool, was_aborted: bool) -> ExitCode:
    """Return the exit code of a command that made or followed a run, unless it was interrupted."""
    if was_aborted:  # by a threshold: a verdict on the target, not a failure to run
        return ExitCode.NOT_PASSED
    if not is_completed:
        return ExitCode.RUN_FAILED
    return ExitCode.PASSED if passed else ExitCode.NOT_PASSED


def exit_code_of_error(error: HyperscaleError) -> ExitCode:
    """Return the exit code of a command that ended with `error`."""
    return ExitCode.BAD_INPUT if isinstance(error, InputError) else ExitCode.RUN_FAILED
