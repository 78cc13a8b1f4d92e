"""`hyperscale report FILE`: send a result that was written earlier to reporters."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from hyperscale.cli.output import reporter_line
from hyperscale.cli.printing import print_line, print_warning
from hyperscale.cli.signals import unless_interrupted
from hyperscale.errors import InputError
from hyperscale.reporting.config_file import NAMED_TYPES, AnyReporter, load_reporters
from hyperscale.reporting.exit_codes import ExitCode
from hyperscale.reporting.json_report import decode_json
from hyperscale.reporting.reporter import submit_all
from hyperscale.reporting.results import RunResult
from hyperscale.reporting.rows import run_id_of

DESCRIPTION = """\
Send the results of a run that has ended to one or more systems. FILE is the results.json of the
run. Sending a result again replaces it: its run id is the key.
"""
EPILOG = f"""\
examples:
  hyperscale report results.json --to sqlite=results.db
  hyperscale report results.json --to influxdb=http://localhost:8086 --config reporters.toml
  hyperscale report results.json --config reporters.toml            all reporters of the file
  hyperscale report results.json --to postgres --dry-run            print what would be sent

Credentials come from the configuration file or from environment variables, never from flags.

types: {", ".join(NAMED_TYPES)}

exit codes: 0 everything was delivered, 2 invalid input (nothing was sent), 3 something was lost,
130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="results.json of a run")
    about = "name of a reporter of --config, or its type; may be repeated"
    add("--to", metavar="NAME[=ADDRESS]", action="append", default=[], help=about)
    add("--config", metavar="FILE", help="TOML file with reporters")
    add("--dry-run", action="store_true", help="print what would be sent, and send nothing")


def run(args: argparse.Namespace) -> int:
    if not args.to and not args.config:
        raise InputError("no reporter is named", hint="--to NAME, or --config FILE")
    config = Path(args.config) if args.config else None
    try:
        result = decode_json(Path(args.file).read_bytes(), where=args.file)
    except OSError as error:
        raise InputError(f"{args.file} cannot be read: {error.strerror}") from error
    reporters = load_reporters(args.to, config, os.environ)
    if not reporters:
        raise InputError(f"{config} has no reporters", hint="add a table [reporters.NAME]")
    if args.dry_run:
        for reporter in reporters:
            print_line(f"{reporter!r}, run {run_id_of(result)}:")
            for text in reporter.preview(result):
                print_line(text)
        return 0
    return asyncio.run(_send(reporters, result))


async def _send(reporters: Sequence[AnyReporter], result: RunResult) -> int:
    failures = await unless_interrupted(submit_all(reporters, result), name="reporters")
    if failures is None:
        print_warning("interrupted while reporters ran")
        return ExitCode.INTERRUPTED
    failed = {failure.reporter for failure in failures}
    for failure in failures:
        print_warning(reporter_line(failure))
    for reporter in reporters:
        if repr(reporter) not in failed:
            print_line(f"{reporter!r}: delivered run {run_id_of(result)}")
    return ExitCode.RUN_FAILED if failures else ExitCode.PASSED
