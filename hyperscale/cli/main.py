"""Entry point of `hyperscale`: handle Ctrl-C first, then import the rest and run the command."""

import _signal as signal  # type: ignore[import-not-found]  # without enums: 10 ms sooner
import os
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    if arguments is None:
        # Until a command installs its own handler there is nothing to clean up, and a
        # KeyboardInterrupt raised during an import shows a traceback or is swallowed there.
        signal.signal(signal.SIGINT, _exit_interrupted)
        arguments = sys.argv[1:]
    from hyperscale.cli.command_line import run_command_line

    return run_command_line(arguments)


def _exit_interrupted(_signal: int, _frame: object) -> None:
    try:
        os.write(2, b"hyperscale: interrupted\n")
    finally:
        os._exit(130)  # `ExitCode.INTERRUPTED`, which may not be imported yet


if __name__ == "__main__":
    sys.exit(main())
