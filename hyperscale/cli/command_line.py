"""`hyperscale`: run one command, and turn errors into a message and an exit code.

Only the module of the chosen command is imported. This is the one place that writes crash logs and
formats errors.
"""

import contextlib
import errno
import io
import os
import sys
import time
import traceback
from importlib import import_module
from types import ModuleType

from hyperscale.cli.parser import Parser, UsageError, did_you_mean
from hyperscale.errors import HyperscaleError, InvariantError
from hyperscale.reporting.exit_codes import ExitCode, exit_code_of_error

_EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN}
)

# Each command is a module here with `DESCRIPTION`, `EPILOG`, `add_arguments(parser)` and
# `run(args) -> exit code`.
COMMANDS = {
    "run": "run a test file on this machine",
    "check": "run each workflow of a test file once and show every request and response",
    "new": "write a commented test file to start from",
    "ping": "send one request and show its timings",
    "target": "run a built-in HTTP server to test against",
    "report": "send earlier results to databases and monitoring systems",
    "submit": "run a test file on a cluster",
    "watch": "show a job live until it ends",
    "status": "show the state of a job",
    "results": "fetch the results of a job that has ended",
    "cancel": "end a job early",
    "scale": "change the load of a run or job while it runs",
    "pause": "pause the load of a run or job",
    "resume": "let a paused run or job go on",
    "jobs": "list the jobs of a cluster",
    "workers": "list the workers of a cluster",
    "datacenters": "list, drain and remove the datacenters that gates know",
    "route": "show in which datacenters a test would run, and why",
    "cluster": "run a local cluster on this machine",
    "chaos": "inject faults into a local cluster while a job runs, then check it",
    "manager": "run a manager node",
    "gate": "run a gate node, for jobs over many datacenters",
    "worker": "run a worker node",
    "members": "list the members of a cluster",
    "ledger": "inspect and change the ledger (Raft groups) of a cluster",
    "drain": "take a node out of service without losing work",
    "config": "show and check the configuration of a node",
    "certs": "create a certificate authority and certificates",
    "secret": "generate a cluster secret",
}

_DESCRIPTION = """\
Load tests written as Python classes, run at wire speed.
"""
_EPILOG = """\
examples:
  hyperscale target                      start a server to test against, on port 8080
  hyperscale new shop.py                 write a test file to start from
  hyperscale check shop.py               run it once, show every request and response
  hyperscale run shop.py                 run the load on all cores, with a live view
  hyperscale run shop.py --vus 50 --duration 10s --json results.json
  hyperscale cluster up                  start managers and workers on this machine
  hyperscale submit shop.py --watch      run the load on a cluster

exit codes: 0 passed, 1 not passed, 2 invalid input (nothing ran),
3 the run failed, was partial or timed out, 130 interrupted (partial results are written)

'hyperscale COMMAND --help' explains a command.
"""


def run_command_line(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the locale cannot encode must not fail a command that only lists it.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except InvariantError as error:
        return _crashed(error, arguments)
    except HyperscaleError as error:
        _print_error(_message(error))
        return exit_code_of_error(error)
    except KeyboardInterrupt:
        _print_error("hyperscale: interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone, so the rest need not be written.
        _silence_stdout()
        return 0
    except Exception as error:  # noqa: BLE001  a bug in Hyperscale: print a message, log the rest
        return _crashed(error, arguments)
    return code


def _main(arguments: list[str]) -> int:
    command = next((word for word in arguments if not word.startswith("-")), None)
    parser, commands, module = _build(command)
    if command is not None and module is None and arguments[0] == command:
        known = ", ".join(COMMANDS)
        raise UsageError(
            "hyperscale",
            f"unknown command {command!r}",
            hint=did_you_mean(command, COMMANDS) or f"the commands are {known}",
        )
    try:
        args, unknown = parser.parse_known_args(arguments)
    except SystemExit as done:  # --help has printed the help
        return done.code if isinstance(done.code, int) else 0
    if unknown:
        (commands.get(command or "") or parser).refuse_unknown(unknown)
    if args.version:
        from importlib.metadata import version

        print(f"hyperscale {version('hyperscale')}")
        return 0
    if module is None:
        parser.print_help()
        return 0
    code: int = module.run(args)
    return code


def _build(command: str | None) -> tuple[Parser, dict[str, Parser], ModuleType | None]:
    """Return the parser, the parsers of its commands, and the module of the given command."""
    parser = Parser(prog="hyperscale", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=Parser)
    module = None
    for name, summary in COMMANDS.items():
        if name == command:
            module = import_module(f"hyperscale.cli.{name}")
            module.add_arguments(
                subparsers.add_parser(
                    name, help=summary, description=module.DESCRIPTION, epilog=module.EPILOG
                )
            )
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser, dict(subparsers.choices), module


def _message(error: HyperscaleError) -> str:
    program = error.program if isinstance(error, UsageError) else "hyperscale"
    text = f"{program}: {error.message}"
    return f"{text}\n  hint: {error.hint}" if error.hint else text


def _crashed(error: BaseException, arguments: list[str]) -> int:
    """Print a short message about a bug in Hyperscale and write the details to a crash log."""
    if isinstance(error, OSError):
        try:
            sys.stdout.flush()
        except OSError:
            _silence_stdout()
            _print_error(f"hyperscale: stdout cannot be written: {error.strerror}")
            return ExitCode.RUN_FAILED
        if error.errno in _EXHAUSTED:
            _print_error(f"hyperscale: this machine is out of resources: {error}")
            return ExitCode.RUN_FAILED
    import tempfile

    stamp = time.strftime("%Y%m%d-%H%M%S")
    head = f"arguments: {_without_values(arguments)}\npython: {sys.version}\n\n"
    trace = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"hyperscale-crash-{stamp}-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(head + trace)
        where = f"the details are in {path}"
    except OSError:
        where = trace
    text = f"hyperscale: internal error: {type(error).__name__}: {error}"
    _print_error(f"{text}\n  this is a bug in Hyperscale; {where}")
    return ExitCode.RUN_FAILED


def _without_values(arguments: list[str]) -> list[str]:
    """Return the arguments without the values of `--set`, which may be secret."""
    shown = list(arguments)
    for index, word in enumerate(shown):
        if word == "--set" and index + 1 < len(shown):
            shown[index + 1] = f"{shown[index + 1].partition('=')[0]}=***"
        elif word.startswith("--set="):
            shown[index] = f"--set={word.removeprefix('--set=').partition('=')[0]}=***"
    return shown


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is gone; the exit code remains
        print(text, file=sys.stderr)


def _open_missing_streams() -> None:
    """Open /dev/null for standard streams that are closed.

    Otherwise the next file or socket gets the descriptor of a standard stream, and with it the
    output meant for that stream; and `sys.stdout` may be None.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is `number`
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            # Never closed: it is one of the standard streams of the process.
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that flushing it at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
