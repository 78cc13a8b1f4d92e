"""`hyperscale cancel JOB`: end a job early."""

import argparse
import asyncio

from hyperscale.cli.client_flags import CLUSTER_HELP, add_client_flags, add_job_argument
from hyperscale.cli.parser import Parser
from hyperscale.cli.printing import print_warning
from hyperscale.reporting.exit_codes import ExitCode

_DESCRIPTION = """\
End a job early, whether it runs or waits in the queue. Its load stops within two seconds, and the
results so far are kept. Cancelling a job twice is harmless.
"""
_EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale cancel default.1-k5mz7vqjx2 --reason "wrong environment"

exit codes: 0 the job is being cancelled or is already cancelled, 2 there is no such job, 3 the job
had already ended, or no manager could be reached
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "cancel", help="end a job early", description=_DESCRIPTION, epilog=_EPILOG
    )
    add_job_argument(parser)
    parser.add_argument("--reason", metavar="TEXT", default="", help="reason to show with the job")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_cancel(args))


async def _cancel(args: argparse.Namespace) -> int:
    from hyperscale.cli.client_flags import open_client

    async with open_client(args) as client:
        reply = await client.cancel_job(args.job, args.reason)
    if reply.accepted or reply.status == "cancelled":
        is_over = reply.status == "cancelled"
        print(f"job {args.job} is {'cancelled' if is_over else 'being cancelled'}")
        return 0
    print_warning(f"job {args.job} had already ended: {reply.status}")
    return ExitCode.RUN_FAILED
