"""`hyperscale run FILE`: run a test on this machine."""

import argparse
import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

from hyperscale.cli.load_flags import (
    add_file_argument,
    add_load_flags,
    add_log_flags,
    overrides_of,
    parameters_of,
)
from hyperscale.cli.output import Destination, add_output_flags, out_dir_for
from hyperscale.cli.report_flags import (
    add_report_flags,
    add_stream_flags,
    reporters_of,
    streams_of,
)
from hyperscale.cli.signals import uninterrupted
from hyperscale.config import parse_duration_s
from hyperscale.reporting.files import ensure_writable
from hyperscale.runner.control import RunControl
from hyperscale.runner.drive import RunEnding, RunOptions, drive
from hyperscale.runner.local import parse_workers
from hyperscale.runner.source import LoadedTest, load_test_file, resolve_hosts
from hyperscale.ui import open_ui

DESCRIPTION = """\
Run every workflow of a test file on the cores of this machine, show the run live, and write
results.json, report.html, steps.csv, junit.xml and, if the test printed anything, output.log.
"""
EPILOG = """\
examples:
  hyperscale run shop.py
  hyperscale run shop.py --vus 50 --duration 10s       a smaller load than the file asks for
  hyperscale run shop.py --only Login Checkout         two workflows and their dependencies
  hyperscale run shop.py --set base=https://staging.test     a value for `base = Param(…)`
  hyperscale run shop.py --threshold "pay.p99<250ms"   pass only if this holds too
  hyperscale run shop.py --timeout 5m --ui ci          with a time limit and plain log lines
  hyperscale run shop.py --report influxdb --report-config reporters.toml
  hyperscale run shop.py --json - --ui none | jq .     only the results, on stdout

Ctrl-C stops the run, writes the results so far and exits with 130. A second Ctrl-C stops at once.

exit codes: 0 passed, 1 not passed, 2 invalid input (nothing ran), 3 the run
failed, was partial or timed out, 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_argument(parser)
    load = add_load_flags(parser, what="run")
    load.add_argument(
        "--workers", metavar="N", help="executor processes (default: one per available core)"
    )
    output = add_output_flags(parser)
    add_report_flags(output)
    add_stream_flags(output)
    add_log_flags(output)


def run(args: argparse.Namespace) -> int:
    timeout = args.timeout
    out_dir = out_dir_for(args)
    options = RunOptions(
        workers=parse_workers(args.workers, where="--workers"),
        timeout_s=None if timeout is None else parse_duration_s(timeout, where="--timeout"),
        log_level=args.log_level,
        log_dir=Path(args.log_dir) if args.log_dir else None,
        output_file=out_dir / "output.log",
        control_dir=out_dir,
        static=not args.no_compile,
        streams=streams_of(args),
        stream_every_s=parse_duration_s(args.stream_interval, where="--stream-interval"),
    )
    reporters = reporters_of(args)
    test = load_test_file(args.file, overrides_of(args), parameters_of(args))
    test = replace(test, reporters=(*test.reporters, *reporters))
    return asyncio.run(_run(test, options, args, out_dir)).exit_code


async def _run(
    test: LoadedTest, options: RunOptions, args: argparse.Namespace, out_dir: Path
) -> RunEnding:
    await resolve_hosts(test.plan)
    with Destination(args, out_dir, args.file) as destination:
        if options.log_dir is not None:
            ensure_writable(options.log_dir / "executor-0.log", where="--log-dir")
        control = RunControl()
        with (
            uninterrupted(),  # wherever neither `drive` nor `publish` handles signals itself
            open_ui(
                args.ui, stream=destination.stream, quiet=args.quiet, on_change=control.press
            ) as ui,
        ):
            control.on_refusal = partial(ui.log, source="hyperscale")
            ending = await drive(test, replace(options, control=control), ui)
            problems = await destination.publish(ending.result, ui, test.reporters)
        destination.print_problems([*ending.stream_losses, *problems])
        return ending
