"""`hyperscale run FILE`: the load, the live view, the results."""

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from hyperscale.cli.output import Destination, add_output_flags, default_out_dir
from hyperscale.cli.parser import Parser
from hyperscale.cli.signals import uninterrupted

if TYPE_CHECKING:
    from hyperscale.runner.drive import RunEnding, RunOptions
    from hyperscale.runner.source import LoadedTest

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

_DESCRIPTION = """\
Runs every workflow of a test file on this machine's cores, shows them live, and writes
results.json, report.html, steps.csv, junit.xml and output.log.
"""
_EPILOG = """\
examples:
  hyperscale run shop.py
  hyperscale run shop.py --vus 50 --duration 10s       smaller than the file says
  hyperscale run shop.py --only Login Checkout         these, and what they depend on
  hyperscale run shop.py --timeout 5m --ui ci          bounded, with plain lines
  hyperscale run shop.py --json - --ui none | jq .     the results and nothing else

Ctrl-C stops the run, writes what there is and exits with 130; twice ends it at once.

exit codes: 0 passed, 1 a threshold or check failed, 2 wrong input: nothing ran, 3 the run failed,
was partial or timed out, 130 interrupted
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a test file and show its results",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="the test file")
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--vus", metavar="N", help="virtual users of every workflow; default: as in FILE"
    )
    load.add_argument(
        "--duration", metavar="D", help='how long each runs: "30s", "1m30s"; default: as in FILE'
    )
    load.add_argument("--timeout", metavar="D", help="bound of the whole run; default: none")
    load.add_argument(
        "--only",
        metavar="NAME",
        action="extend",
        nargs="+",
        default=[],
        help="run these workflows and what they depend on",
    )
    load.add_argument(
        "--workers", metavar="N", help="executor processes; default: one per available core"
    )
    load.add_argument(
        "--no-compile",
        action="store_true",
        help="run every step in Python, also those that need no interpreter",
    )
    output = add_output_flags(parser)
    output.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="of the test's own logging"
    )
    output.add_argument(
        "--log-dir", metavar="DIR", help="also write what each executor printed, a file for each"
    )


def run(args: argparse.Namespace) -> int:
    from hyperscale.config import parse_duration_s
    from hyperscale.graph import Overrides
    from hyperscale.runner.drive import RunOptions
    from hyperscale.runner.local import parse_workers
    from hyperscale.runner.source import load_test_file

    timeout = args.timeout
    out_dir = Path(args.out) if args.out else default_out_dir(args.file)
    options = RunOptions(
        workers=parse_workers(args.workers, where="--workers"),
        timeout_s=None if timeout is None else parse_duration_s(timeout, where="--timeout"),
        log_level=args.log_level,
        log_dir=Path(args.log_dir) if args.log_dir else None,
        output_file=out_dir / "output.log",
        static=not args.no_compile,
    )
    overrides = Overrides(vus=args.vus, duration=args.duration, only=args.only)
    job = load_test_file(args.file, overrides)
    return asyncio.run(_run(job, options, args, out_dir)).exit_code


async def _run(
    job: "LoadedTest", options: "RunOptions", args: argparse.Namespace, out_dir: Path
) -> "RunEnding":
    from hyperscale.reporting.files import ensure_writable
    from hyperscale.runner.drive import drive
    from hyperscale.runner.source import resolve_hosts
    from hyperscale.ui import open_ui

    await resolve_hosts(job.plan)
    with Destination(args, out_dir, args.file) as destination:
        if options.log_dir is not None:
            ensure_writable(options.log_dir / "executor-0.log", where="--log-dir")
        with (
            uninterrupted(),  # where neither the run nor what is made of it asks for signals itself
            open_ui(args.ui, stream=destination.stream, quiet=args.quiet) as ui,
        ):
            ending = await drive(job, options, ui)
            problems = await destination.publish(ending.result, ui, job.reporters)
        destination.complain(problems)
        return ending
