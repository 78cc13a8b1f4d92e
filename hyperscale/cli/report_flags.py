"""Flags that name reporters for results and streams for the running test."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyperscale.reporting.config_file import AnyReporter
    from hyperscale.reporting.streams.hub import LiveStream


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
        help="TOML file with reporters and streams; without --report (--stream), all are used",
    )


def add_stream_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--stream",
        metavar="NAME[=ADDRESS]",
        action="append",
        default=[],
        help="send live statistics to a stream of --report-config, or of this type (otlp, "
        "prometheus, scrape, influxdb, statsd, dogstatsd, jsonl); may be repeated",
    )
    about = "how often streams are sent (default: %(default)s)"
    add("--stream-interval", metavar="D", default="5s", help=about)


def streams_of(args: argparse.Namespace) -> "tuple[LiveStream, ...]":
    """Return the streams that the flags name. Raises InputError before anything runs."""
    if not args.stream and not args.report_config:
        return ()
    from hyperscale.reporting.config_file import load_streams

    file = Path(args.report_config) if args.report_config else None
    return load_streams(args.stream, file, os.environ)


def reporters_of(args: argparse.Namespace) -> "tuple[AnyReporter, ...]":
    """Return the reporters that the flags name. Raises InputError before anything runs."""
    if not args.report and not args.report_config:
        return ()
    from hyperscale.reporting.config_file import load_reporters

    file = Path(args.report_config) if args.report_config else None
    return load_reporters(args.report, file, os.environ, flag="--report")
