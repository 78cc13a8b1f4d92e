"""`hyperscale jobs`: list the jobs of a cluster."""

import argparse

from hyperscale.cli.cluster_flags import CLUSTER_HELP, add_client_flags, ask_cluster
from hyperscale.cli.parser import whole_number
from hyperscale.cli.printing import age, print_reply, print_warning, table
from hyperscale.client.inputs import JOBS_MOST
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
    add = parser.add_argument
    add("--live", action="store_true", help="only jobs that have not ended")
    add("--limit", metavar="N", default="100", help="at most N jobs (default: 100)")
    add("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    limit = whole_number(args.limit, "--limit", most=JOBS_MOST)
    reply = ask_cluster(args, lambda client: client.get_jobs(limit=limit, live_only=args.live))
    print_reply(args, reply, _text(reply))
    if reply.missing:
        print_warning(f"{', '.join(reply.missing)} did not answer: jobs may be missing")
    return 0


def _text(reply: ListJobsReply) -> str:
    rows = [
        (
            *(job.job, job.status.value, str(job.position or ""), age(job.submitted_ago_s)),
            *(job.file, job.reason),
        )
        for job in reply.jobs
    ]
    return table(("JOB", "STATE", "QUEUE", "AGE", "FILE", "REASON"), rows)
