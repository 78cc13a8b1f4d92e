"""`hyperscale run FILE`: the load, the live view, the results."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hyperscale.cli.parser import Parser
from hyperscale.errors import InputError, RunError

if TYPE_CHECKING:
    from hyperscale.runner.drive import Ending, Options
    from hyperscale.runner.source import Job

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
    load.add_argument("--vus", metavar="N", help="virtual users of every workflow")
    load.add_argument("--duration", metavar="D", help='how long each runs: "30s", "1m30s"')
    load.add_argument("--timeout", metavar="D", help="bound of the whole run")
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
    output = parser.add_argument_group("the output")
    output.add_argument(
        "--ui",
        choices=("full", "ci", "none"),
        default="full",
        help="live view, plain lines (also without a terminal) or nothing; default: full",
    )
    output.add_argument("--quiet", "-q", action="store_true", help="show errors only")
    output.add_argument(
        "--out",
        metavar="DIR",
        help="directory of the results; default: hyperscale-results/<file>-<time>",
    )
    output.add_argument("--json", metavar="FILE", help="also write the results here; - for stdout")
    output.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="of the test's own logging"
    )
    output.add_argument(
        "--log-dir", metavar="DIR", help="also write what each executor printed, a file for each"
    )


def run(args: argparse.Namespace) -> int:
    from hyperscale.config import parse_duration_s
    from hyperscale.graph import Overrides
    from hyperscale.runner.drive import Options
    from hyperscale.runner.local import parse_workers
    from hyperscale.runner.source import job_from_file

    timeout = args.timeout
    out_dir = Path(args.out) if args.out else default_out_dir(args.file)
    options = Options(
        workers=parse_workers(args.workers, where="--workers"),
        timeout_s=None if timeout is None else parse_duration_s(timeout, where="--timeout"),
        log_level=args.log_level,
        log_dir=Path(args.log_dir) if args.log_dir else None,
        output_file=out_dir / "output.log",
        static=not args.no_compile,
    )
    overrides = Overrides(vus=args.vus, duration=args.duration, only=args.only)
    job = job_from_file(args.file, overrides)
    return asyncio.run(_run(job, options, args, out_dir)).exit_code


async def _run(job: "Job", options: "Options", args: argparse.Namespace, out_dir: Path) -> "Ending":
    from hyperscale.reporting.files import ensure_writable
    from hyperscale.reporting.json_report import encode_json
    from hyperscale.reporting.outputs import planned_outputs, write_outputs
    from hyperscale.reporting.reporter import submit_all
    from hyperscale.runner.drive import drive
    from hyperscale.runner.source import resolve_hosts
    from hyperscale.ui import open_ui

    await resolve_hosts(job.plan)
    is_piped = args.json == "-"
    json_path = Path(args.json) if args.json and not is_piped else None
    if json_path is not None and json_path.exists() and json_path.samefile(args.file):
        raise InputError(f"--json: {json_path} is the test file itself", hint="name another file")
    for kind, path in planned_outputs(out_dir, json_path):
        ensure_writable(path, where="--json" if kind == "json" and path == json_path else "--out")
    if options.log_dir is not None:
        ensure_writable(options.log_dir / "executor-0.log", where="--log-dir")
    # With the results on stdout, everything for people goes to stderr.
    stream = sys.stderr if is_piped else sys.stdout
    with open_ui(args.ui, stream=stream, quiet=args.quiet) as ui:
        ending = await drive(job, options, ui)
        with _uninterrupted():
            outputs = write_outputs(
                ending.result,
                out_dir=out_dir,
                json_path=json_path,
                output_file=options.output_file,
            )
        lost = await submit_all(job.reporters, outputs.result)
        ui.finish(outputs.result)
    for failure in outputs.failures:
        print(f"hyperscale: {failure.error}", file=sys.stderr)
    for refusal in lost:
        print(
            f"hyperscale: {refusal.reporter} failed to {refusal.stage}: {refusal.error}",
            file=sys.stderr,
        )
    if is_piped:
        _write_stdout(encode_json(outputs.result))
    return ending


def _write_stdout(payload: bytes) -> None:
    """Past the stream's buffer, which would try again at exit what failed here."""
    sys.stdout.flush()
    left = memoryview(payload)
    try:
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunError(f"--json -: cannot write the results: {error.strerror}") from error


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Somebody who presses Ctrl-C once more does not lose what was measured."""
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def default_out_dir(file: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("hyperscale-results") / f"{Path(file).stem}-{stamp}"
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path
