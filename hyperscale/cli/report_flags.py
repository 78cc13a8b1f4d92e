"""Flags that name reporters for results."""

import argparse
import os
from pathlib import Path

from hyperscale.reporting.config_file import AnyReporter, load_reporters


def add_report_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--report",
        metavar="NAME[=ADDRESS]",
        action="append",
        default=[],
        help="also send the results to a reporter of --report-config, or of this type "
        "(influxdb, postgres, s3, …); may be repeated",
    )
    add(
        "--report-config",
        metavar="FILE",
        help="TOML file with reporters; without --report, all of them are used",
    )


def reporters_of(args: argparse.Namespace) -> tuple[AnyReporter, ...]:
    """Return the reporters that the flags name. Raises InputError before anything runs."""
    if not args.report and not args.report_config:
        return ()
    file = Path(args.report_config) if args.report_config else None
    return load_reporters(args.report, file, os.environ, flag="--report")
