"""`hyperscale`: finds the command, runs it, and turns what goes wrong into a message and a code.

Only the module of the chosen command is imported. The one place that reads `sys.argv`,
writes crash logs and decides how an error looks.
"""

import contextlib
import errno
import io
import os
import signal
import sys
import time
import traceback
from importlib import import_module
from types import ModuleType

from hyperscale.cli.parser import Parser, did_you_mean
from hyperscale.errors import HyperscaleError, InputError, InvariantError
from hyperscale.reporting.exit_codes import ExitCode, exit_code_of_error

_EXHAUSTED = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN}
)

# Each is a module here with `add_parser(subparsers)` and `run(args) -> exit code`.
COMMANDS = {
    "run": "run a test file and show its results",
    "check": "run each workflow of a test file once and show every request and response",
    "new": "write a commented test file to start from",
    "ping": "send one request and show its timings",
    "target": "serve the built-in target to test against",
    "submit": "run a test file on a cluster",
    "watch": "follow a job of a cluster live",
    "status": "show how a job is doing",
    "results": "fetch the results of a job that has ended",
    "cancel": "end a job early",
    "jobs": "list the jobs of a cluster",
    "workers": "list the workers of a cluster",
    "cluster": "run a whole cluster on this machine",
    "chaos": "kill, pause and restart nodes while a job runs, and check what comes out",
    "manager": "run a manager node",
    "worker": "run a worker node",
    "members": "show every member of a cluster",
    "ledger": "look at the ledger of a tier: its groups, its history, its replicas",
    "drain": "have a node give up its work, so that it can be stopped",
    "config": "look at a node's configuration",
    "certs": "make a certificate authority and certificates",
    "secret": "make a strong cluster secret",
}

_DESCRIPTION = """\
Load tests written as Python classes, run at wire speed.
"""
_EPILOG = """\
examples:
  hyperscale target                      a server to test against, on port 8080
  hyperscale new shop.py                 a test file to start from
  hyperscale check shop.py               one careful pass: every request and response
  hyperscale run shop.py                 the load, on every core, with a live view
  hyperscale run shop.py --vus 50 --duration 10s --json results.json
  hyperscale cluster up                  managers and workers on this machine
  hyperscale submit shop.py --watch      the load, on a cluster

exit codes: 0 passed, 1 a threshold or check failed, 2 wrong input (nothing ran),
3 the run failed, was partial or timed out, 130 interrupted (partial results are written)

'hyperscale COMMAND --help' explains each command.
"""


def _leave(_signal: int, _frame: object) -> None:
    _say("hyperscale: interrupted")
    os._exit(ExitCode.INTERRUPTED)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command line; returns its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
        # Until a command takes the signal over there is nothing to clean up, and an exception
        # raised into whatever is being imported might be lost there.
        signal.signal(signal.SIGINT, _leave)
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name the locale has no characters for must not end a command that only lists it.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except InvariantError as error:
        return _crashed(error, arguments)
    except HyperscaleError as error:
        _complain(error)
        return exit_code_of_error(error)
    except KeyboardInterrupt:
        _say("hyperscale: interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; so is the reason to write the rest of it.
        _silence_stdout()
        return 0
    except Exception as error:  # noqa: BLE001  a bug of ours: a message and a log, not a traceback
        return _crashed(error, arguments)
    return code


def _main(arguments: list[str]) -> int:
    command = next((word for word in arguments if not word.startswith("-")), None)
    parser, commands, module = _build(command)
    if command is not None and module is None and arguments[0] == command:
        known = ", ".join(COMMANDS)
        raise InputError(
            f"hyperscale: unknown command {command!r}",
            hint=did_you_mean(command, COMMANDS) or f"the commands are {known}",
        )
    try:
        args, unknown = parser.parse_known_args(arguments)
    except SystemExit as done:  # --help and --version have printed what was asked for
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
    """The parser, those of its commands, and the module of the one that was asked for."""
    parser = Parser(prog="hyperscale", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=Parser)
    module = None
    for name, summary in COMMANDS.items():
        if name == command:
            module = import_module(f"hyperscale.cli.{name}")
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser, dict(subparsers.choices), module


def _complain(error: HyperscaleError) -> None:
    text = error.message
    if not text.startswith("hyperscale"):  # the parser's own name a command already
        text = f"hyperscale: {text}"
    if error.hint:
        text += f"\n  hint: {error.hint}"
    _say(text)


def _crashed(error: BaseException, arguments: list[str]) -> int:
    """A bug of ours: short for the user, whole for whoever mends it."""
    if isinstance(error, OSError) and _is_stdout_lost():
        _say(f"hyperscale: stdout cannot be written: {error.strerror}")
        return ExitCode.RUN_FAILED
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        _say(f"hyperscale: this machine has no more to give: {error}")
        return ExitCode.RUN_FAILED
    import tempfile

    stamp = time.strftime("%Y%m%d-%H%M%S")
    head = f"arguments: {arguments}\npython: {sys.version}\n\n"
    trace = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"hyperscale-crash-{stamp}-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(head + trace)
        where = f"the details are in {path}"
    except OSError:
        where = trace
    text = f"hyperscale: internal error: {type(error).__name__}: {error}"
    _say(f"{text}\n  this is a bug in Hyperscale; {where}")
    return ExitCode.RUN_FAILED


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody hears it; the exit code still tells
        print(text, file=sys.stderr)


def _open_missing_streams() -> None:
    """Standard streams that were closed become /dev/null.

    Else the next file or socket to be opened takes the number of one, and gets what was
    meant for it; and Python has None where a stream is expected.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            # Not closed: it is one of the three streams of the process.
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _is_stdout_lost() -> bool:
    """Whether what is left to be written there cannot be; then it is given up."""
    try:
        sys.stdout.flush()
    except OSError:
        _silence_stdout()
        return True
    return False


def _silence_stdout() -> None:
    """The interpreter flushes stdout when it ends; that must not complain again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
