"""`hyperscale jobs`: list the jobs of a cluster."""

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

from hyperscale.cli.client_flags import CLUSTER_HELP, add_client_flags, open_client
from hyperscale.cli.printing import ago, print_json, print_warning, table
from hyperscale.errors import InputError

if TYPE_CHECKING:
    from hyperscale.client.messages import ListJobsReply


DESCRIPTION = """\
List the jobs of a cluster, newest first: jobs that run or wait, and jobs that ended in the last
ten minutes. Older jobs are kept for 30 days: 'hyperscale status' and 'hyperscale results' show
them by id, and 'hyperscale ledger history --since 2d' lists them.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale jobs
  hyperscale jobs --live --json

exit codes: 0 shown, 2 invalid input, 3 no manager could be reached
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="only jobs that have not ended")
    parser.add_argument("--limit", metavar="N", default="100", help="at most N jobs (default: 100)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    from hyperscale.client.inputs import JOBS_MOST
    from hyperscale.config import parse_whole

    limit = parse_whole(args.limit, low=1, most=JOBS_MOST)
    if limit is None:
        raise InputError(f"--limit: {args.limit!r} is not a whole number from 1 to {JOBS_MOST}")
    reply = asyncio.run(_fetch(args, limit))
    if args.json:
        print_json(reply)
    else:
        print(_text(reply))
    if reply.missing:
        print_warning(f"{', '.join(reply.missing)} did not answer: jobs may be missing")
    return 0


async def _fetch(args: argparse.Namespace, limit: int) -> "ListJobsReply":

    async with open_client(args) as client:
        return await client.get_jobs(limit=limit, live_only=args.live)


def _text(reply: "ListJobsReply") -> str:
    now_s = time.time()
    rows = [
        (
            *(job.job, job.status.value, str(job.position or ""), ago(job.submitted_ms, now_s)),
            *(job.file, job.reason),
        )
        for job in reply.jobs
    ]
    return table(("JOB", "STATE", "QUEUE", "AGE", "FILE", "REASON"), rows)
