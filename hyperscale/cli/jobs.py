"""`hyperscale jobs`: the jobs of a cluster."""

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING

from hyperscale.cli.client_flags import CLUSTER_HELP, add_client_flags
from hyperscale.cli.parser import Parser
from hyperscale.errors import InputError

if TYPE_CHECKING:
    from hyperscale.client.messages import ListJobsReply


_DESCRIPTION = """\
Lists the jobs of a cluster, newest first: those that run or wait, and those that ended in the
last ten minutes. Older ones are kept too, for 30 days: 'status' and 'results' know them by their
id, 'hyperscale ledger history --since 2d' tells what there was.
"""
_EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale jobs
  hyperscale jobs --live --json

exit codes: 0 told, 2 wrong input, 3 no manager could be reached
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "jobs", help="list the jobs of a cluster", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("--live", action="store_true", help="only those that have not ended")
    parser.add_argument("--limit", metavar="N", default="100", help="at most so many; default: 100")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import print_json
    from hyperscale.client.inputs import JOBS_MOST
    from hyperscale.config import parse_whole

    limit = parse_whole(args.limit, low=1, most=JOBS_MOST)
    if limit is None:
        raise InputError(f"--limit: {args.limit!r} is not a whole number from 1 to {JOBS_MOST}")
    told = asyncio.run(_ask(args, limit))
    if args.json:
        print_json(told)
    else:
        print(_text(told))
    if told.missing:
        print(
            f"hyperscale: {', '.join(told.missing)} did not answer: jobs may be missing",
            file=sys.stderr,
        )
    return 0


async def _ask(args: argparse.Namespace, limit: int) -> "ListJobsReply":
    from hyperscale.cli.client_flags import open_client

    async with open_client(args) as client:
        return await client.get_jobs(limit=limit, live_only=args.live)


def _text(told: "ListJobsReply") -> str:
    from hyperscale.cli.client_flags import ago
    from hyperscale.cli.node_queries import table

    now_s = time.time()
    rows = [
        (
            *(job.job, job.status.value, str(job.position or ""), ago(job.submitted_ms, now_s)),
            *(job.file, job.reason),
        )
        for job in told.jobs
    ]
    return table(("JOB", "STATE", "QUEUE", "AGE", "FILE", "REASON"), rows)
