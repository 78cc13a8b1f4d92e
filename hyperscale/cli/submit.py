"""`hyperscale submit FILE`: run a test on the workers of a cluster."""

import argparse
import asyncio
import contextlib
import dataclasses
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from hyperscale.cli.cluster_flags import (
    CLUSTER_HELP,
    add_client_flags,
    cluster_words,
    has_gates,
    open_client,
)
from hyperscale.cli.datacenter_flags import add_datacenter_flags, datacenter_options
from hyperscale.cli.follow import follow_to_end
from hyperscale.cli.load_flags import (
    add_file_argument,
    add_load_flags,
    add_log_flags,
    add_placement_flags,
    overrides_of,
    parameters_of,
    placement_of,
)
from hyperscale.cli.output import Destination, add_output_flags, out_dir_for
from hyperscale.cli.printing import print_warning
from hyperscale.cli.report_flags import add_report_flags, reporters_of
from hyperscale.cli.signals import unless_interrupted
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.package import package_file
from hyperscale.client.submission import Package
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError, RunError
from hyperscale.reporting.exit_codes import ExitCode
from hyperscale.reporting.files import ensure_writable
from hyperscale.reporting.reporter import Sink
from hyperscale.ui.stream import write_through

DESCRIPTION = """\
Send a test file, with the local modules it imports, to a cluster and run it there. The command
waits until the job ends and writes the same results as 'hyperscale run'. --watch shows the job
live meanwhile; --detach prints the job id and returns at once.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale submit shop.py --dir hyperscale-cluster --watch
  hyperscale submit shop.py --manager 10.0.0.5:9000 --manager 10.0.0.6:9000 \\
      --secret-file cluster.secret
  job=$(hyperscale submit shop.py --detach); hyperscale watch $job --json results.json
  hyperscale submit shop.py --gate 10.0.0.7:9300 --datacenter east --datacenter west
  hyperscale submit shop.py --constraint zone=a --constraint arch=arm64
  hyperscale submit shop.py --key nightly-2024-05-01      submitted at most once

Ctrl-C leaves the job running and prints the command that shows it again.

exit codes: 0 passed (with --detach: submitted), 1 not passed, 2 invalid input
(nothing ran), 3 the job failed, was partial, was cancelled or timed out, or no manager could be
reached, or the queue stayed full; 130 interrupted (the job continues)
"""

_REPORT_S = 60.0  # patience for the delivery of results by a manager
_REPORT_LOOK_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_argument(parser)
    add = parser.add_argument_group("submission").add_argument
    add("--watch", action="store_true", help="show the job live until it ends")
    add("--detach", action="store_true", help="print the job id and return")
    about = "how long to retry while the queue of the cluster is full (default: %(default)s)"
    add("--submit-timeout", metavar="D", default="60s", help=about)
    add(
        "--key",
        metavar="K",
        help="submission key: submitting with the same key again returns the same job "
        "(default: a new job each time)",
    )
    add_datacenter_flags(parser)
    load = add_load_flags(parser, what="job")
    about = "how long a workflow may wait for cores (default: 5m)"
    load.add_argument("--dispatch-timeout", metavar="D", help=about)
    about = "what workers do when they lose all managers (default: %(default)s)"
    load.add_argument("--on-isolation", choices=("stop", "continue"), default="stop", help=about)
    add_placement_flags(parser)
    output = add_output_flags(parser)
    add_report_flags(output)
    output.add_argument(
        "--report-from",
        choices=("client", "manager"),
        default="client",
        help="who sends the results: this command, or the manager that leads the job (with gates "
        "the gate that owns it), to the reporters of its own reporting.config (--report names some "
        "of them; default: %(default)s)",
    )
    add_log_flags(output)
    parser.add_argument("--workers", help=argparse.SUPPRESS)  # refused with an explanation
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.watch and args.detach:
        raise InputError("--watch and --detach cannot be combined")
    if args.log_dir and args.detach:
        raise InputError(
            "--log-dir and --detach cannot be combined",
            hint="the command that follows the job writes its output: 'hyperscale watch'",
        )
    if args.workers is not None:
        raise InputError(
            "--workers is a flag of 'run': on a cluster, a workflow gets cores by its priority "
            "and vus",
            hint="set `priority` on the workflow; 'hyperscale workers"
            f"{cluster_words(args)}' lists the cores",
        )
    if args.key == "":  # as from an unset shell variable: every submission would be a new job
        raise InputError("--key: is empty", hint="omit it to submit a new job")
    for flag in ("timeout", "dispatch_timeout", "submit_timeout"):
        if getattr(args, flag) is not None:
            parse_duration_s(getattr(args, flag), where=f"--{flag.replace('_', '-')}")
    reporters: tuple[Sink, ...] = ()
    if args.report_from == "client":
        reporters = reporters_of(args)
    elif args.report_config or any("=" in name for name in args.report):
        raise InputError(
            "--report-from manager takes names of reporters only",
            hint="addresses and credentials are in the own reporting.config of managers and gates",
        )
    if reporters and args.detach:
        raise InputError(
            "--report and --detach cannot be combined",
            hint="the command that follows the job sends the results: 'hyperscale watch', then "
            "'hyperscale report'",
        )
    datacenters = datacenter_options(args, has_gates=has_gates(args))
    package = package_file(args.file, overrides_of(args), parameters_of(args))
    package = dataclasses.replace(package, reporters=(*package.reporters, *reporters))
    if not args.watch and args.ui == "full":
        args.ui = "ci"
    return asyncio.run(_submit(args, package, datacenters))


async def _submit(args: argparse.Namespace, package: Package, datacenters: dict[str, Any]) -> int:
    async with contextlib.AsyncExitStack() as stack:
        destination = None
        if not args.detach:
            destination = stack.enter_context(Destination(args, out_dir_for(args), args.file))
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
            report_from=args.report_from,
            report=args.report if args.report_from == "manager" else (),
            submit_timeout=args.submit_timeout,
            **datacenters,
            **placement_of(args),
        )
        job = await unless_interrupted(submitting, name="submit")
        if job is None:
            print_warning(
                "interrupted while the job was being submitted; 'hyperscale jobs"
                f"{cluster_words(args)}' shows whether it was accepted"
            )
            return ExitCode.INTERRUPTED
        if destination is None:
            _print_job_id(args, job)
            return 0
        if not args.quiet:  # without a reader the files and the exit code may still be wanted
            write_through(destination.stream, f"job {job}\n")
        code = await follow_to_end(client, job, args, destination, package.reporters)
        if args.report_from == "manager" and code != ExitCode.INTERRUPTED:
            await unless_interrupted(_show_report(client, job, args), name="report")
        return code


async def _show_report(client: HyperscaleClient, job: str, args: argparse.Namespace) -> None:
    """Wait until the leader of the job has sent the result, and print to where."""
    until_s = time.monotonic() + _REPORT_S
    while (reported := (await client.get_job(job)).job.reported) is None:
        if time.monotonic() >= until_s:
            print_warning(
                f"nobody has sent the results within {_REPORT_S:g} s; 'hyperscale status {job}"
                f"{cluster_words(args)}' shows when they are sent"
            )
            return
        await asyncio.sleep(_REPORT_LOOK_S)
    if reported.sent and not args.quiet:
        write_through(sys.stdout, f"results sent by {reported.by} to {', '.join(reported.sent)}\n")
    for failure in reported.failed:
        print_warning(f"{reported.by} could not send the results: {failure}")


def _print_job_id(args: argparse.Namespace, job: str) -> None:
    """Print the id of a detached job, and which flags have no effect without waiting for it."""
    if not write_through(sys.stdout, f"{job}\n"):
        raise RunError(
            f"job {job} was submitted, but its id could not be written to stdout",
            hint=f"see it with 'hyperscale status {job}{cluster_words(args)}'",
        )
    for flag, given in (("--out", args.out), ("--json", args.json)):
        if given:
            print_warning(
                f"{flag} {given} is not written with --detach; 'hyperscale watch {job}"
                f"{cluster_words(args)} {flag} {shlex.quote(given)}' writes it when the job ends"
            )
