"""`hyperscale watch JOB`: the live view of a job, from now to its end."""

import argparse
import asyncio
from pathlib import Path

from hyperscale.cli.client_flags import CLUSTER_HELP, add_client_flags
from hyperscale.cli.output import add_output_flags
from hyperscale.cli.parser import Parser

_DESCRIPTION = """\
Shows a job live, as 'run' shows a run, and its results when it ends. Ctrl-C leaves the job
running (exit code 130).
"""
_EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale watch default.1-k5mz7vqjx2
  hyperscale watch default.1-k5mz7vqjx2 --out results       also write the results

exit codes: those of 'run', for the job: 0 passed, 1 a threshold or check failed, 3 it failed, was
partial, cancelled or timed out, or no manager could be reached; 2 there is no such job; 130 you
left, and the job goes on
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "watch", help="follow a job of a cluster live", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("job", metavar="JOB", help="its id, as 'submit' printed it")
    add_output_flags(parser, out="none are written")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_watch(args))


async def _watch(args: argparse.Namespace) -> int:
    from hyperscale.cli.client_flags import open_client
    from hyperscale.cli.follow import follow_to_end
    from hyperscale.cli.output import Destination

    with Destination(args, Path(args.out) if args.out else None) as destination:
        async with open_client(args) as client:
            await client.get_job(args.job)  # a mistake is told before the view is opened
            return await follow_to_end(client, args.job, args, destination, is_known=True)
