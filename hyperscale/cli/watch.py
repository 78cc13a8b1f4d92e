"""`hyperscale watch JOB`: show a job live until it ends."""

import argparse
import asyncio
from pathlib import Path

from hyperscale.cli.cluster_flags import (
    CLUSTER_HELP,
    add_client_flags,
    add_job_argument,
    open_client,
)
from hyperscale.cli.follow import follow_to_end
from hyperscale.cli.output import Destination, add_output_flags

DESCRIPTION = """\
Show a job live until it ends, then its results, as 'hyperscale run' does for a local run. Ctrl-C
leaves the job running (exit code 130).
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale watch default.1-k5mz7vqjx2
  hyperscale watch default.1-k5mz7vqjx2 --out results       also write the result files

exit codes: 0 passed, 1 not passed, 2 there is no such job, 3 the job failed, was
partial, was cancelled or timed out, or no manager could be reached; 130 interrupted (the job
continues)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    add_output_flags(parser, out="no files are written")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_watch(args))


async def _watch(args: argparse.Namespace) -> int:
    with Destination(args, Path(args.out) if args.out else None) as destination:
        async with open_client(args) as client:
            await client.get_job(args.job)  # an unknown job is an error before the view opens
            return await follow_to_end(client, args.job, args, destination)
