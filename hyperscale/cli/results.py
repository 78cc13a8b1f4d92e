"""`hyperscale results JOB`: fetch the results of a job that has ended."""

import argparse
import asyncio
from pathlib import Path

from hyperscale.cli.cluster_flags import (
    CLUSTER_HELP,
    add_client_flags,
    add_job_argument,
    cluster_words,
    open_client,
)
from hyperscale.cli.output import Destination, add_output_flags
from hyperscale.errors import InputError
from hyperscale.jobs.committed.state import JOB_ENDS
from hyperscale.reporting.exit_codes import ExitCode
from hyperscale.ui import open_ui

DESCRIPTION = """\
Fetch the results of a job that has ended, print the summary and, with --out or --json, write the
same files as 'hyperscale run'.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale results default.1-k5mz7vqjx2
  hyperscale results default.1-k5mz7vqjx2 --out results
  hyperscale results default.1-k5mz7vqjx2 --json - | jq .gaps

exit codes: 0 passed, 1 not passed, 2 there is no such job or it has not ended,
3 the job failed, was partial, was cancelled or timed out, or no manager could be reached, or a
file could not be written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    add_output_flags(parser, ui="ci", out="no files are written")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_results(args))


async def _results(args: argparse.Namespace) -> int:
    with Destination(args, Path(args.out) if args.out else None) as destination:
        async with open_client(args) as client:
            view = (await client.get_job(args.job)).job
            if view.status not in JOB_ENDS:
                raise InputError(
                    f"job {args.job} has not ended yet: its state is {view.status.value}",
                    hint=f"watch it with 'hyperscale watch {args.job}{cluster_words(args)}'",
                )
            result = await client.get_results(args.job)
        is_silent = args.quiet or (destination.is_piped and args.ui == "ci")
        mode = "none" if args.ui == "none" else "ci"
        with open_ui(mode, stream=destination.stream, quiet=is_silent) as ui:
            problems = await destination.publish(result, ui)
        destination.print_problems(problems)
    code = result.exit_code
    return ExitCode.RUN_FAILED if destination.is_incomplete and not code else code
