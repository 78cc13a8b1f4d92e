"""`hyperscale cancel JOB`: ends a job early."""

import argparse
import asyncio
import sys

from hyperscale.cli.client_flags import CLUSTER_HELP, add_client_flags
from hyperscale.cli.parser import Parser

_DESCRIPTION = """\
Ends a job early, running or waiting. Its load stops within two seconds; what was measured is
kept. Again is harmless.
"""
_EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale cancel default.1-k5mz7vqjx2 --reason "wrong environment"

exit codes: 0 it is being cancelled, or was before; 2 there is no such job; 3 it had ended
otherwise, or no manager could be reached
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "cancel", help="end a job early", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("job", metavar="JOB", help="its id, as 'submit' printed it")
    parser.add_argument(
        "--reason", metavar="TEXT", default="", help="shown with the job; default: none"
    )
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_cancel(args))


async def _cancel(args: argparse.Namespace) -> int:
    from hyperscale.cli.client_flags import open_client

    async with open_client(args) as client:
        told = await client.cancel_job(args.job, args.reason)
    if told.accepted or told.status == "cancelled":
        is_over = told.status == "cancelled"
        print(f"job {args.job} is {'cancelled' if is_over else 'being cancelled'}")
        return 0
    print(f"hyperscale: job {args.job} had ended: {told.status}", file=sys.stderr)
    return 3
