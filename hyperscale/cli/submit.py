"""`hyperscale submit FILE`: the same test as `run`, on the workers of a cluster."""

import argparse
import asyncio
import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hyperscale.cli.client_flags import CLUSTER_HELP, add_client_flags
from hyperscale.cli.output import add_output_flags, default_out_dir
from hyperscale.cli.parser import Parser
from hyperscale.cli.signals import EXIT_INTERRUPTED, unless_interrupted
from hyperscale.errors import InputError, RunError

if TYPE_CHECKING:
    from hyperscale.client.submission import Package

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

_DESCRIPTION = """\
Sends a test file, with the local modules it imports, to a cluster and runs it there. Waits for
the end and writes the same results as 'run'; --watch shows it live meanwhile, --detach prints
the job's id and leaves at once.
"""
_EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale submit shop.py --dir hyperscale-cluster --watch
  hyperscale submit shop.py --manager 10.0.0.5:9000 --manager 10.0.0.6:9000 \\
      --secret-file cluster.secret
  job=$(hyperscale submit shop.py --detach); hyperscale watch $job --json results.json
  hyperscale submit shop.py --key nightly-2024-05-01      never twice with the same key

exit codes: 0 passed (with --detach: submitted), 1 a threshold or check failed, 2 wrong input:
nothing ran, 3 the job failed, was partial, cancelled or timed out, or no manager could be reached
or the queue was full; 130 you left with Ctrl-C: the job goes on, and how to see it again is said
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "submit", help="run a test file on a cluster", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("file", metavar="FILE", help="the test file")
    how = parser.add_argument_group("how")
    how.add_argument("--watch", action="store_true", help="show it live until it ends")
    how.add_argument("--detach", action="store_true", help="print the job's id and leave")
    how.add_argument(
        "--submit-timeout",
        metavar="D",
        default="60s",
        help="how long it is tried while the queue of the cluster is full; default: %(default)s",
    )
    how.add_argument(
        "--key", metavar="K", help="the same key again: the same job; default: one of its own"
    )
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--vus", metavar="N", help="virtual users of every workflow; default: as in FILE"
    )
    load.add_argument(
        "--duration", metavar="D", help='how long each runs: "30s", "1m30s"; default: as in FILE'
    )
    load.add_argument("--timeout", metavar="D", help="bound of the whole job; default: none")
    load.add_argument(
        "--dispatch-timeout",
        metavar="D",
        help="how long a workflow may wait for cores; default: 5m",
    )
    load.add_argument(
        "--only",
        metavar="NAME",
        action="extend",
        nargs="+",
        default=[],
        help="run these workflows and what they depend on; default: all",
    )
    load.add_argument(
        "--on-isolation",
        choices=("stop", "continue"),
        default="stop",
        help="what workers do without managers; default: stop",
    )
    load.add_argument(
        "--no-compile",
        action="store_true",
        help="run every step in Python, also those that need no interpreter",
    )
    output = add_output_flags(parser)
    output.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        help="of the test's own logging; default: info",
    )
    output.add_argument(
        "--log-dir", metavar="DIR", help="also write what each executor printed, a file for each"
    )
    parser.add_argument("--workers", help=argparse.SUPPRESS)  # of `run`: told what is meant
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    from hyperscale.client.package import package_file
    from hyperscale.config import parse_duration_s
    from hyperscale.graph import Overrides

    if args.watch and args.detach:
        raise InputError("--watch and --detach exclude each other")
    if args.log_dir and args.detach:
        raise InputError("--log-dir and --detach exclude each other: nobody would write there")
    if args.workers is not None:
        raise InputError(
            "--workers: is for 'run'; on a cluster a workflow gets cores by its priority and vus",
            hint="set `priority` on the workflow; 'hyperscale workers' shows the cores there are",
        )
    if args.key == "":  # a variable nobody set: every time would be another job
        raise InputError("--key: is empty", hint="leave it out for a job of its own")
    for flag in ("timeout", "dispatch_timeout", "submit_timeout"):
        if getattr(args, flag) is not None:
            parse_duration_s(getattr(args, flag), where=f"--{flag.replace('_', '-')}")
    overrides = Overrides(vus=args.vus, duration=args.duration, only=args.only)
    package = package_file(args.file, overrides)
    if not args.watch and args.ui == "full":
        args.ui = "ci"
    return asyncio.run(_submit(args, package))


async def _submit(args: argparse.Namespace, package: "Package") -> int:
    from hyperscale.cli.client_flags import open_client, where
    from hyperscale.cli.follow import follow_to_end
    from hyperscale.cli.output import Destination
    from hyperscale.reporting.files import ensure_writable
    from hyperscale.ui.stream import write_through

    async with contextlib.AsyncExitStack() as stack:
        destination = None
        if not args.detach:
            out_dir = Path(args.out) if args.out else default_out_dir(args.file)
            destination = stack.enter_context(Destination(args, out_dir, args.file))
            if args.log_dir:
                ensure_writable(Path(args.log_dir) / "executor.log", where="--log-dir")
        client = await stack.enter_async_context(open_client(args))
        submitting = client.submit_job(
            package,
            key=args.key or "",
            timeout=args.timeout,
            dispatch_timeout=args.dispatch_timeout,
            on_isolation=args.on_isolation,
            log_level=args.log_level,
            static=not args.no_compile,
            submit_timeout=args.submit_timeout,
        )
        job = await unless_interrupted(submitting, name="submit")
        if job is None:
            print(
                "hyperscale: interrupted while the job was being submitted; 'hyperscale jobs"
                f"{where(args)}' tells whether it was",
                file=sys.stderr,
            )
            return EXIT_INTERRUPTED
        if destination is None:
            if not write_through(sys.stdout, f"{job}\n"):
                raise RunError(
                    f"job {job} goes on, but nobody reads its id from stdout",
                    hint=f"see it with 'hyperscale status {job}{where(args)}'",
                )
            for flag, given in (("--out", args.out), ("--json", args.json)):
                if given:
                    print(
                        f"hyperscale: nothing is written to {flag} {given}: nobody waits for it; "
                        f"'hyperscale watch {job}{where(args)} {flag} {shlex.quote(given)}' does",
                        file=sys.stderr,
                    )
            return 0
        if not args.quiet:  # whoever does not read it may want the files and the exit code
            write_through(destination.stream, f"job {job}\n")
        return await follow_to_end(
            client,
            job,
            args,
            destination,
            is_known=True,
            reporters=package.reporters,
            log_dir=Path(args.log_dir) if args.log_dir else None,
        )
